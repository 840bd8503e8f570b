"""The matches that are still being written, and those that count as saved checkpoints."""

import time
from typing import Final, NamedTuple

from ftrun.helpers.checkpoint_watcher import disk
from ftrun.helpers.checkpoint_watcher.folder import Folder
from ftrun.helpers.checkpoint_watcher.globs import Globs, Step
from ftrun.helpers.checkpoint_watcher.waits import FileEvent, Look, Wait, after, after_look, is_closed, postponed

WAITS: Final = 10_000  # matches that wait at the same time; beyond that the oldest is dropped
REPORTED: Final = 1024  # last reported matches whose state is remembered


class SavedMatch(NamedTuple):
    """A match that counts.  `mono`: the monotonic time when it was found complete."""

    path: str
    mono: float
    renamed: bool


class Matches:
    """The caller empties `saved`."""

    def __init__(self, globs: Globs) -> None:
        self._globs = globs
        self._waits: dict[tuple[Folder, str], Wait] = {}
        self._reported: dict[str, Look] = {}
        self.saved: list[SavedMatch] = []

    def due(self) -> float | None:
        return min((wait.due for wait in self._waits.values() if wait.due is not None), default=None)

    def waiting(self, folder: Folder, name: str) -> bool:
        return (folder, name) in self._waits

    def tell(self, folder: Folder, name: str, what: FileEvent) -> None:
        self._put(folder, name, after(self._waits.get((folder, name)), what, time.monotonic()))

    def lost(self) -> None:
        for folder, name in list(self._waits):
            self.tell(folder, name, FileEvent.LOST)

    def gone(self, folder: Folder, name: str) -> None:
        self._put(folder, name, None)
        self._reported.pop(folder.at(name), None)
        folder.marks.pop(hash(name), None)  # a successor may get the same inode number

    def left(self, folders: set[Folder]) -> None:
        for key in [key for key in self._waits if key[0] in folders]:
            del self._waits[key]

    def renamed(self, folder: Folder, name: str) -> None:
        """Handle a match that was renamed into place: it counts at once."""
        self._put(folder, name, None)
        try:
            look = disk.look(folder.at(name), fresh=not folder.local, walk=False)
        except OSError:
            return self.tell(folder, name, FileEvent.FOUND)
        if look is not None and fits(self._globs.step(folder.state, name), look):
            self._count(folder, name, look, renamed=True)
        return None

    def look(self) -> None:
        """Look at each match whose time has come."""
        now = time.monotonic()
        for (folder, name), wait in list(self._waits.items()):
            if wait.due is None or wait.due > now:
                continue
            self._look(folder, name, wait)

    def _look(self, folder: Folder, name: str, wait: Wait) -> None:
        path, began = folder.at(name), time.monotonic()
        try:
            look = disk.look(path, fresh=not folder.local)
        except OSError:
            return self._put(folder, name, postponed(wait, time.monotonic()))
        now = time.monotonic()
        if look is not None and not fits(self._globs.step(folder.state, name), look):
            look = None
        still, counts = after_look(wait, look, now, now - began)
        if look is None or not counts:
            self._put(folder, name, still)
        elif folder.local and not is_closed(wait) and disk.busy(path, look.folder):
            self._put(folder, name, postponed(wait, now))
        else:
            self._put(folder, name, None)
            self._count(folder, name, look, renamed=False)
        return None

    def _put(self, folder: Folder, name: str, wait: Wait | None) -> None:
        if wait is None:
            self._waits.pop((folder, name), None)
            return
        self._waits[folder, name] = wait
        if len(self._waits) > WAITS:
            del self._waits[next(iter(self._waits))]

    def _count(self, folder: Folder, name: str, look: Look, renamed: bool) -> None:
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
        self.saved.append(SavedMatch(path, time.monotonic(), renamed))


def fits(step: Step, look: Look) -> bool:
    return step.match or (step.match_folder and look.folder)
