"""A shell that an operator opened in the container from outside (`docker exec`) is not part of the command's tree."""

import subprocess
from pathlib import Path

import pytest

from support.containers import PYTHON, Run, Starter
from support.runs import Mode, alive, need_pid1, number_in, state_of, status, wait_for

pytestmark = pytest.mark.pid1
PID1: Mode = "pid1"
HANG = ["--hang-timeout", "2s", "--grace", "200ms"]


@pytest.fixture(autouse=True)
def _needs_pid1() -> None:
    need_pid1()


class Visitor:
    """A process that `docker exec` starts in the container of `run`."""

    def __init__(self, start: Starter, run: Run, script: str, folder: Path) -> None:
        environment = start.environment({"VISITOR": "1"})
        self.folder = folder
        self.process = subprocess.Popen(
            ["nsenter", "-t", str(run.pid), "-p", "-m", "sh", "-c", script, "sh", str(folder)],
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.run = run

    def pid(self, name: str) -> int:
        """The pid in this namespace of the process that wrote its pid into this file."""
        return self.outside(number_in(self.folder / name))

    def outside(self, pid: int) -> int:
        namespace = Path(f"/proc/{self.run.pid}/ns/pid").readlink()

        def look() -> int | None:
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit() and status(int(entry.name)).get("NSpid", "").split()[1:] == [str(pid)]:
                    try:
                        if (entry / "ns/pid").readlink() == namespace:
                            return int(entry.name)
                    except OSError:
                        continue
            return None

        found: int = wait_for(look, f"process {pid} of the container")
        return found


# The shell, a child of it, one that PID 1 adopts (its parent is gone), and a daemon with a session of its own.
SCRIPT = """
echo $$ > $1/shell
sh -c 'echo $$ > $1/child; exec sleep 600' sh $1 &
(sh -c 'echo $$ > $1/adopted; exec sleep 600' sh $1 &)
(setsid sh -c 'echo $$ > $1/daemon; exec sleep 600' sh $1 &)
while ! [ -e $1/leave ]; do sleep 0.05; done
"""
WHO = ("shell", "child", "adopted", "daemon")


# Gives heartbeats, but hangs in the first attempt as soon as the file exists.
HANGER = """
import os, sys, time
while os.environ["MA_PROC_START_CNT"] != "1" or not os.path.exists(sys.argv[1]):
    os.utime(os.environ["FTRUN_BEAT_DIR"] + "/touch")
    time.sleep(0.02)
time.sleep(600)
"""


def tree(run: Run) -> list[int]:
    """The command's processes: those that carry our beat folder."""
    marker = f"FTRUN_BEAT_DIR={run.state['beat_dir']}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and marker in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("has_ended", [False, True], ids=["shell runs", "shell has ended"])
def test_processes_from_outside_outlive_a_restart(start: Starter, tmp_path: Path, has_ended: bool) -> None:
    """The command leaves a daemon behind as well, which the restart ends."""
    command = ["sh", "-c", 'setsid sleep 601 & exec "$@"', "sh", *PYTHON, "-c", HANGER, str(tmp_path / "hang")]
    run = start(*command, mode=PID1, options=HANG)
    run.until("first_beat")
    visitor = Visitor(start, run, SCRIPT, tmp_path)
    pids = {who: visitor.pid(who) for who in WHO}
    assert status(pids["adopted"])["PPid"] == str(run.pid)
    before = tree(run)
    assert len(before) >= 2
    if has_ended:
        (tmp_path / "leave").touch()
        visitor.process.wait(30)
        wait_for(lambda: not alive(pids["shell"]), "the end of the shell")
        del pids["shell"]
    (tmp_path / "hang").touch()
    run.until("spawned", 2)
    for who, pid in pids.items():
        assert alive(pid), f"{who} was ended by the restart"
        wait_for(lambda pid=pid: state_of(pid) != "T", f"{who} to go on")  # type: ignore[misc]
    assert all(not alive(pid) for pid in before)
    run.kill(15)
    assert run.wait() == 143
    # The end of PID 1 is the end of the container, and of all processes in it.
    wait_for(lambda: all(not alive(pid) for pid in pids.values()), "the end of all")
    visitor.process.wait(30)


def test_the_end_does_not_wait_for_a_shell_from_outside(start: Starter, tmp_path: Path) -> None:
    go = tmp_path / "go"
    run = start("sh", "-c", f"while ! [ -e {go} ]; do sleep 0.02; done; exit 4", mode=PID1, grace="20s")
    run.until("spawned")
    visitor = Visitor(start, run, SCRIPT, tmp_path)
    for who in WHO:
        visitor.pid(who)
    go.touch()
    assert run.wait() == 4
    assert not run.named("killed")
    visitor.process.wait(30)
