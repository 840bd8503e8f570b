"""The lines of `events.jsonl` and `steps.jsonl`: files that may be large, damaged or still growing."""

import json
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.records.files import record_fields

TAIL: Final = 256 << 10  # bytes
LINE: Final = 1 << 20  # bytes of one record, and of one read forwards
FIRST_READ: Final = 64 << 10  # bytes at the end of a file: most who look back are done there, of however long a file
BLOCK: Final = 256 << 10  # bytes of one read backwards: a helper keeps the memory of the largest one
SEARCHED: Final = 64 << 20  # bytes that are searched for older records
PROGRESS: Final = b'"event": "progress"'
HEAD: Final = ("schema", "time", "mono", "event", "attempt")  # fields of every record
_HEAD: Final = frozenset(HEAD)
Record = dict[str, Any]
_DECODER: Final = json.JSONDecoder(parse_constant=lambda name: None)  # NaN and Infinity are no JSON


def parsed(line: bytes) -> Record | None:
    """The JSON object of this line; None if it is torn, or something else.  A field of a damaged value is left out."""
    found = _json(line)
    return record_fields.checked(found) if isinstance(found, dict) else None


def all_parsed(lines: Sequence[bytes]) -> Iterator[Record]:
    """What `parsed` makes of each line, without None: in half of the processor time, since they are parsed at once.

    Between two lines is a text that no file contains.  Only if it is every second value of the result, each line is
    one value; else one is torn or no JSON, and each is parsed by itself."""
    between = os.urandom(8).hex()
    values = _json(b"[%s]" % f',\n"{between}",\n'.encode().join(lines)) or []
    if len(values) != 2 * len(lines) - 1 or values[1::2] != [between] * (len(lines) - 1):
        values = map(_json, lines)
    return (record_fields.checked(value) for value in values if isinstance(value, dict))


def _json(content: bytes) -> Any:
    """None: it is no JSON."""
    try:
        return _DECODER.decode(content.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None


def record(line: bytes) -> Record | None:
    """The record in this line; None if the line is torn, or is no record."""
    found = parsed(line)
    return found if found is not None and is_record(found) else None


def is_record(found: Record) -> bool:
    return isinstance(found.get("event"), str)


def own_fields(found: Record, *hidden: str) -> list[tuple[str, Any]]:
    """What this record has beside the fields of every record, without those that are `hidden`."""
    left_out = _HEAD.union(hidden) if hidden else _HEAD
    return [(name, found[name]) for name in found if name not in left_out]


def last(path: str, limit: int = TAIL) -> list[Record]:
    """The records in the last `limit` bytes of this file, oldest first; none if it cannot be read."""
    return [found for line in last_lines(path, limit) if (found := record(line)) is not None]


def last_condensed(path: str) -> list[Record]:
    """The records as `last` returns them, but of the `progress` records, which may be most of them, only two: the
    newest, and the newest checkpoint."""
    found, missing = [], [PROGRESS, b'"by": "checkpoint"']
    for line in backwards(path, TAIL):
        if PROGRESS in line:
            marks = [mark for mark in missing if mark in line]
            if not marks:
                continue
            missing = [mark for mark in missing if mark not in marks]
        if (one := record(line)) is not None:
            found.append(one)
    return found[::-1]


def last_lines(path: str, limit: int) -> list[bytes]:
    """The complete lines in the last `limit` bytes, oldest first; none if the file cannot be read."""
    return list(backwards(path, limit))[::-1]


class Stretch(NamedTuple):
    """Whole lines of the file of this inode, by their first byte and the byte after the last one."""

    inode: int
    since: int
    until: int


_unmarked: dict[tuple[str, Sequence[bytes]], Stretch] = {}  # lines without any of the marks, as a search has found


def search_back(path: str, events: Sequence[str]) -> Iterator[Record]:
    """Records of these names, the newest first, within the last SEARCHED bytes.  What had none of them when it was
    searched before is not read again: a file of records only grows."""
    marks = tuple(f'"event": "{event}"'.encode() for event in events)
    for line in backwards(path, SEARCHED, marks, known=_unmarked):
        if any(mark in line for mark in marks) and (found := record(line)) is not None and found["event"] in events:
            yield found


def backwards(
    path: str,
    limit: int,
    marks: Sequence[bytes] = (b"",),
    end: int | None = None,
    known: dict[tuple[str, Sequence[bytes]], Stretch] | None = None,
) -> Iterator[bytes]:
    """The complete lines in the last `limit` bytes before `end`, the newest first.

    A block of the file without any of the marks is skipped, and so is a line of more than LINE bytes.  A disk error
    ends the iteration.  `known`: the newest stretch without the marks, which is left out from then on.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return
    try:
        found = os.fstat(fd)
        end = found.st_size if end is None else min(end, found.st_size)
        lowest, partial = max(0, end - limit), b""  # the rest of a line that begins in an earlier block
        size, seen = FIRST_READ, Stretch(found.st_ino, 0, 0)
        before = seen if known is None else known.get((path, marks), seen)
        if before.inode != found.st_ino or before.until > found.st_size:
            before = seen
        while end > lowest:
            if known is not None and end == before.until:
                known[path, marks] = seen = _joined(before, seen)
                end, partial = before.since, b""
                continue
            floor = before.until if before.until < end else 0
            start, size = max(lowest, floor, end - size), min(2 * size, BLOCK)
            content = os.pread(fd, end - start, start) + partial
            first = (content.find(b"\n") + 1 or len(content)) if start > floor else 0
            after = max(first, content.rfind(b"\n") + 1)
            block, end = content[first:after], start
            partial = content[:first] if first <= LINE else b""
            if any(mark in block for mark in marks):
                yield from reversed(block.split(b"\n")[:-1])
            elif known is not None and block:
                known[path, marks] = seen = _joined(Stretch(found.st_ino, start + first, start + after), seen)
    except OSError:
        return
    finally:
        os.close(fd)


def _joined(older: Stretch, newer: Stretch) -> Stretch:
    """The newer one, which the older one extends if it ends where that begins."""
    if newer.since == newer.until:
        return older
    return newer._replace(since=older.since) if older.until == newer.since else newer


class GrowingFile:
    """The complete lines of a file from the byte `at` on, which may be within a line.  An incomplete line at the end is
    read once it is complete; a line of more than LINE bytes is skipped.  The methods raise OSError."""

    def __init__(self, path: str, at: int = 0) -> None:
        self.path, self.at = path, at
        self._skipping = at > 0  # the rest of a line that began before `at`

    def next_lines(self) -> list[bytes]:
        """The next lines, LINE bytes at most."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            size = os.fstat(fd).st_size  # 0 for what is not a file, and may have no end
            self.at = min(self.at, size)  # it may have been truncated
            content = os.pread(fd, min(LINE, size - self.at), self.at)
        finally:
            os.close(fd)
        lines = content.split(b"\n")
        rest = len(lines.pop())
        self.at += len(content) - rest
        if lines and self._skipping:
            self._skipping = False
            del lines[0]
        if rest == LINE:
            self.at, self._skipping = self.at + LINE, True
        return lines

    def block(self) -> list[tuple[int, bytes]]:
        """The same, each with the offset of its end."""
        lines, end, found = self.next_lines(), self.at, []
        for line in reversed(lines):
            found.append((end, line))
            end -= len(line) + 1
        return found[::-1]

    def _blocks(self) -> Iterator[list[bytes]]:
        before = -1
        while before != self.at:
            before = self.at
            yield self.next_lines()

    def lines(self) -> Iterator[bytes]:
        """All lines up to the present end of the file."""
        return chain.from_iterable(self._blocks())

    def parsed(self, marks: Sequence[bytes] = ()) -> Iterator[Record]:
        """The JSON objects of these lines; if there are marks, of the lines that contain one of them."""
        for lines in self._blocks():
            yield from all_parsed([one for one in lines if any(mark in one for mark in marks)] if marks else lines)

    def seek_end(self) -> None:
        """Go to the end of the last complete line."""
        with open(self.path, "rb") as file:
            file.seek(start := max(0, os.fstat(file.fileno()).st_size - LINE))
            self.at, self._skipping = start + file.read(LINE).rfind(b"\n") + 1, False
