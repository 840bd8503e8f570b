"""The end of the records: what happened last, in a file that may be large, torn or still growing."""

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

TAIL: Final = 256 << 10  # bytes
LINE: Final = 1 << 20  # bytes of one record
FAR: Final = 64 << 20  # bytes, that are searched for what happened longer ago
PROGRESS: Final = b'"event": "progress"'
Record = dict[str, Any]


def record(line: bytes) -> Record | None:
    """None for a line that is torn, or no record."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None


def last(path: str, limit: int = TAIL) -> list[Record]:
    """The records in the last `limit` bytes of this file, oldest first; none where it cannot be read."""
    return [found for line in lines(path, limit) if (found := record(line)) is not None]


def telling(path: str, limit: int = TAIL) -> list[Record]:
    """The same, but of progress, which may be most of it, only the newest and the newest checkpoint."""
    found, missing = [], [PROGRESS, b'"by": "checkpoint"']
    for line in backwards(path, limit):
        if PROGRESS in line:
            wanted = [mark for mark in missing if mark in line]
            if not wanted:
                continue
            missing = [mark for mark in missing if mark not in wanted]
        if (one := record(line)) is not None:
            found.append(one)
    return found[::-1]


def lines(path: str, limit: int) -> list[bytes]:
    """The whole lines in the last `limit` bytes, oldest first; none where it cannot be read."""
    return list(backwards(path, limit))[::-1]


def back(path: str, events: Sequence[str]) -> Iterator[Record]:
    """Records of these names, the newest first, as far back as is searched."""
    marks = [f'"event": "{event}"'.encode() for event in events]
    for line in backwards(path, FAR, marks):
        if any(mark in line for mark in marks) and (found := record(line)) is not None and found["event"] in events:
            yield found


def backwards(path: str, limit: int, marks: Sequence[bytes] = (b"",), end: int | None = None) -> Iterator[bytes]:
    """The whole lines in the last `limit` bytes before `end`, the newest first.

    A stretch of the file without any of the marks is passed over, and so is a line of more than LINE bytes.  An error
    of the disk is the end.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return
    try:
        end = os.fstat(fd).st_size if end is None else end
        least, begun = max(0, end - limit), b""  # the rest of a line that begins further up
        while end > least:
            start = max(least, end - LINE)
            content = os.pread(fd, end - start, start) + begun
            first = content.find(b"\n") + 1 if start else 0
            whole, end = content[first : content.rfind(b"\n") + 1], start
            begun = content[:first] if first <= LINE else b""
            if any(mark in whole for mark in marks):
                yield from reversed(whole.split(b"\n")[:-1])
    except OSError:
        return
    finally:
        os.close(fd)
