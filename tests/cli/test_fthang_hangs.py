"""Each hang of `fthang`, as it looks from outside: that of the table in the project's notes on real hangs."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.beat_file import HOUSE
from support.runs import state_of, wait_for
from support.workload import Runner, children, look, reap, runner, side_threads, still

# The names that kernels have for what the main thread waits in.
BLOCKED = {
    "sleep": ("S", "nanosleep"),
    "deadlock": ("S", "futex"),
    "gil": ("S", "pause|sigsuspend|poll"),
    "native": ("S", "nanosleep"),
    "pipe": ("S", "pipe"),
    "flock": ("S", "lock_inode"),
    "netread": ("S", "wait_woken|sk_wait|recv"),
    "nfs-like": ("D", "kernel_clone|do_fork"),
    "chatty": ("S", "futex"),
}
BUSY = ["spin", "busy"]


@pytest.fixture
def fthang(tmp_path: Path) -> Iterator[Runner]:
    yield from runner(tmp_path)


@pytest.mark.parametrize("kind", BLOCKED)
def test_it_blocks(fthang: Runner, kind: str) -> None:
    pid = fthang.begin(kind, line=f"hanging: {kind}")
    seen = still(pid)
    wanted, where = BLOCKED[kind]
    assert seen.state == wanted
    assert re.search(where, seen.wchan) or seen.wchan == "0"
    assert fthang.beats.slot()["step"] == 4
    fthang.kill()


@pytest.mark.parametrize("kind", BUSY)
def test_it_burns_the_processor(fthang: Runner, kind: str) -> None:
    pid = fthang.begin(kind, line=f"hanging: {kind}")
    first, beats, output = look(pid), fthang.beats.slot(), fthang.lines()
    wait_for(lambda: look(pid).cpu > first.cpu + 20)
    assert look(pid).state == "R"
    assert look(pid).switches == first.switches
    assert (fthang.beats.slot(), fthang.lines()) == (beats, output)
    fthang.kill()


def test_without_hooks_it_says_nothing(fthang: Runner) -> None:
    fthang.begin("chatty", "--no-hooks", line="still waiting, 2")
    assert fthang.beats.slot()["magic"] == 0


def test_it_hangs_in_the_first_starts_only(fthang: Runner) -> None:
    assert fthang.run("native", "--times", "2", start=3) == 0
    assert fthang.lines()[-1].startswith("finished at step 12")


def run(script: str) -> subprocess.CompletedProcess[str]:
    head = f"import sys; sys.path[:0] = [{str(HOUSE / 'supervisor')!r}, {str(HOUSE / 'hooks')!r}]\n"
    return subprocess.run(
        [sys.executable, "-c", head + script], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_stack_of_busy_moves() -> None:
    done = run("""
import os, threading
from ftrun.workload import hangs
thread = threading.Thread(target=hangs.busy, args=(None,), daemon=True)
thread.start()
seen = set()
while not {"busy", "arrived", "back_off"} <= seen:
    seen.add(sys._current_frames()[thread.ident].f_code.co_name)
os._exit(7)
""")
    assert done.returncode == 7, done.stderr


def test_a_machine_that_cannot_says_so(tmp_path: Path) -> None:
    words = ["fthang", "nfs-like", "--after", "1", "--step-time", "1ms", "--checkpoint-dir", str(tmp_path)]
    done = run(f"""
import platform
platform.machine = lambda: "pdp11"
sys.argv = {words!r}
from ftrun.cli.hang import main
main()
""")
    assert done.returncode == 77
    assert "pdp11" in done.stderr
    assert done.stderr.count("\n") == 1


def test_gil_lets_no_thread_run(fthang: Runner) -> None:
    pid = fthang.begin("gil", line="hanging: gil")
    wait_for(lambda: side_threads(pid))
    (side,) = side_threads(pid)
    wait_for(lambda: "futex" in look(pid, side).wchan or look(pid, side).wchan == "0")
    naps = look(pid, side).switches
    wait_for(lambda: look(pid, side).switches > naps + 20)  # it asks for the GIL every 5 ms
    assert not any("nanosleep" in look(pid, side).wchan for _ in range(200))


def test_native_has_no_python_in_it(fthang: Runner) -> None:
    pid = fthang.begin("native", line="hanging: native")
    wait_for(lambda: "python" not in Path(f"/proc/{pid}/maps").read_text())
    assert fthang.beats.slot()["pid"] == pid


def test_flock_waits_for_the_folder_of_the_checkpoints(fthang: Runner) -> None:
    fthang.begin("flock", line="hanging: flock")
    inode = fthang.checkpoints.stat().st_ino
    wait_for(lambda: re.search(rf"-> FLOCK .*:{inode} ", Path("/proc/locks").read_text()))


def test_nfs_like_goes_on_when_its_child_ends(fthang: Runner) -> None:
    pid = fthang.begin("nfs-like", line="hanging: nfs-like")
    wait_for(lambda: state_of(pid) == "D")
    (child,) = children(pid)
    os.kill(child, signal.SIGKILL)
    assert fthang.started[0].wait(60) == 0
    assert fthang.lines()[-1].startswith("finished at step 12")


def test_nfs_like_ends_with_sigterm(fthang: Runner) -> None:
    pid = fthang.begin("nfs-like", line="hanging: nfs-like")
    wait_for(lambda: state_of(pid) == "D")
    (child,) = children(pid)
    os.kill(pid, signal.SIGTERM)
    assert fthang.started[0].wait(60) == -signal.SIGTERM
    wait_for(lambda: state_of(child) == "Z")
    reap(child, 0)


def test_chatty_logs_and_beats_without_a_step(fthang: Runner) -> None:
    fthang.begin("chatty", line="still waiting, 2")
    before = fthang.beats.slot()
    wait_for(lambda: fthang.lines()[-1] == "still waiting, 4")
    after = fthang.beats.slot()
    assert after["alive_at"] > before["alive_at"]
    assert (after["moved_at"], after["step"]) == (before["moved_at"], 4)
