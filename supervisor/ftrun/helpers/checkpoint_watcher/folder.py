"""A folder in which a match can appear, or which is the content of a match."""

from collections.abc import Iterator
from enum import Enum, auto
from typing import Final

from ftrun.helpers.checkpoint_watcher.disk import FileLook
from ftrun.helpers.checkpoint_watcher.globs import Globs, Matching

MARKS: Final = 200_000  # known matches


class Origin(Enum):
    """How a folder came into existence, which decides whether its content counts as progress."""

    PRESENT = auto()  # it existed at the start, or was mounted: not progress
    CREATED = auto()
    RENAMED = auto()  # renamed into place with its content


Match = tuple["WatchedFolder", str]  # the folder that it lies in, and its name


class WatchedFolder:
    """The known state of an existing folder.  `path` is empty for the root of the file system."""

    def __init__(self, path: str, name: str, parent: "WatchedFolder | None", state: Matching, globs: Globs) -> None:
        self.path, self.name, self.parent, self.state = path, name, parent, state
        self.literals = globs.literals(state)  # names that are looked up, not listed
        self.open = globs.open(state)  # other names can match too, so it is listed
        self.children: dict[str, WatchedFolder] = {}
        self.content_of: Match | None = None  # a write to a file in here is one to that matched folder
        self.newest: int | None = None  # of the match itself: the time of its newest file when it was last read
        self.crowded = False  # it has too many folders for a watch on each
        # Entries that could not be read and dangling links, with the origin that their content will have.
        self.unresolved: dict[str, Origin] = {}
        self.unread = False  # it could not be listed: its content is not progress when it can be listed again
        self.identity = (-1, -1)  # device and inode
        self.local = True  # only this machine changes it, so that inotify reports everything
        self.wd = -1
        self.marks: dict[int, int] = {}  # hash of the name of each known match: its mark
        self.listed = 0  # number of marks from the last listing
        # Whether inode numbers in a listing are meaningless, so that marks use size and time.  None: unknown yet.
        self.exact: bool | None = None
        self.mtime_ns = self.listed_mtime_ns = -1
        self.again = False  # list it once more: it may have changed twice within a tick of its clock
        self.relist_at = 0.0

    @property
    def full_path(self) -> str:
        return self.path or "/"

    def at(self, name: str) -> str:
        return f"{self.path}/{name}"

    def mark(self, name: str, look: FileLook) -> int:
        """A number that changes when the match is replaced; for a literal name, which is looked up anyway, also
        when it is overwritten."""
        if look.folder:
            return 0 if self.exact else look.ino
        return look.print if self.exact or name in self.literals else look.ino

    def know(self, name: str, look: FileLook) -> None:
        if len(self.marks) < MARKS:
            self.marks[hash(name)] = self.mark(name, look)

    def ancestors(self) -> "Iterator[WatchedFolder]":
        """The folder itself, then its parents."""
        folder: WatchedFolder | None = self
        while folder is not None:
            yield folder
            folder = folder.parent
