"""The ranks in the beat file, for a reader that changes, repairs or creates nothing in it."""

import os
import time
from typing import Final

from ftrun.core.machine.values import TOUCH, Rank
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules.ranks import one_each
from ftrun.host import beat_file
from ftrun.host.beat_file import LOST, NS
from ftrun_hooks import layout as at

FRESH: Final = 2.0  # s; a rank with a younger heartbeat is alive, and its process is not checked
TRIES: Final = 4


class BeatFileContent(NamedTuple):
    """`saved_at`: when the newest checkpoint was reported.  `problem`: why ranks may be missing.
    `frameworks`: the libraries for training that the command has imported."""

    ranks: tuple[Rank, ...] = ()
    saved_at: float | None = None
    problem: str | None = None
    frameworks: tuple[str, ...] = ()


def read(folder: str, now: float, spawned_at: float, here: bool, fresh: float = FRESH) -> BeatFileContent:
    """All ranks that claimed a slot; `here`: the pids are of this PID namespace.  `fresh`: a younger heartbeat shows
    that a process lives.  Never raises.

    The file is read, not mapped: the command may truncate it at any time, which would end this process by SIGBUS.
    """
    try:
        fd = os.open(f"{folder}/{at.BEATS}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            return _read(fd, folder, now, spawned_at, here, fresh)
        finally:
            os.close(fd)
    except OSError as error:
        if here and isinstance(error, FileNotFoundError):  # elsewhere the folder need not be visible
            return BeatFileContent(problem=f"{folder} {LOST}")
        return BeatFileContent(problem=f"{folder}: the heartbeats cannot be read ({error.strerror})")


def _read(fd: int, folder: str, now: float, spawned_at: float, here: bool, fresh: float) -> BeatFileContent:
    # Twice: a heartbeat first sets MOVED_AT, then clears CREDIT, so the credit is taken from the earlier read.
    before, content = (os.pread(fd, at.FILE_BYTES, 0) for _ in range(2))
    if len(before) != at.FILE_BYTES or len(content) != at.FILE_BYTES:
        return BeatFileContent(problem=f"{folder}/{at.BEATS} is truncated: no heartbeats can be read")
    credits, slots = memoryview(before).cast("Q"), memoryview(content).cast("Q")
    found, times, unknown = [], [0], 0
    for index, magic in enumerate(slots[at.HEADER_WORDS :: at.SLOT_WORDS].tolist()):
        if not magic:
            continue
        if magic != at.MAGIC:
            unknown += 1
            continue
        start = at.HEADER_WORDS + index * at.SLOT_WORDS
        row = slots[start : start + at.SLOT_WORDS].tolist()
        if row[at.SEQUENCE] % 2 or row[at.SEQUENCE] != credits[start + at.SEQUENCE]:
            row = _settled(fd, start)
        if beat_file.has_plausible_times(row, now):
            found.append(_rank(row, credits[start + at.CREDIT], now, here, fresh))
            times.append(row[at.CHECKPOINT_AT])
    ranks = one_each(found)
    if slots[at.H_TOUCH] != at.TOUCH_PAST:
        ranks += _touch_file(folder, now, spawned_at)
    problem = f"{folder}/{at.TOUCH} {LOST}" if slots[at.H_TOUCH] == at.TOUCH_LOST else None
    if unknown:
        problem = f"{unknown} beat slots have another layout version and are not read"
    return BeatFileContent(ranks, max(times) / NS or None, problem, beat_file.frameworks(slots))


def _settled(fd: int, start: int) -> list[int]:
    """The slot in a consistent state; without its sections if its writer was stopped in the middle of a change."""
    row: list[int] = []
    for _ in range(TRIES):
        content = os.pread(fd, at.SLOT_WORDS * at.WORD, start * at.WORD)
        row = memoryview(content.ljust(at.SLOT_WORDS * at.WORD, b"\0")).cast("Q").tolist()
        if row[at.SEQUENCE] % 2 == 0:
            return row
    row[at.DEPTH] = 0
    return row


def _rank(row: list[int], credit: int, now: float, here: bool, fresh: float) -> Rank:
    rank = beat_file.rank(row, credit, beat_file.sections(row) if row[at.DEPTH] else (), lambda name: None)
    if not here or (rank.alive_at is not None and now - rank.alive_at < fresh):
        return rank
    return rank._replace(present=beat_file.is_alive(rank.pid, row[at.START_TICKS]))


def _touch_file(folder: str, now: float, spawned_at: float) -> tuple[Rank, ...]:
    """The touch file, if it was touched since the command was started."""
    try:
        modified = os.stat(f"{folder}/{at.TOUCH}").st_mtime
    except OSError:
        return ()
    moved_at = now - max(0.0, time.time() - modified)
    if moved_at <= spawned_at:
        return ()
    return (Rank(TOUCH, claimed_at=spawned_at, alive_at=moved_at, moved_at=moved_at),)
