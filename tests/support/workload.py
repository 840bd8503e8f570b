"""`fthang` as a user runs it, its processes as /proc shows them, and nothing left of either."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from support.beat_file import HOUSE, BeatDir
from support.runs import wait_for

PR_SET_CHILD_SUBREAPER = 36
WINDOW = 0.3  # s
FAST = ("--step-time", "1ms", "--after", "3", "--steps", "12", "--checkpoint-every", "2")


class Seen(NamedTuple):
    pid: int
    state: str
    parent: int
    group: int
    session: int


class Runner:
    """Starts `fthang` in a folder of its own, and ends whatever it left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.output = folder / "output"
        self.beats = BeatDir(folder / "beats")
        self.started: list[subprocess.Popen[bytes]] = []
        self.others: set[int] = set()

    def start(self, *words: str, start: int = 1, fast: bool = True, path: str = "") -> subprocess.Popen[bytes]:
        """`path`: its PYTHONPATH."""
        command = [sys.executable, str(HOUSE / "bin" / "fthang"), *(FAST if fast else ()), *words]
        env = self.beats.environment(MA_PROC_START_CNT=str(start), FTRUN_RUN_DIR=str(self.folder))
        env |= {"FTRUN_RESTART_REASON": "hang"} if start > 1 else {}
        env["PYTHONPATH"] = path
        with self.output.open("wb") as output:
            process = subprocess.Popen(
                command, env=env, cwd=self.folder, stdout=output, stderr=output, start_new_session=True
            )
        self.started.append(process)
        return process

    def run(self, *words: str, start: int = 1, fast: bool = True, path: str = "") -> int:
        return self.start(*words, start=start, fast=fast, path=path).wait(60)

    def begin(self, *words: str, line: str, path: str = "") -> int:
        """Its pid, once it has said the line."""
        process = self.start(*words, path=path)
        wait_for(lambda: process.poll() is not None or line in self.lines())
        assert process.poll() is None, self.lines()
        return process.pid

    def kill(self) -> None:
        """Only the process that was started, which alone must do: nothing of it is left then."""
        (process,) = self.started
        process.kill()
        process.wait()

        def left() -> list[Seen]:
            for seen in self.strangers():
                reap(seen.pid, os.WNOHANG)
            return alive_in(process.pid) + self.strangers()

        wait_for(lambda: not left())

    def lines(self) -> list[str]:
        return self.output.read_text().splitlines()

    def end(self) -> None:
        """Each session at once, so that none can fork away; then what left its session; then reap them all."""
        for process in self.started:
            kill_group(process.pid)
            process.wait()
        for daemon in self.strangers():
            kill_group(daemon.group)
        for process in self.started:
            reap(-process.pid, 0)
        for daemon in self.strangers():
            reap(daemon.pid, 0)
        self.beats.close()

    def strangers(self) -> list[Seen]:
        """Children of this process that lead or belong to no session of ours: orphans come here, to the subreaper."""
        ours = {process.pid for process in self.started} | self.others
        return [seen for seen in processes() if seen.parent == os.getpid() and not {seen.pid, seen.session} & ours]


def processes() -> list[Seen]:
    """All that /proc shows, by one cheap look: a fork storm outruns a careful one."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        found.append(Seen(int(stat.parent.name), fields[0], *map(int, fields[1:4])))
    return found


def alive_in(session: int) -> list[Seen]:
    return [seen for seen in processes() if seen.session == session and seen.state not in "ZX"]


def kill_group(group: int) -> None:
    assert group != os.getpgrp()
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def reap(pid: int, how: int) -> None:
    """As waitpid has it (a negative one is a process group), until there is nothing to reap."""
    try:
        while os.waitpid(pid, how)[0]:
            pass
    except ChildProcessError:
        pass


def runner(folder: Path) -> Iterator[Runner]:
    """For a fixture."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    made = Runner(folder)
    made.others = {seen.pid for seen in processes() if seen.parent == os.getpid()}
    yield made
    made.end()
    prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    assert not made.strangers()
    assert not [seen for process in made.started for seen in processes() if seen.session == process.pid]


class Thread(NamedTuple):
    """A look at one: `wchan` is "0" where it runs, or where the kernel does not tell; `cpu` in clock ticks."""

    state: str
    wchan: str
    cpu: int
    switches: int


def look(pid: int, thread: int | None = None) -> Thread:
    """At the main thread, unless at another one."""
    at = Path(f"/proc/{pid}/task/{thread or pid}")
    fields = at.joinpath("stat").read_text().rpartition(")")[2].split()
    switches = next(
        line.split()[1] for line in at.joinpath("status").read_text().splitlines() if line[:9] == "voluntary"
    )
    return Thread(fields[0], at.joinpath("wchan").read_text(), int(fields[11]) + int(fields[12]), int(switches))


def still(pid: int) -> Thread:
    """The main thread, once it did not run at all for WINDOW seconds."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        before = look(pid)
        time.sleep(WINDOW)
        if look(pid) == before:
            return before
    raise AssertionError(f"it runs again and again: {look(pid)}")


def side_threads(pid: int) -> list[int]:
    return [int(name) for name in os.listdir(f"/proc/{pid}/task") if int(name) != pid]


def read_and_written(pid: int) -> tuple[int, int]:
    """In characters, by the process itself."""
    rchar, wchar, *_ = Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(rchar.split()[1]), int(wchar.split()[1])


def children(pid: int) -> list[int]:
    return [seen.pid for seen in processes() if seen.parent == pid]
