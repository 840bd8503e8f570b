"""The records of a run dir as they come, each with an id by which a stream that was cut goes on, in a server that was
started again too."""

import json
import os
import zlib
from collections import deque
from typing import Any, Final, NamedTuple

from ftrun.views.record_tail import record as parsed

BACK: Final = 256 << 10  # bytes, at the beginning
CHUNK: Final = 1 << 20  # bytes at a time
LONGEST: Final = 16 << 10  # bytes of one record that are passed on
HELD: Final = 256  # records


class StreamPosition(NamedTuple):
    """The end of a record: in which file (one that is put in its place is another), after how many bytes."""

    file: int
    end: int

    def __str__(self) -> str:
        return f"{self.file:08x}-{self.end}"

    @classmethod
    def of(cls, text: str) -> "StreamPosition | None":
        file, dash, end = text.partition("-")
        fits = dash and len(file) == 8 and len(end) < 20 and end.isdecimal() and end.isascii()
        try:
            return cls(int(file, 16), int(end)) if fits else None
        except ValueError:
            return None


class HeldRecords(NamedTuple):
    """One record: where it ends, and itself as JSON, in one line."""

    place: StreamPosition
    text: str


class Records(NamedTuple):
    """What is held: read as far as `at`; records that end at `floor` or before are no longer there."""

    at: StreamPosition = StreamPosition(0, 0)
    floor: int = 0
    held: tuple[HeldRecords, ...] = ()

    def after(self, place: StreamPosition | None) -> tuple[bool, tuple[HeldRecords, ...]]:
        """What came after it.  True: all that is held, because it does not follow on what ended there."""
        if place is None or place.file != self.at.file or not self.floor <= place.end <= self.at.end:
            return True, self.held
        return False, tuple(one for one in self.held if one.place.end > place.end)


class Follower:
    """Follows a file that grows; one that is put in its place, or is shorter now, is read anew."""

    def __init__(self) -> None:
        self._records = Records()
        self._amid = False  # of a line whose beginning was passed over

    def read(self, path: str) -> Records:
        """With what has come, 1 MiB at most.  OSError: there is nothing to read."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            size = os.fstat(fd).st_size
            file = zlib.crc32(os.pread(fd, 256, 0).partition(b"\n")[0])
            if file != self._records.at.file or size < self._records.at.end:
                start = max(0, size - BACK)
                self._records, self._amid = Records(StreamPosition(file, start), start), start > 0
            content = os.pread(fd, CHUNK, self._records.at.end)
        finally:
            os.close(fd)
        if content:
            self._records = self._taken(content)
        return self._records

    def _taken(self, content: bytes) -> Records:
        (file, end), floor, before = self._records
        held = deque(before)
        *lines, rest = content.split(b"\n")
        for line in lines:
            end += len(line) + 1
            if not self._amid and (found := parsed(line)) is not None:
                held.append(HeldRecords(StreamPosition(file, end), _short(found, len(line))))
            self._amid = False
        while len(held) > HELD:
            floor = held.popleft().place.end
        if len(rest) == CHUNK:
            end, self._amid = end + len(rest), True
        return Records(StreamPosition(file, end), floor, tuple(held))


def _short(record: dict[str, Any], size: int) -> str:
    if size > LONGEST:
        kept = ("schema", "time", "mono", "event", "attempt")
        record = {name: record[name] for name in kept if name in record and len(str(record[name])) < 100}
        record["cut"] = f"{size} bytes"
    return json.dumps(record)
