"""The matches that are still being written, and those that count as saved checkpoints.

A match waits from its creation until nothing has changed it for a while.  inotify reports opens and closes on this
machine; a match that another machine wrote, or that existed before the watch began, is only examined: it is complete
when two looks are equal.  Times are monotonic, in seconds.
"""

import time
from enum import Enum, auto
from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.helpers.checkpoint_watcher import disk
from ftrun.helpers.checkpoint_watcher.disk import FileLook
from ftrun.helpers.checkpoint_watcher.folder import WatchedFolder
from ftrun.helpers.checkpoint_watcher.globs import Globs, GlobStep
from ftrun.messages.activity import Saved

WAITS: Final = 10_000  # matches that wait at the same time; beyond that the oldest is dropped
REPORTED: Final = 1024  # last reported matches whose state is remembered
SETTLE: Final = 0.5  # a closed file that is not opened again for so long is complete
PATIENCE: Final = 5.0  # the same while a process has it open again: a reader, or a writer that continues
FOLDER_SETTLE: Final = 5.0  # the same for a folder and its content, at least,
FOLDER_SHARE: Final = 0.25  # and this share of the time that writing took: a slow disk also closes slowly
LOOKS: Final = 1.0  # between two looks at a match that is slow to settle


class FileEvent(Enum):
    """What happened to a match that was not renamed into place."""

    CREATED = auto()  # on this machine: by open, link, symlink, mkdir
    OPENED = auto()  # for reading or writing
    WRITTEN = auto()  # closed by a process that could write
    READ = auto()  # closed by a process that could only read
    FOUND = auto()  # found by a listing: new, or with another inode
    LOST = auto()  # events were lost: the known state may be wrong


class Wait(NamedTuple):
    """A match that does not count yet.  `due`: when to look at it; None: its creator has it open and will close it."""

    due: float | None
    opens: int = 0
    made: bool = False  # on this machine, and not closed by a writer since
    written: bool = False  # closed by a writer: no second look is needed unless it is opened again
    look: FileLook | None = None
    began: float = 0.0  # the first look
    since: float = 0.0  # since when it has had this state
    found: bool = False  # by a listing, and nothing has been reported of it since but opens and their ends

    @property
    def is_closed(self) -> bool:
        """Whether its writer closed it and no process has opened it since."""
        return self.written and not self.opens


def after(wait: Wait | None, what: FileEvent, now: float) -> Wait | None:
    """The wait after an event; None: there is nothing to wait for."""
    if what is FileEvent.CREATED:
        return Wait(now + SETTLE, made=True)
    if what is FileEvent.FOUND:
        return wait or Wait(now, found=True)
    if what is FileEvent.WRITTEN:
        opens = max(0, wait.opens - 1) if wait else 0
        return Wait(now + (PATIENCE if opens else SETTLE), opens, written=True)
    if wait is None:
        return None
    if what is FileEvent.OPENED:  # its creator opens it first: the kernel reports CREATED, then OPENED
        return wait._replace(opens=wait.opens + 1, due=None if wait.made else now + PATIENCE)
    if what is FileEvent.READ:
        opens = max(0, wait.opens - 1)
        return wait._replace(opens=opens) if opens else wait._replace(opens=0, due=now + SETTLE)
    return Wait(now + SETTLE)


def after_look(wait: Wait, look: FileLook | None, now: float, took: float = 0.0) -> tuple[Wait | None, bool]:
    """The result of a look: the remaining wait, and whether the match counts now.  `took`: the seconds that the look
    took; the next one is at least 20 times that later."""
    if look is None:
        return None, False
    if wait.is_closed:
        return None, True
    began = now if wait.look is None else wait.began
    since = wait.since if look == wait.look else now
    if look.folder:
        rest = max(FOLDER_SETTLE, FOLDER_SHARE * (since - began))
    else:
        rest = PATIENCE if wait.opens else SETTLE
    if now >= since + rest:
        return None, True
    due = max(min(since + rest, now + LOOKS), now + 20 * took)
    return wait._replace(due=due, look=look, began=began, since=since), False


def postponed(wait: Wait, now: float) -> Wait:
    """The wait when the disk does not answer, or when the match seems complete but is open for writing and its close
    may not be reported."""
    return wait._replace(due=now + LOOKS)


class Matches:
    """The caller empties `saved`."""

    def __init__(self, globs: Globs) -> None:
        self._globs = globs
        self._waits: dict[tuple[WatchedFolder, str], Wait] = {}
        self._reported: dict[str, FileLook] = {}
        self._last_written = float("-inf")  # of those that count
        self.saved: list[Saved] = []

    def due(self) -> float | None:
        return min((wait.due for wait in self._waits.values() if wait.due is not None), default=None)

    def waiting(self, folder: WatchedFolder, name: str) -> bool:
        return (folder, name) in self._waits

    def handle(self, folder: WatchedFolder, name: str, what: FileEvent) -> None:
        self._put(folder, name, after(self._waits.get((folder, name)), what, time.monotonic()))

    def lost(self) -> None:
        for folder, name in list(self._waits):
            self.handle(folder, name, FileEvent.LOST)

    def gone(self, folder: WatchedFolder, name: str) -> None:
        self._put(folder, name, None)
        self._reported.pop(folder.at(name), None)
        folder.marks.pop(hash(name), None)  # a successor may get the same inode number

    def left(self, folders: set[WatchedFolder]) -> None:
        for key in [key for key in self._waits if key[0] in folders]:
            del self._waits[key]

    def renamed(self, folder: WatchedFolder, name: str) -> None:
        """Handle a match that was renamed into place: it counts at once."""
        self._put(folder, name, None)
        try:
            look = disk.look(folder.at(name), fresh=not folder.local, walk=False)
        except OSError:
            self.handle(folder, name, FileEvent.FOUND)
            return
        if look is not None and fits(self._globs.step(folder.state, name), look):
            self._count(folder, name, look, renamed=True)

    def look(self) -> None:
        """Look at each match whose time has come.  Of those that count then, the one that was written last comes last:
        a listing has no order, and the last one is resumed from."""
        now, first = time.monotonic(), len(self.saved)
        for (folder, name), wait in list(self._waits.items()):
            if wait.due is not None and wait.due <= now:
                self._look(folder, name, wait)
        known = self._reported
        self.saved[first:] = sorted(self.saved[first:], key=lambda s: known[s.path].newest if s.path in known else 0)

    def count_unopened(self) -> None:
        """Count the files that were renamed into a new folder before it was watched, once the command has ended: its
        death would have closed, visibly for inotify, a file that it was still writing.  Nobody else may have it open
        for writing; on a network disk, where that is unknown, it must be as it was at the last look."""
        for (folder, name), wait in list(self._waits.items()):
            if not wait.found or wait.opens or folder.wd < 0:
                continue
            try:
                look = disk.look(folder.at(name), fresh=not folder.local, walk=False)
            except OSError:
                continue
            if look is None or look.folder or not fits(self._globs.step(folder.state, name), look):
                continue
            if not disk.busy(folder.at(name), False) if folder.local else look == wait.look:
                self._put(folder, name, None)
                self._count(folder, name, look, renamed=False)

    def _look(self, folder: WatchedFolder, name: str, wait: Wait) -> None:
        path, began = folder.at(name), time.monotonic()
        try:
            look = disk.look(path, fresh=not folder.local)
        except OSError:
            self._put(folder, name, postponed(wait, time.monotonic()))
            return
        now = time.monotonic()
        if look is not None and not fits(self._globs.step(folder.state, name), look):
            look = None
        still, counts = after_look(wait, look, now, now - began)
        if look is None or not counts:
            self._put(folder, name, still)
        elif folder.local and not wait.is_closed and disk.busy(path, look.folder):
            self._put(folder, name, postponed(wait, now))
        else:
            self._put(folder, name, None)
            self._count(folder, name, look, renamed=False)

    def _put(self, folder: WatchedFolder, name: str, wait: Wait | None) -> None:
        if wait is None:
            self._waits.pop((folder, name), None)
            return
        self._waits[folder, name] = wait
        if len(self._waits) > WAITS:
            del self._waits[next(iter(self._waits))]

    def _count(self, folder: WatchedFolder, name: str, look: FileLook, renamed: bool) -> None:
        """Count the match, unless the same state of this path was reported before: it was closed after its rename, or
        closed again unchanged."""
        path = folder.at(name)
        if self._reported.get(path) == look:
            return
        self._reported.pop(path, None)
        self._reported[path] = look
        if len(self._reported) > REPORTED:
            del self._reported[next(iter(self._reported))]
        folder.know(name, look)
        if name in folder.children:
            folder.children[name].newest = look.newest or None
        now, written = time.monotonic(), None
        if folder.local and look.newest:  # otherwise the time is that of another machine
            written = now - (time.time_ns() - look.newest) / 1e9
        older = not renamed and written is not None and written < self._last_written
        if written is not None:
            self._last_written = max(self._last_written, written)
        self.saved.append(Saved(path, now, renamed, written, older))


def fits(step: GlobStep, look: FileLook) -> bool:
    return step.match or (step.match_folder and look.folder)
