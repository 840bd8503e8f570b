"""What the messenger reads in the beat file: for `steps.jsonl` the progress of training over time, for rank 0 the rank
of this node that stopped first."""

import json
import os
import time
from typing import Final

from ftrun.core.group.messages import Pulse
from ftrun.core.machine.values import Rank
from ftrun.core.rules.ranks import one_each
from ftrun.helpers.lines import ProtocolLines
from ftrun.host import beat_file, safe_files
from ftrun_hooks import layout as at

FILE: Final = "steps.jsonl"
PERIOD: Final = 1.0  # s between two lines at first
FRACTION: Final = 1000  # later the period is the elapsed time divided by this, so a week has less than 10,000 lines


class Steps:
    """Appends to `steps.jsonl`.  `attempt`: the number of the current attempt; 0: not known yet."""

    def __init__(self, beat_dir: str, lines: ProtocolLines) -> None:
        self._beat_dir, self._lines = beat_dir, lines
        self._since = time.monotonic()
        self._last_progress: tuple[int, ...] = ()
        self.attempt = 0
        self.due = self._since

    def record(self, now: float) -> None:
        if now < self.due:
            return
        self.due = now + max(PERIOD, (now - self._since) / FRACTION)
        steps = [row[at.STEP] - 1 for row in read_slots(self._beat_dir) if row[at.STEP]]
        if not steps or not self.attempt:
            return
        progress = (self.attempt, min(steps), max(steps), len(steps))
        if progress == self._last_progress:
            return
        self._last_progress = progress
        sample = {"mono": round(now, 3)} | dict(zip(("attempt", "low", "high", "ranks"), progress, strict=True))
        try:
            with open(safe_files.open_append(FILE), "a", encoding="ascii") as stream:
                stream.write(json.dumps(sample) + "\n")
        except OSError as error:
            self._lines.problem(f"{FILE}: {error.strerror}")


def read_pulse(beat_dir: str, now: float) -> Pulse | None:
    """The rank with the lowest step; among equals, the one that has been silent longest.  None: no rank has sent a
    heartbeat, or all are done."""
    rows = (row for row in read_slots(beat_dir) if beat_file.has_plausible_times(row, now))
    ranks = [beat_file.rank(row, row[at.CREDIT], (), lambda _: None) for row in rows]
    pulses = (_pulse(rank, now) for rank in one_each(ranks) if not rank.done)
    return min(pulses, key=lambda pulse: (pulse.step is None, pulse.step or 0, -pulse.age), default=None)


def _pulse(rank: Rank, now: float) -> Pulse:
    age = now - (rank.moved_at or rank.alive_at or rank.claimed_at) - rank.credit
    return Pulse(rank.rank, rank.step, round(max(0.0, age), 3))


def read_slots(beat_dir: str) -> list[list[int]]:
    """The words of each slot that a rank has claimed.  The file is opened each time, because ftrun recreates one that
    the command has damaged.  It is read and not mapped: if the command truncated it, access would raise SIGBUS."""
    try:
        fd = os.open(f"{beat_dir}/{at.BEATS}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return []
    try:
        content = os.pread(fd, at.FILE_BYTES, 0)
    except OSError:
        return []
    finally:
        os.close(fd)
    if len(content) < at.FILE_BYTES:
        return []
    words = memoryview(content).cast("Q")[at.HEADER_WORDS :]
    claimed = [slot for slot, magic in enumerate(words[at.MAGIC_WORD :: at.SLOT_WORDS].tolist()) if magic]
    return [words[slot * at.SLOT_WORDS : (slot + 1) * at.SLOT_WORDS].tolist() for slot in claimed]
