"""A folder in which a match can appear."""

from collections.abc import Iterator
from enum import Enum, auto
from typing import Final

from ftrun.helpers.checkpoint_watcher.globs import Globs, State
from ftrun.helpers.checkpoint_watcher.waits import Look

MARKS: Final = 200_000  # matches that are known


class How(Enum):
    """How a folder came to be where it is, and so what its content is to us."""

    THERE = auto()  # at the start, or mounted: not progress
    MADE = auto()
    RENAMED = auto()  # with all that is in it


class Folder:
    """What we know of one that exists.  `path` is empty for the root of the file system."""

    def __init__(self, path: str, name: str, parent: "Folder | None", state: State, globs: Globs) -> None:
        self.path, self.name, self.parent, self.state = path, name, parent, state
        self.literals = globs.literals(state)  # names that are asked for, not listed
        self.open = globs.open(state)  # others can fit too: it is listed
        self.children: dict[str, Folder] = {}
        # Entries that could not be looked at, and links that lead nowhere; and what their content will be to us.
        self.unsure: dict[str, How] = {}
        self.unread = False  # it could not be listed: what it holds then is no news
        self.identity = (-1, -1)  # device and inode
        self.local = True
        self.wd = -1
        self.marks: dict[int, int] = {}  # of each match that is known: hash of its name -> what is replaced with it
        self.listed = 0  # so many of them are of the last listing
        # Whether the inode numbers of a listing mean nothing here: marks are of size and time.  None: not known yet.
        self.exact: bool | None = None
        self.mtime_ns = self.listed_mtime_ns = -1
        self.again = False  # list it once more: it may have changed twice within a tick of its clock
        self.relist_at = 0.0

    @property
    def place(self) -> str:
        return self.path or "/"

    def at(self, name: str) -> str:
        return f"{self.path}/{name}"

    def mark(self, name: str, look: Look) -> int:
        """A match that is replaced has another mark.  A name that is asked for is looked at anyway: so has one that is
        overwritten."""
        if look.folder:
            return 0 if self.exact else look.ino
        return look.print if self.exact or name in self.literals else look.ino

    def know(self, name: str, look: Look) -> None:
        if len(self.marks) < MARKS:
            self.marks[hash(name)] = self.mark(name, look)

    def ancestors(self) -> "Iterator[Folder]":
        """Itself first."""
        folder: Folder | None = self
        while folder is not None:
            yield folder
            folder = folder.parent
