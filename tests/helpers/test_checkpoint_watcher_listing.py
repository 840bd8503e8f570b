"""The cost and the limits of listing folders.  Without a process and without waiting: the clock is simulated."""

import errno
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftrun.helpers.checkpoint_watcher import disk, folder, folders, matches
from ftrun.helpers.checkpoint_watcher.folders import Folders
from ftrun.helpers.checkpoint_watcher.globs import Globs, parse
from ftrun.helpers.checkpoint_watcher.matches import Matches
from ftrun.host.inotify import Inotify
from support.watcher import put


class Listing:
    """Folders without inotify, a clock, and counts of the queries to the file system."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now, self.listing_takes = 1000.0, 0.0
        self.listed: list[str] = []
        self.examined: list[str] = []
        self.problems: dict[str, None] = {}
        self.inodes: dict[str, int] = {}  # invented, as some file systems do
        clock = SimpleNamespace(monotonic=lambda: self.now, time_ns=time.time_ns)
        patch.setattr(folders, "time", clock)
        patch.setattr(matches, "time", clock)
        patch.setattr(folders, "os", SimpleNamespace(scandir=self._scandir))
        self.failing = "nothing"  # paths that begin with that cannot be read
        stat, look = disk.stat, disk.look

        def stat_there(path: str, *more: Any, **most: Any) -> disk.FileStat:
            if path.startswith(self.failing):
                raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
            return stat(path, *more, **most)

        patch.setattr(disk, "stat", stat_there)

        def count(path: str, **more: Any) -> Any:
            self.examined.append(path)
            return look(path, **more)

        patch.setattr(disk, "look", count)

    @contextmanager
    def _scandir(self, path: str) -> Iterator[Iterator[Any]]:
        self.listed.append(path)
        self.now += self.listing_takes
        with os.scandir(path) as entries:
            yield iter([self._entry(entry) for entry in entries])

    def _entry(self, entry: "os.DirEntry[str]") -> Any:
        inode = self.inodes.get(entry.name, entry.inode())
        return SimpleNamespace(
            name=entry.name, path=entry.path, stat=entry.stat, is_dir=entry.is_dir, inode=lambda: inode
        )

    def start(self, *globs: str, notify: Inotify | None = None) -> None:
        parsed = Globs([parse(glob, "") for glob in globs])
        self.matches = Matches(parsed)
        self.folders = Folders(parsed, self.matches, notify, lambda what: self.problems.setdefault(what), None)
        assert self.go_on(3) == []
        self.listed.clear()
        self.examined.clear()

    def go_on(self, seconds: float) -> list[str]:
        """The names of all that was saved meanwhile."""
        until = self.now + seconds
        while (due := self._due()) <= until:
            self.now = max(self.now, due)
            self.matches.look()
            listing = self.folders.due()
            if listing is not None and listing <= self.now:
                self.folders.round()
        self.now = until
        saved = [os.path.basename(match.path) for match in self.matches.saved]
        self.older = [match.older for match in self.matches.saved]
        self.matches.saved.clear()
        return saved

    def _due(self) -> float:
        return min((at for at in (self.folders.due(), self.matches.due()) if at is not None), default=math.inf)


@pytest.fixture
def listing(monkeypatch: pytest.MonkeyPatch) -> Listing:
    return Listing(monkeypatch)


def test_an_unchanged_folder_is_rarely_listed(listing: Listing, tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"{number}.pt").touch()
    listing.start(f"{tmp_path}/*.pt")
    assert listing.go_on(25) == []
    assert listing.listed == []
    listing.go_on(120)
    assert len(listing.listed) == 4, "some object stores never change the time of a folder"
    assert listing.examined == []


def test_one_new_file_among_many_costs_two_listings_and_two_looks(listing: Listing, tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"{number}.pt").touch()
    listing.start(f"{tmp_path}/*.pt")
    listing.go_on(10)
    put(tmp_path / "new.pt")
    assert listing.go_on(2) == ["new.pt"]
    assert listing.go_on(10) == []
    assert len(listing.listed) == 2, "once more, for changes within one tick of the clock of the disk"
    assert listing.examined == [str(tmp_path / "new.pt")] * 2


def test_of_several_new_files_the_last_one_that_was_written_comes_last(listing: Listing, tmp_path: Path) -> None:
    listing.start(f"{tmp_path}/*.pt")
    written = [f"{number * 7919 % 97}.pt" for number in range(1, 40)]  # in no order that a folder may have
    for age, name in zip(range(len(written), 0, -1), written, strict=True):
        then = time.time_ns() - age * 10_000_000
        os.utime(put(tmp_path / name), ns=(then, then))
    assert listing.go_on(5) == written


def test_one_that_is_found_after_a_later_one_is_known_to_be_older(listing: Listing, tmp_path: Path) -> None:
    listing.start(f"{tmp_path}/*.pt")
    now = time.time_ns()
    for name, age, older in (("2.pt", 100, False), ("1.pt", 200, True), ("3.pt", 0, False)):
        then = now - age * 10**9
        os.utime(put(tmp_path / name), ns=(then, then))
        assert listing.go_on(5) == [name]
        assert listing.older == [older]


def test_listing_takes_at_most_a_twentieth_of_the_time(listing: Listing, tmp_path: Path) -> None:
    listing.start(f"{tmp_path}/*.pt")
    listing.listing_takes = 10.0
    for number in range(40):
        put(tmp_path / f"{number}.pt")
        listing.go_on(50)
    assert 5 <= len(listing.listed) <= 1 + 2000 / (21 * 10)


def test_meaningless_inode_numbers_are_ignored(listing: Listing, tmp_path: Path) -> None:
    for name in ("a.pt", "b.pt"):
        put(tmp_path / name)
        listing.inodes[name] = 0xFFFFFFFF
    listing.start(f"{tmp_path}/*.pt")
    assert listing.go_on(100) == []
    listing.inodes = {"a.pt": 1, "b.pt": 2}  # another at each listing: SMB without server inodes
    assert listing.go_on(100) == []
    put(tmp_path / "a.pt", "replaced")
    assert listing.go_on(3) == ["a.pt"]


@pytest.mark.parametrize("at_the_start", [True, False])
@pytest.mark.parametrize("listens", [True, False])
@pytest.mark.parametrize("name", ["*.pt", "old.p[t]"])
def test_a_disk_that_fails_for_a_while_brings_nothing_new(
    listing: Listing, tmp_path: Path, at_the_start: bool, listens: bool, name: str
) -> None:
    (tmp_path / "out").mkdir()
    put(tmp_path / "out" / "old.pt")
    listing.failing = f"{tmp_path}/out" if at_the_start else "nothing"
    listing.start(f"{tmp_path}/out/{name}", notify=Inotify() if listens else None)
    assert listing.go_on(60) == []
    listing.failing = f"{tmp_path}/out"
    listing.folders.remounted()
    assert listing.go_on(60) == []
    assert [what.split(": ")[1] for what in listing.problems][:1] == [
        "Transport endpoint is not connected; checkpoints there are not detected"
    ]
    listing.failing = "nothing"
    assert listing.go_on(60) == []
    put(tmp_path / "out" / "old.pt", "replaced")
    listing.folders.remounted()  # instead of the events, which are not read here
    assert listing.go_on(60) == ["old.pt"]


def test_a_match_that_cannot_be_read_is_read_later(listing: Listing, tmp_path: Path) -> None:
    notify = Inotify()
    listing.start(f"{tmp_path}/*.pt", notify=notify)
    ways: list[Callable[[Path], object]] = [Path.touch, put]
    for number, make in enumerate(ways):
        listing.failing = f"{tmp_path}/{number}.pt"
        make(tmp_path / f"{number}.pt")
        for event in notify.read():
            listing.folders.on(event)
        assert listing.go_on(60) == []
        listing.failing = "nothing"
        assert listing.go_on(5) == [f"{number}.pt"]
    notify.close()


def test_memory_is_bounded(listing: Listing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "FOLDERS", 20)
    monkeypatch.setattr(folders, "MARKS", 50)
    monkeypatch.setattr(folder, "MARKS", 50)
    monkeypatch.setattr(matches, "WAITS", 5)
    monkeypatch.setattr(matches, "REPORTED", 5)
    for number in range(60):
        (tmp_path / f"{number}").mkdir()
    listing.start(f"{tmp_path}/*/x", f"{tmp_path}/*.pt")
    (problem,) = listing.problems
    assert problem.startswith("the globs lead through more than 20 folders")
    for number in range(10):
        (tmp_path / f"{number}.pt").touch()
    assert len(listing.go_on(5)) == 5, "the others were dropped"
    for number in range(60):
        (tmp_path / f"{number}.pt").touch()
    listing.go_on(5)
    assert list(listing.problems)[1] == "more than 50 matches: new ones are detected by inotify alone"
    assert len(listing.problems) == 2
