"""The files that the program itself loads before its first step and saves after it, reported to the supervisor.

From these files the supervisor derives whether a job that reports nothing else makes progress: see
`ftrun/core/rules/policy.py`.
"""

from __future__ import annotations

import os
from time import monotonic_ns
from typing import Any

from . import layout as at
from ._beat import own_slot
from ._interrupt import deferred

MANY = 16  # files of each kind that are kept, the newest
PAUSE = 1_000_000_000  # ns between two wake-ups of the supervisor: a program may save many files in a second


class Files:
    """`resumed` and `saved`: versions by absolute path, in the order in which they were loaded and saved."""

    def __init__(self) -> None:
        self.resumed: dict[str, str] = {}
        self.forked()

    def forked(self) -> None:
        """Called in a forked child, which has saved nothing yet, but holds what its parent loaded."""
        self.saved: dict[str, str] = {}
        self.rang_at = 0

    def was_loaded(self, target: Any) -> None:
        """A load of `target`, a path or an open file, is complete.  A load after the first step is not a resume."""
        words = own_slot.words
        if words is None or not words[at.MOVED_AT]:
            _keep(self.resumed, _path(target), target)

    def was_saved(self, target: Any) -> None:
        """A save is complete.  A save before the first step contains no progress."""
        words = own_slot.words
        if words is None or not words[at.MOVED_AT]:
            return
        with deferred, own_slot.lock:
            if _keep(self.saved, _path(target), target):
                own_slot.write_text(at.SAVED, self._text())
                words[at.SAVED_AT] = now = monotonic_ns()
                if now - self.rang_at >= PAUSE:
                    self.rang_at = now
                    own_slot.ring()

    def _text(self) -> str:
        """The newest save first, then what was loaded, then the other saves, up to the size limit of the file."""
        saves = [f"S {version} {path}\n" for path, version in reversed(list(self.saved.items()))]
        loads = [f"L {version} {path}\n" for path, version in reversed(list(self.resumed.items()))]
        text, room = "", at.SAVED_BYTES
        for line in saves[:1] + loads + saves[1:]:
            room -= len(os.fsencode(line))
            if room >= 0:
                text += line
        return text


def _keep(files: dict[str, str], path: str | None, target: Any) -> bool:
    """Store the version of a file: its size and time of modification.  False for a file that is empty or has no path.

    A rename changes neither.  For a file that is still open for writing they may change, so its version is "-" and the
    number of its inode, which that of a loaded file has, too.
    """
    if path is None:
        return False
    content = os.path.join(path, ".metadata") if os.path.isdir(path) else path  # torch.distributed.checkpoint
    found = os.stat(content)
    if not found.st_size:
        return False
    files.pop(path, None)
    is_open = not isinstance(target, (str, bytes, os.PathLike)) and not getattr(target, "closed", False)
    saving = files is known.saved
    version = f"-{found.st_ino}" if saving and is_open else f"{found.st_size}.{found.st_mtime_ns}"
    files[path] = version if saving else f"{version}.{found.st_ino}"
    if len(files) > MANY:
        del files[next(iter(files))]
    return True


def _path(target: Any) -> str | None:
    """The real path of a path or an open file; None if it has no name, or one with a line break."""
    if not isinstance(target, (str, bytes, os.PathLike)):
        target = getattr(target, "name", None)
        if not isinstance(target, (str, bytes)):
            return None
    path = os.path.realpath(os.fsdecode(target))
    return None if "\n" in path or "\r" in path else path


known = Files()
os.register_at_fork(after_in_child=known.forked)
