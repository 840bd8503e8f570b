"""Converts a slot of the beat file (`ftrun_hooks/layout.py`) to a value, for the ftrun that owns the file and for other
readers."""

import sys
from collections.abc import Callable, Sequence
from typing import Final

from ftrun.core.machine.values import Rank, SavedFile, Section
from ftrun.host import procfs
from ftrun_hooks import layout as at

NS: Final = 1e9
MAX_STEP: Final = 1 << 63  # as in messages/state.py
Periods = Sequence[tuple[float, float]]  # start and end, in seconds


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
