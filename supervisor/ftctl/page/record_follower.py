"""The records of a run dir as they are written.  Each has an id from which an interrupted stream can continue, also
after a restart of the server."""

import json
import os
import zlib
from collections import deque
from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.records.record_files import HEAD, GrowingFile, Record, record

BACK: Final = 256 << 10  # bytes that are read at the start
LONGEST: Final = 16 << 10  # bytes of a record that is passed on in full
HELD: Final = 256  # records


class StreamPosition(NamedTuple):
    """The end of a record: a checksum that identifies the file, as it may be replaced, and the offset in bytes."""

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


class HeldRecord(NamedTuple):
    """`position`: the end of the record; `text`: the record as JSON, in one line."""

    position: StreamPosition
    text: str


class Records(NamedTuple):
    """The records in memory, read up to `at`; those that end at `floor` or before have been dropped."""

    at: StreamPosition = StreamPosition(0, 0)
    floor: int = 0
    held: tuple[HeldRecord, ...] = ()

    def after(self, position: StreamPosition | None) -> tuple[bool, tuple[HeldRecord, ...]]:
        """The records after `position`; or True and all records, if they do not continue from there."""
        if position is None or position.file != self.at.file or not self.floor <= position.end <= self.at.end:
            return True, self.held
        return False, tuple(one for one in self.held if one.position.end > position.end)


class Follower:
    """Follows a growing file; one that was replaced or truncated is read from the start."""

    def __init__(self) -> None:
        self._records = Records()
        self._file = GrowingFile("")

    def read(self, path: str) -> Records:
        """With the new records, of 1 MiB at most.  OSError: the file cannot be read."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            size, head = os.fstat(fd).st_size, os.pread(fd, 256, 0)
        finally:
            os.close(fd)
        file = zlib.crc32(head.partition(b"\n")[0])
        if file != self._records.at.file or size < self._records.at.end:
            start = max(0, size - BACK)
            self._records, self._file = Records(StreamPosition(file, start), start), GrowingFile(path, start)
        self._file.path = path
        held, floor = deque(self._records.held), self._records.floor
        for end, line in self._file.block():
            if (found := record(line)) is not None:
                held.append(HeldRecord(StreamPosition(file, end), _short(found, len(line))))
        while len(held) > HELD:
            floor = held.popleft().position.end
        self._records = Records(StreamPosition(file, self._file.at), floor, tuple(held))
        return self._records


def _short(record: Record, size: int) -> str:
    if size > LONGEST:
        record = {name: record[name] for name in HEAD if name in record and len(str(record[name])) < 100}
        record["cut"] = f"{size} bytes"
    return json.dumps(record)
