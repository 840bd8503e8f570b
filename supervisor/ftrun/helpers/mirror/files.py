"""Copying files to and from a disk that may be slow, dead, full or shared.  Every call may block as long as it likes;
OSError: the disk does not do it."""

import errno
import json
import os
import re
import stat as st
from collections.abc import Callable
from typing import Any, Final

from ftrun.host import bounded_read, safe_files

CHUNK: Final = 1 << 20  # bytes
NOTE: Final = "mirror.json"
LOCK: Final = "mirror.lock"
LIMIT: Final = 1 << 20  # bytes of a note
TOKEN: Final = re.compile("[0-9a-f]{16}", re.ASCII)


def regular(path: str) -> os.stat_result | None:
    """None where there is no such file, or something else than a file."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found if st.S_ISREG(found.st_mode) else None


def replace(source: str, target: str, moved: Callable[[], None] = lambda: None) -> None:
    """The old content or the new one, whatever happens, and on disk when this returns; `moved` after each chunk."""
    fresh = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.new")
    with open(source, "rb", opener=_unfollowed) as inp:
        # One name again and again, so that a kill leaves at most one behind: whoever writes here has the lock.
        with open(fresh, "wb", opener=_unfollowed) as out:
            while piece := inp.read(CHUNK):
                out.write(piece)
                moved()
            out.flush()
            os.fsync(out.fileno())
        os.rename(fresh, target)


def append(source: str, target: str, base: int, rest: bool, moved: Callable[[], None] = lambda: None) -> None:
    """What `target` lacks of `source`, which was begun when `target` had `base` bytes; whole lines, `rest`: and the
    last one that is none yet.  Where it stopped is told by the size of `target` alone: killed over it, it goes on.
    A source that is shorter than what was copied of it was begun anew: so is the copy."""
    with open(source, "rb", opener=_unfollowed) as inp, open(target, "ab", buffering=0, opener=_unfollowed) as out:
        at = os.fstat(out.fileno()).st_size
        if os.fstat(inp.fileno()).st_size < at - base:
            out.truncate(base)
            at = base
        inp.seek(at - base)
        before = at
        while piece := inp.read(CHUNK):
            whole_lines = piece[: piece.rfind(b"\n") + 1]
            piece = piece if rest or (not whole_lines and len(piece) == CHUNK) else whole_lines
            if not piece:
                break
            inp.seek(at - base + len(piece))
            view = memoryview(piece)
            while view:
                number = out.write(view) or 0
                at, view = at + number, view[number:]
            moved()
        if at != before:
            os.fsync(out.fileno())


def continues(source: str, target: str) -> bool:
    """Whether `target` is what `source` began with, by the end of it."""
    there, here = regular(target), regular(source)
    if there is None or here is None or there.st_size > here.st_size:
        return there is None or not there.st_size
    start = max(0, there.st_size - 4096)
    with open(source, "rb", opener=_unfollowed) as inp, open(target, "rb", opener=_unfollowed) as other:
        inp.seek(start)
        other.seek(start)
        return inp.read(there.st_size - start) == other.read()


def content(path: str) -> bytes | None:
    """Of a note; None where there is no file.  ValueError for more than LIMIT bytes."""
    if regular(path) is None:
        return None
    return bounded_read.read(_unfollowed(path, os.O_RDONLY), LIMIT)


def within(root: str, path: str) -> int:
    """A descriptor of a folder below `root`, made where there is none; no link on the way is followed."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in path.split("/") if path else ():
        above = fd
        try:
            fd = safe_files.open_subfolder(name, above)
        finally:
            os.close(above)
    return fd


def load(folder: str) -> dict[str, Any]:
    """The note in a folder; empty where there is none that is ours."""
    try:
        fd = os.open(f"{folder}/{NOTE}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        found = json.loads(bounded_read.read(fd, LIMIT))
        right = TOKEN.fullmatch(found["token"]) and isinstance(found["base"], dict) and isinstance(found["remote"], str)
        return dict(found) if right else {}
    except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
        return {}
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return {}  # a link is none of ours


def save(folder: str, note: dict[str, Any]) -> None:
    fresh = f"{folder}/.{NOTE}.new"
    with open(fresh, "w", encoding="ascii", opener=_unfollowed) as out:
        out.write(json.dumps(note) + "\n")
        out.flush()
        os.fsync(out.fileno())
    os.rename(fresh, f"{folder}/{NOTE}")


def _unfollowed(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
