"""`fthang` as a user runs it, its processes as /proc shows them; nothing of it is left after a test."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ftrun.host.spawn import PR_SET_CHILD_SUBREAPER, prctl
from support.beat_file import HOUSE, BeatDir
from support.runs import wait_for

WINDOW = 0.3  # s
FAST = ("--step-time", "1ms", "--after", "3", "--steps", "12", "--checkpoint-every", "2")


class Process(NamedTuple):
    pid: int
    state: str
    parent: int
    group: int
    session: int


class Runner:
    """Starts `fthang` in a folder of its own, and ends all processes that it leaves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.output = folder / "output"
        self.beats = BeatDir(folder / "beats")
        self.started: list[subprocess.Popen[bytes]] = []
        self.others = {process.pid for process in processes() if process.parent == os.getpid()}

    def start(self, *arguments: str, start: int = 1, fast: bool = True, path: str = "") -> subprocess.Popen[bytes]:
        """`path`: its PYTHONPATH."""
        command = [sys.executable, str(HOUSE / "bin" / "fthang"), *(FAST if fast else ()), *arguments]
        env = self.beats.environment(MA_PROC_START_CNT=str(start), FTRUN_RUN_DIR=str(self.folder))
        env |= {"FTRUN_RESTART_REASON": "hang"} if start > 1 else {}
        env["PYTHONPATH"] = path
        with self.output.open("wb") as output:
            process = subprocess.Popen(
                command, env=env, cwd=self.folder, stdout=output, stderr=output, start_new_session=True
            )
        self.started.append(process)
        return process

    def run(self, *arguments: str, start: int = 1, fast: bool = True, path: str = "") -> int:
        return self.start(*arguments, start=start, fast=fast, path=path).wait(90)

    def begin(self, *arguments: str, line: str, path: str = "") -> int:
        """Start it, and return its pid once it has printed this line."""
        process = self.start(*arguments, path=path)
        wait_for(lambda: process.poll() is not None or line in self.lines(), line)
        assert process.poll() is None, self.lines()
        return process.pid

    def kill(self) -> None:
        """Kill only the process that was started; nothing of it may be left then."""
        (process,) = self.started
        process.kill()
        process.wait()

        def left() -> list[Process]:
            for orphan in self.orphans():
                reap(orphan.pid, os.WNOHANG)
            return alive_in(process.pid) + self.orphans()

        wait_for(lambda: not left(), "the end of all processes")

    def lines(self) -> list[str]:
        return self.output.read_text().splitlines()

    def end(self) -> None:
        """Kill each session at once, so that no process can fork away; then what left its session; then reap them."""
        for process in self.started:
            kill_group(process.pid)
            process.wait()
        for daemon in self.orphans():
            kill_group(daemon.group)
        for process in self.started:
            reap(-process.pid, 0)
        for daemon in self.orphans():
            reap(daemon.pid, 0)
        self.beats.close()

    def orphans(self) -> list[Process]:
        """Processes that left their session and their parent: they become children of this process, the subreaper."""
        own = {process.pid for process in self.started} | self.others
        return [found for found in processes() if found.parent == os.getpid() and not {found.pid, found.session} & own]


@pytest.fixture
def fthang(tmp_path: Path) -> Iterator[Runner]:
    assert prctl(PR_SET_CHILD_SUBREAPER, 1)
    made = Runner(tmp_path)
    yield made
    made.end()
    prctl(PR_SET_CHILD_SUBREAPER, 0)
    assert not made.orphans()
    assert not [found for process in made.started for found in processes() if found.session == process.pid]


def processes() -> list[Process]:
    """All processes, read as cheaply as possible: a fork storm is faster than psutil."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        found.append(Process(int(stat.parent.name), fields[0], *map(int, fields[1:4])))
    return found


def alive_in(session: int) -> list[Process]:
    return [process for process in processes() if process.session == session and process.state not in "ZX"]


def kill_group(group: int) -> None:
    assert group != os.getpgrp()
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def reap(pid: int, options: int) -> None:
    """Call waitpid until there is nothing to reap; a negative pid is a process group."""
    try:
        while os.waitpid(pid, options)[0]:
            pass
    except ChildProcessError:
        pass


class Thread(NamedTuple):
    """`wchan` is "0" if the thread runs, or if the kernel hides it; `cpu` is in clock ticks."""

    state: str
    wchan: str
    cpu: int
    switches: int

    def waits_in(self, *functions: str) -> bool:
        """Whether it waits in one of these functions of the kernel, or in one that the kernel hides."""
        return self.wchan == "0" or any(function in self.wchan for function in functions)


def observe(pid: int, thread: int | None = None) -> Thread:
    """The main thread, or another one."""
    task = Path(f"/proc/{pid}/task/{thread or pid}")
    fields = (task / "stat").read_text().rpartition(")")[2].split()
    switches = next(line.split()[1] for line in (task / "status").read_text().splitlines() if line[:9] == "voluntary")
    return Thread(fields[0], (task / "wchan").read_text(), int(fields[11]) + int(fields[12]), int(switches))


def still(pid: int) -> Thread:
    """The main thread, once it did not run at all for WINDOW seconds."""

    def unchanged() -> Thread | None:
        before = observe(pid)
        time.sleep(WINDOW)
        return before if observe(pid) == before else None

    found: Thread = wait_for(unchanged, "a thread that does not run")
    return found


def read_and_written(pid: int) -> tuple[int, int]:
    """In characters, by the process itself."""
    rchar, wchar, *_ = Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(rchar.split()[1]), int(wchar.split()[1])
