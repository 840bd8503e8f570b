"""Each hang of `fthang`, as it looks from outside."""

import os
import signal

import pytest

from support.runs import children, state_of, wait_for
from support.short import quick
from support.workload import Runner, observe, reap, still
from support.workload import fthang as fthang

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


@pytest.mark.parametrize("kind", quick(BLOCKED, ("sleep", "gil", "flock", "netread", "nfs-like", "queues")))
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
    wait_for(lambda: observe(pid).state == "R", "state R")
    assert observe(pid).switches <= first.switches + 1  # the line may have been printed a moment before
    assert (fthang.beats.slot(), fthang.lines()) == (beats, output)
    fthang.kill()


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
