"""A checkpoint watcher that was started as PID 1 starts it."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ftrun.messages.activity import WATCHER_REQUESTS, GetRest
from support.helper_process import DEADLINE, HelperProcess, Line
from support.runs import state_of, wait_for

QUICK = """
from ftrun.helpers.checkpoint_watcher import folders, matches, program
for module, names in (matches, ("SETTLE", "PATIENCE", "FOLDER_SETTLE", "LOOKS")), (folders, ("ROUND", "RELIST")):
    for name in names:
        setattr(module, name, getattr(module, name) * {pace})
"""
LISTS = "program.Inotify = lambda: None\n"


class Watcher(HelperProcess):
    """Waits for `ready` by default.  `pace`: its waiting times, as a part of those outside of tests."""

    def __init__(
        self,
        cwd: Path,
        *globs: str,
        lists: bool = False,
        prefix: Sequence[str] = (),
        pace: float = 0.4,
        ready: bool = True,
    ) -> None:
        before = QUICK.format(pace=pace) + (LISTS if lists else "")
        super().__init__("checkpoint_watcher", *globs, before=before, prefix=prefix, cwd=cwd, silent=True)
        if ready:
            self.ready()

    def until(self, condition: Callable[[], object], what: str) -> None:
        until = time.monotonic() + DEADLINE
        while not condition():
            left = until - time.monotonic()
            assert left > 0, f"not within {DEADLINE:.0f} s: {what}; {self.lines}"
            assert self.read(left) or condition(), f"ended without {what}: {self.lines}"

    def ready(self) -> None:
        self.until(lambda: any(line["event"] == "ready" for line in self.lines), "ready")

    def saved(self, path: str | Path, number: int = 1) -> Line:
        """The `number`th time that this path was saved."""
        found = self.count
        self.until(lambda: found(path) >= number, f"{path} x{number}")
        return [line for line in self.lines if line.get("path") == str(path)][number - 1]

    def count(self, path: str | Path) -> int:
        return self.paths.count(str(path))

    def meanwhile(self, act: Callable[[], object], path: Path) -> float:
        """Repeat `act` until this path was saved; the longest time in s between two repetitions."""
        until, last, longest = time.monotonic() + DEADLINE, time.monotonic(), 0.0
        while self.count(path) == 0:
            assert last < until, f"{path} was not saved: {self.lines}"
            act()
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
            assert self.read(0.03)
        return longest

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The changes in the block reach it at one instant."""
        self.process.send_signal(signal.SIGSTOP)
        wait_for(lambda: state_of(self.process.pid) == "T", "it is stopped")
        yield
        self.process.send_signal(signal.SIGCONT)

    @property
    def paths(self) -> list[str]:
        return [line["path"] for line in self.lines if line["event"] == "saved"]

    def problem(self, text: str) -> str:
        self.until(lambda: any(text in what for what in self.problems), text)
        return next(what for what in self.problems if text in what)

    def ask_for_rest(self) -> None:
        """Ask as PID 1 does after the command has ended."""
        self.write(WATCHER_REQUESTS.dump(GetRest()))

    @property
    def has_sent_all(self) -> bool:
        return any(line["event"] == "all_sent" for line in self.lines)


class Both:
    """Two of them at the same time: one with inotify, and one that lists folders."""

    def __init__(self, cwd: Path, *globs: str, **more: Any) -> None:
        self.notified = Watcher(cwd, *globs, ready=False, **more)
        self.listing = Watcher(cwd, *globs, ready=False, lists=True, **more)
        self.all = (self.notified, self.listing)
        for watcher in self.all:
            watcher.ready()

    def saved(self, path: str | Path, number: int = 1) -> None:
        for watcher in self.all:
            watcher.saved(path, number)

    def counts(self, path: str | Path) -> set[int]:
        return {watcher.count(path) for watcher in self.all}

    @property
    def paths(self) -> list[str]:
        assert sorted(self.notified.paths) == sorted(self.listing.paths)
        return self.notified.paths

    def settle(self, folder: Path) -> None:
        """Wait until all that no longer changes has been reported: a file linked into place now needs two looks."""
        number = len(list(folder.glob("later-*")))
        beside, path = folder / ".beside-later", folder / f"later-{number}.pt"
        beside.write_text("x")
        path.hardlink_to(beside)
        self.saved(path)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def put(path: Path, content: bytes | str = b"x") -> Path:
    """Write beside it, then rename into place."""
    beside = path.with_name(".beside")
    beside.write_bytes(content.encode() if isinstance(content, str) else content)
    beside.replace(path)
    return path


@contextmanager
def writing(path: Path) -> Iterator[Callable[[], object]]:
    """It is open for writing; call to write a little more."""
    with path.open("ab", buffering=0) as file:
        file.write(b"x")
        yield lambda: file.write(b"x")
