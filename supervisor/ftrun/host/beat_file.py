"""The beat file (`ftrun_hooks/layout.py`): PID 1's access to it, by system calls alone, and what a slot says, for PID 1
and for other readers.

A mapping of the file would end PID 1 with SIGBUS as soon as the command truncates it.  A read of what is no longer
there returns less, and here that is zeros.
"""

import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from ftrun.core.machine.values import Rank, SavedFile, Section
from ftrun.host import procfs
from ftrun.host.signals import writing
from ftrun_hooks import layout as at

SLOT_BYTES: Final = at.SLOT_WORDS * at.WORD
CHUNK: Final = 128  # slots that one system call reads; a larger buffer would only cost PID 1 memory
MAGIC: Final = at.MAGIC.to_bytes(at.WORD, sys.byteorder)
LOST: Final = (
    "was deleted by the command: heartbeats may not be seen any more, so silence counts only for what has moved since"
)
REFUSED: Final = (errno.EPERM, errno.ENOSYS)
NS: Final = 1e9
MAX_STEP: Final = 1 << 63  # as in messages/state.py
Periods = Sequence[tuple[float, float]]  # start and end, in seconds


class BeatFile:
    """The open beat file at `path`.  Raises OSError if it cannot be created or has no space."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._touch = 0
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._buffer = bytearray(CHUNK * SLOT_BYTES)
        self._chunk = memoryview(self._buffer).cast("Q")
        self._periods: tuple[tuple[int, int], ...] = ()
        try:
            self._allocate()
        except OSError:
            os.close(self.fd)
            raise
        self.write_header()

    def write_header(self) -> None:
        """Write what the hooks look for before they claim a slot.  No read is planned."""
        self._periods, self._touch = (), 0
        self._write(at.H_MAGIC, at.MAGIC)
        self._write(at.H_NEXT_LOOK, at.NO_LOOK)
        self._write(at.H_TOUCH, 0)

    def write_touch(self, state: int) -> None:
        """Write for other readers what the touch file is."""
        if state != self._touch:
            self._write(at.H_TOUCH, state)
            self._touch = state

    def rows(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield the first word and all words of each slot that is in use, in the order of the file.  A slot that is
        being written may be half old."""
        for first in range(at.HEADER_WORDS, at.HEADER_WORDS + at.SLOTS * at.SLOT_WORDS, CHUNK * at.SLOT_WORDS):
            count = os.preadv(self.fd, [self._buffer], first * at.WORD)
            if count < len(self._buffer):
                self._buffer[count:] = bytes(len(self._buffer) - count)
            words = self._chunk
            magics, pids = words[at.MAGIC_WORD :: at.SLOT_WORDS].tolist(), words[at.PID :: at.SLOT_WORDS].tolist()
            if not any(magics) and not any(pids):
                continue  # as most are: this saves half of the time of a read
            for slot, magic, pid in zip(range(0, len(words), at.SLOT_WORDS), magics, pids, strict=True):
                if magic or pid:
                    yield first + slot, words[slot : slot + at.SLOT_WORDS].tolist()

    def row(self, slot: int) -> Sequence[int]:
        """Return all words of the slot that begins at this word."""
        content = os.pread(self.fd, SLOT_BYTES, slot * at.WORD)
        return memoryview(content.ljust(SLOT_BYTES, b"\0")).cast("Q").tolist()

    def clear(self, slot: int) -> None:
        self._put(slot, bytes(SLOT_BYTES))

    def write_plan(self, deadline: float | None, times: Periods | None) -> None:
        """Write to the header when the slots are read next, and the last periods that are excluded from all timeouts;
        `times` None leaves the periods unchanged."""
        self._write(at.H_NEXT_LOOK, at.NO_LOOK if deadline is None else int(deadline * NS))
        if times is None:
            return
        last = tuple((int(since * NS), int(until * NS)) for since, until in times[-at.FREEZES :])
        periods = last + ((0, 0),) * (at.FREEZES - len(last))
        if periods == self._periods:
            return
        for number, (since, until) in enumerate(periods):
            word = at.H_FREEZES + 2 * number
            self._write(word + 1, 0)  # a concurrent reader sees no period
            self._write(word, since)
            self._write(word + 1, until)
        self._periods = periods

    def header(self) -> Sequence[int]:
        size = at.HEADER_WORDS * at.WORD
        return memoryview(os.pread(self.fd, size, 0).ljust(size, b"\0")).cast("Q")

    @property
    def is_named(self) -> bool:
        """Whether this is still the file at its path."""
        try:
            return os.stat(self._path).st_ino == os.fstat(self.fd).st_ino
        except OSError:
            return False

    @property
    def is_damaged(self) -> bool:
        """Whether the file is shorter than it was made, or was so and has lost its header."""
        magic = os.pread(self.fd, at.WORD, at.H_MAGIC * at.WORD)
        return magic != MAGIC or os.fstat(self.fd).st_size < at.FILE_BYTES

    def extend(self) -> None:
        """Give the file its size and its header again.  Raises OSError if the memory file system is full."""
        self._allocate()
        self.write_header()

    def _allocate(self) -> None:
        """Allocate the complete file, so that no store to it can find the memory file system full.  Raises OSError."""
        try:
            os.posix_fallocate(self.fd, 0, at.FILE_BYTES)
        except OSError as error:
            if error.errno not in REFUSED:
                raise
            # A seccomp profile refuses posix_fallocate; writing allocates the space as well.
            size = os.fstat(self.fd).st_size
            with writing():
                while size < at.FILE_BYTES:
                    size += os.pwrite(self.fd, bytes(at.FILE_BYTES - size), size)

    def _write(self, word: int, value: int) -> None:
        self._put(word, value.to_bytes(at.WORD, sys.byteorder))

    def _put(self, word: int, content: bytes) -> None:
        """Write these bytes; where the file system has no room for them, nothing changes."""
        with suppress(OSError):  # the command truncated the file and took its space
            os.pwrite(self.fd, content, word * at.WORD)

    def close(self) -> None:
        os.close(self.fd)


# --- what a slot says -------------------------------------------------------------------------------------------------


def rank(row: Sequence[int], credit: int, open_now: tuple[Section, ...], text: Callable[[str], str | None]) -> Rank:
    """Convert the words of a slot.  `credit` must be read before the row: a heartbeat moves MOVED_AT, then clears the
    credit.  `text` returns the content of a file of the beat folder, or None."""
    number, flags = row[at.RANK], row[at.FLAGS]
    saved_files = text(at.SAVED) if row[at.SAVED_AT] else None
    return Rank(
        rank=number,
        pid=row[at.PID],
        claimed_at=row[at.CLAIMED_AT] / NS,
        alive_at=max(row[at.ALIVE_AT], row[at.MOVED_AT]) / NS or None,
        moved_at=row[at.MOVED_AT] / NS if row[at.MOVED_AT] else None,
        step=_step(row[at.STEP]),
        credit=max(credit, row[at.CREDIT]) / NS,
        done=bool(flags & at.DONE),
        fatal=(text(at.FAIL) or "reported by the rank") if flags & at.FATAL else None,
        checkpoint_step=_step(row[at.CHECKPOINT_STEP]),
        checkpoint_path=text(at.CHECKPOINT) if row[at.CHECKPOINT_STEP] else None,
        sections=open_now,
        broken=_name(row[at.BROKEN_NAME :]) if row[at.BROKEN_AT] > row[at.MOVED_AT] else None,
        intervals=row[at.INTERVALS],
        usual=row[at.USUAL] / NS,
        longest=row[at.LONGEST] / NS,
        slowest_start=row[at.SLOWEST_START] / NS,
        saved=_files(saved_files, "S") if saved_files else (),
        resumed=_files(saved_files, "L") if saved_files else (),
        ranked=not row[at.UNRANKED],
        parents=tuple(filter(None, row[at.PARENTS : at.PARENTS + at.PARENTS_KEPT])),
        source=_source(flags >> at.SOURCE_SHIFT & 0xFF),
    )


def frameworks(header: Sequence[int]) -> tuple[str, ...]:
    """The libraries for training that processes of the command have imported."""
    return tuple(name for number, name in enumerate(at.FRAMEWORKS) if header[at.H_FRAMEWORKS + number])


def _source(number: int) -> str:
    return at.FRAMEWORKS[number - 1] if 0 < number <= len(at.FRAMEWORKS) else ""


def sections(row: Sequence[int]) -> tuple[Section, ...]:
    """Return the open sections, the outermost first."""
    open_sections = []
    for level in range(min(row[at.DEPTH], at.SECTIONS)):
        entry = row[at.SECTION_TABLE + level * at.SECTION_WORDS : at.SECTION_TABLE + (level + 1) * at.SECTION_WORDS]
        flags = entry[at.S_TIMEOUT]
        seconds = (flags & ~at.SIDE & ~at.AUTOMATIC) / NS or None
        side, automatic = bool(flags & at.SIDE), bool(flags & at.AUTOMATIC)
        open_sections.append(Section(_name(entry[at.S_NAME :]), entry[at.S_STARTED] / NS, seconds, side, automatic))
    return tuple(open_sections)


def _files(text: str, kind: str) -> tuple[SavedFile, ...]:
    """Return the entries of one kind in `saved-<rank>`, the newest last."""
    lines = [line.split(" ", 2) for line in text.split("\n")]
    return tuple(SavedFile(line[2], line[1]) for line in reversed(lines) if len(line) == 3 and line[0] == kind)


def has_plausible_times(row: Sequence[int], now: float) -> bool:
    """Return whether no time in the slot lies in the future; otherwise the slot was not written by the hooks."""
    return max(row[at.CLAIMED_AT], row[at.ALIVE_AT], row[at.MOVED_AT]) <= (now + 60) * NS


def is_alive(pid: int, start: int) -> bool:
    """Return whether the process that claimed a slot still exists."""
    process = procfs.stat(pid)
    return process is not None and process.start == start and not process.ended


def _step(word: int) -> int | None:
    """Return None also for a step that no program can reach: it would be kept as the highest step."""
    return word - 1 if 0 < word <= MAX_STEP else None


def _name(words: Sequence[int]) -> str:
    """Decode the name at the beginning of these words."""
    content = b"".join(word.to_bytes(at.WORD, sys.byteorder) for word in words[: at.NAME_BYTES // at.WORD])
    return content.partition(b"\0")[0].decode("utf-8", "replace")
