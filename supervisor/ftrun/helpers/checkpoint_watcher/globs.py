"""Which paths match.  Pure.  The rules are those of `glob.glob(recursive=True)`, applied one folder at a time.

A folder has a state: the (glob, part) pairs against which its entries are matched.  At the end of a glob `**` matches
everything below, but not the folder itself.
"""

import fnmatch
import re
from collections.abc import Sequence
from typing import Final

from ftrun.core.named_tuple import NamedTuple

DEEP: Final = None  # the part `**`
Part = str | re.Pattern[str] | None
Matching = frozenset[tuple[int, int]]

_MAGIC: Final = re.compile(r"[*?[]")


class Glob(NamedTuple):
    """A glob from the root of the file system."""

    parts: tuple[Part, ...]
    folders: bool  # it ended in a slash: only folders match


class GlobStep(NamedTuple):
    """The result for one entry: the state below it, and whether it matches itself."""

    below: Matching
    match: bool
    match_folder: bool


def parse(text: str, cwd: str) -> Glob:
    """`cwd` is taken literally, whatever characters it contains."""
    parts = [_part(part) for part in _split(text)]
    before = [] if text.startswith("/") or not parts else _split(cwd)
    return Glob((*before, *parts), text.endswith("/"))


def _split(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _part(text: str) -> Part:
    if text == "**":
        return DEEP
    if not _MAGIC.search(text):
        return text
    hidden = "" if text.startswith(".") else r"(?!\.)"
    return re.compile(hidden + fnmatch.translate(text))


def _fits(part: Part, name: str) -> bool:
    if part is DEEP:
        return not name.startswith(".")
    return part == name if isinstance(part, str) else part.match(name) is not None


class Globs:
    def __init__(self, globs: Sequence[Glob]) -> None:
        self._globs = [glob for glob in globs if glob.parts]

    def root(self) -> Matching:
        return self._closed({(number, 0) for number in range(len(self._globs))})

    def _closed(self, pairs: set[tuple[int, int]]) -> Matching:
        """Add the pairs that follow from `**` matching no folder."""
        todo = list(pairs)
        for number, at in todo:
            parts = self._globs[number].parts
            if parts[at] is DEEP and at + 1 < len(parts) and (number, at + 1) not in pairs:
                pairs.add((number, at + 1))
                todo.append((number, at + 1))
        return frozenset(pairs)

    def step(self, state: Matching, name: str) -> GlobStep:
        below: set[tuple[int, int]] = set()
        match = match_folder = False
        for number, at in state:
            glob = self._globs[number]
            if not _fits(glob.parts[at], name):
                continue
            if glob.parts[at] is DEEP:
                below.add((number, at))
            if at + 1 == len(glob.parts):
                match_folder = True
                match = match or not glob.folders
            elif glob.parts[at] is not DEEP:  # else its closure has the next part
                below.add((number, at + 1))
        return GlobStep(self._closed(below), match, match_folder)

    def literals(self, state: Matching) -> frozenset[str]:
        """Names that match literally; `..` may be one, which no listing contains."""
        parts = (self._globs[number].parts[at] for number, at in state)
        return frozenset(part for part in parts if isinstance(part, str))

    def open(self, state: Matching) -> bool:
        """Whether other names can match."""
        return any(not isinstance(self._globs[number].parts[at], str) for number, at in state)

    def final(self, state: Matching) -> bool:
        """Whether an entry can match itself."""
        return any(at + 1 == len(self._globs[number].parts) for number, at in state)

    def deep(self, state: Matching) -> bool:
        """Whether the depth below is unlimited."""
        return any(self._globs[number].parts[at] is DEEP for number, at in state)

    def all_below(self, state: Matching) -> bool:
        """Whether each file that is written below is itself a match, except hidden files."""
        return any(self._globs[number].parts[at:] == (DEEP,) for number, at in state)
