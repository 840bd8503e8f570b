"""Copies files to and from a disk that may be slow, dead, full or shared.  Every call may block indefinitely, and
raises OSError if the disk fails."""

import json
import os
import re
import stat as st
from collections.abc import Callable
from typing import Any, Final

from ftrun.helpers import shared_folder
from ftrun.helpers.shared_folder import open_file
from ftrun.host import safe_files

CHUNK: Final = 1 << 20  # bytes
NOTE: Final = "mirror.json"
LOCK: Final = "mirror.lock"
LIMIT: Final = 1 << 20  # bytes of `mirror.json`
TOKEN: Final = re.compile("[0-9a-f]{16}", re.ASCII)


def regular(path: str) -> os.stat_result | None:
    """The status of a regular file; None if the path does not exist, or is not a regular file."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found if st.S_ISREG(found.st_mode) else None


def replace(source: str, target: str, moved: Callable[[], None] = lambda: None) -> None:
    """Replace `target` atomically; it is on disk when this returns.  `moved` is called after each chunk."""
    temporary = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.new")
    with open(source, "rb", opener=open_file) as inp:
        # The name is reused, so that a kill leaves at most one file behind: every writer holds the lock.
        with open(temporary, "wb", opener=open_file) as out:
            while piece := inp.read(CHUNK):
                out.write(piece)
                moved()
            out.flush()
            os.fsync(out.fileno())
        os.rename(temporary, target)


def append(source: str, target: str, base: int, rest: bool, moved: Callable[[], None] = lambda: None) -> None:
    """Append the rest of `source` to `target`, which had `base` bytes when `source` was started: complete lines; with
    `rest` also an unfinished last line.  The position follows from the size of `target` alone, so that copying resumes
    after a kill.  If the source is shorter than its copy, it was started anew, and the copy is truncated to `base`."""
    with (
        open(source, "rb", opener=open_file) as inp,
        open(target, "ab", buffering=0, opener=open_file) as out,
    ):
        position = os.fstat(out.fileno()).st_size
        if os.fstat(inp.fileno()).st_size < position - base:
            out.truncate(base)
            position = base
        inp.seek(position - base)
        before = position
        while piece := inp.read(CHUNK):
            complete_lines = piece[: piece.rfind(b"\n") + 1]
            piece = piece if rest or (not complete_lines and len(piece) == CHUNK) else complete_lines
            if not piece:
                break
            inp.seek(position - base + len(piece))
            view = memoryview(piece)
            while view:
                number = out.write(view) or 0
                position, view = position + number, view[number:]
            moved()
        if position != before:
            os.fsync(out.fileno())


def continues(source: str, target: str) -> bool:
    """Whether `source` begins with the content of `target`: compares the last 4 KiB of `target`."""
    target_status, source_status = regular(target), regular(source)
    if target_status is None or source_status is None or target_status.st_size > source_status.st_size:
        return target_status is None or not target_status.st_size
    start = max(0, target_status.st_size - 4096)
    with open(source, "rb", opener=open_file) as inp, open(target, "rb", opener=open_file) as other:
        inp.seek(start)
        other.seek(start)
        return inp.read(target_status.st_size - start) == other.read()


def content(path: str) -> bytes | None:
    """The content of a regular file, else None.  `ForeignContent` for more than LIMIT bytes."""
    return None if regular(path) is None else shared_folder.read(path, LIMIT)


def within(root: str, path: str) -> int:
    """A descriptor of a folder below `root`, which is created if it is missing.  No symbolic link is followed."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in path.split("/") if path else ():
        above = fd
        try:
            fd = safe_files.open_subfolder(name, above)
        finally:
            os.close(above)
    return fd


def load(folder: str) -> dict[str, Any]:
    """The `mirror.json` of a folder; empty if there is none, or it was not written by ftrun."""
    try:
        found = json.loads(shared_folder.read(f"{folder}/{NOTE}", LIMIT) or b"null")
        valid = TOKEN.fullmatch(found["token"]) and isinstance(found["base"], dict) and isinstance(found["remote"], str)
        return dict(found) if valid else {}
    except (shared_folder.ForeignContent, ValueError, TypeError, KeyError, RecursionError):
        return {}


def save(folder: str, note: dict[str, Any]) -> None:
    safe_files.replace(f"{folder}/{NOTE}", json.dumps(note).encode() + b"\n", fresh=f"{folder}/.{NOTE}.new")
