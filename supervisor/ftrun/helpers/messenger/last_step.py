"""Reads from the beat file which rank of this node stopped first."""

import os

from ftrun.core.group.messages import Pulse
from ftrun.core.machine.values import Rank
from ftrun.core.rules.ranks import one_each
from ftrun.host import beat_slots
from ftrun_hooks import layout as at


def read(beat_dir: str, now: float) -> Pulse | None:
    """The rank with the lowest step; among equals, the one that has been silent longest.  None: no rank has sent a
    heartbeat, or all are done."""
    try:
        fd = os.open(f"{beat_dir}/{at.BEATS}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        # The file is read and not mapped: if the command truncated it meanwhile, access would raise SIGBUS.
        content = memoryview(os.pread(fd, at.FILE_BYTES, 0))
    except OSError:
        return None
    finally:
        os.close(fd)
    if len(content) < at.FILE_BYTES:
        return None
    words = content.cast("Q")
    ranks = []
    for slot, magic in enumerate(words[at.HEADER_WORDS + at.MAGIC_WORD :: at.SLOT_WORDS].tolist()):
        if magic:
            begin = at.HEADER_WORDS + slot * at.SLOT_WORDS
            row = words[begin : begin + at.SLOT_WORDS].tolist()
            rank = beat_slots.rank(row, row[at.CREDIT], (), lambda _: None)
            if beat_slots.has_plausible_times(row, now):
                ranks.append(rank)
    pulses = (_pulse(rank, now) for rank in one_each(ranks) if not rank.done)
    return min(pulses, key=lambda pulse: (pulse.step is None, pulse.step or 0, -pulse.age), default=None)


def _pulse(rank: Rank, now: float) -> Pulse:
    age = now - (rank.moved_at or rank.alive_at or rank.claimed_at) - rank.credit
    return Pulse(rank.rank, rank.step, round(max(0.0, age), 3))
