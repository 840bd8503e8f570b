"""Each hang of `fthang`, as it looks from outside."""

import os
import re
import signal
import sys
from pathlib import Path
from types import FrameType

import pytest

from ftrun.workload import failures
from ftrun.workload.training import RequirementMissing, Setting
from support.runs import children, state_of, wait_for
from support.workload import Runner, observe, reap, still
from support.workload import fthang as fthang

SETTING = Setting(0, Path(), 12, 3, 0.001, 2, hooks=False, torch=False)
# The state of the main thread, and the names that kernels have for the function in which it waits.
BLOCKED = {
    "sleep": ("S", ["nanosleep"]),
    "deadlock": ("S", ["futex"]),
    "gil": ("S", ["futex"]),
    "native": ("S", ["nanosleep"]),
    "pipe": ("S", ["pipe"]),
    "flock": ("S", ["lock_inode"]),
    "netread": ("S", ["wait_woken", "sk_wait", "recv"]),
    "nfs-like": ("D", ["kernel_clone", "do_fork"]),
    "chatty": ("S", ["futex"]),
    "lock-cycle": ("S", ["futex"]),
    "queues": ("S", ["pipe"]),
    "full-pipes": ("S", ["pipe"]),
}


@pytest.mark.parametrize("kind", BLOCKED)
def test_a_blocked_process_does_not_run(fthang: Runner, kind: str) -> None:
    pid = fthang.begin(kind, line=f"hanging: {kind}")
    state, functions = BLOCKED[kind]
    wait_for(lambda: (thread := still(pid)).state == state and thread.waits_in(*functions), f"{state} in {functions}")
    assert fthang.beats.slot()["step"] == 4
    fthang.kill()


@pytest.mark.parametrize("kind", ["spin", "busy", "flag"])
def test_a_loop_uses_the_processor(fthang: Runner, kind: str) -> None:
    pid = fthang.begin(kind, line=f"hanging: {kind}")
    first, beats, output = observe(pid), fthang.beats.slot(), fthang.lines()
    wait_for(lambda: observe(pid).cpu > first.cpu + 20, "CPU use")
    assert observe(pid).state == "R"
    assert observe(pid).switches <= first.switches + 1  # the line may have been printed a moment before
    assert (fthang.beats.slot(), fthang.lines()) == (beats, output)
    fthang.kill()


def test_busy_calls_functions() -> None:
    called: set[str] = set()

    def trace(frame: FrameType, event: str, argument: object) -> None:
        called.add(frame.f_code.co_name)
        if called >= {"busy", "arrived", "back_off"}:
            raise InterruptedError

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with pytest.raises(InterruptedError):
            failures.busy(SETTING)
    finally:
        sys.settrace(before)


def test_a_machine_without_a_known_clone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "CLONE", {})
    with pytest.raises(RequirementMissing, match=os.uname().machine):
        failures.nfs_like(SETTING)


def test_gil_lets_no_thread_run(fthang: Runner) -> None:
    pid = fthang.begin("gil", line="hanging: gil")

    def side_thread() -> int | None:
        return next((int(name) for name in os.listdir(f"/proc/{pid}/task") if int(name) != pid), None)

    side = wait_for(side_thread, "the side thread")
    wait_for(lambda: observe(pid, side).waits_in("futex"), "a wait for the GIL")
    naps = observe(pid, side).switches
    wait_for(lambda: observe(pid, side).switches > naps + 20, "requests for the GIL")  # one every 5 ms
    assert not any("nanosleep" in observe(pid, side).wchan for _ in range(200))


def test_native_runs_no_python(fthang: Runner) -> None:
    pid = fthang.begin("native", line="hanging: native")
    wait_for(lambda: "python" not in Path(f"/proc/{pid}/maps").read_text(), "the exec")
    assert fthang.beats.slot()["pid"] == pid


def test_flock_waits_for_the_checkpoint_folder(fthang: Runner) -> None:
    fthang.begin("flock", line="hanging: flock")
    inode = fthang.checkpoints.stat().st_ino
    wait_for(lambda: re.search(rf"-> FLOCK .*:{inode} ", Path("/proc/locks").read_text()), "the wait for the lock")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, 0), (signal.SIGTERM, -signal.SIGTERM)])
def test_nfs_like_goes_on_when_its_child_is_killed_and_ends_with_sigterm(
    fthang: Runner, number: signal.Signals, status: int
) -> None:
    pid = fthang.begin("nfs-like", line="hanging: nfs-like")
    wait_for(lambda: state_of(pid) == "D", "state D")
    (child,) = children(pid)
    os.kill(child if number == signal.SIGKILL else pid, number)
    assert fthang.started[0].wait(90) == status
    if number == signal.SIGTERM:
        wait_for(lambda: state_of(child) == "Z", "the end of the child")
        reap(child, 0)


def test_chatty_logs_and_gives_heartbeats_without_a_step(fthang: Runner) -> None:
    fthang.begin("chatty", line="still waiting, 2")
    before = fthang.beats.slot()
    wait_for(lambda: "still waiting, 4" in fthang.lines(), "its log")
    after = fthang.beats.slot()
    assert after["alive_at"] > before["alive_at"]
    assert (after["moved_at"], after["step"]) == (before["moved_at"], 4)
