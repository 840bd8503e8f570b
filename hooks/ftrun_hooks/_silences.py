"""The usual time between two progress reports of this rank, from which `--hang-timeout auto` is learned."""

from __future__ import annotations

from itertools import chain

from . import layout as at

WINDOW = 10  # batches, so that a step time that drifts is followed
TOP = 11  # of each batch: the 99th percentile of the whole window is among them


def awake(silences: list[tuple[int, int]], header: memoryview | None) -> list[int]:
    """The durations of these silences (duration, end), in ns, without the time in which the whole tree was frozen."""
    freezes = []
    if header is not None and any(silence >= at.FREEZE for silence, _ in silences):
        found = header[at.H_FREEZES : at.H_FREEZES + 2 * at.FREEZES].tolist()
        freezes = [(found[n], found[n + 1]) for n in range(0, len(found), 2) if found[n] < found[n + 1]]
    lengths = []
    for silence, end in silences:
        if freezes and silence >= at.FREEZE:
            begun = end - silence
            frozen = sum(max(0, min(end, until) - max(begun, since)) for since, until in freezes)
            silence = max(0, silence - frozen)
        if silence > at.SHORT:
            lengths.append(silence)
    return lengths


class Silences:
    """Processes the silences in batches, because a heartbeat must cost next to nothing: it only counts, and keeps the
    long silences.

    `batch` is the size of the next batch: one, the rest of the warm-up, the rest of ENOUGH, and from then on ENOUGH.
    """

    __slots__ = ("batch", "counts", "longest", "seen", "tops")

    def __init__(self) -> None:
        self.batch, self.seen, self.longest = 1, 0, 0
        self.tops: list[list[int]] = []
        self.counts: list[int] = []

    def digest(self, words: memoryview, long: list[int]) -> bool:
        """Update the figures in the slot with a batch, whose silences over SHORT are `long`, in ns.  True if the
        supervisor should read them now."""
        longest = max(long, default=at.SHORT)
        if self.seen < at.WARMUP:
            words[at.SLOWEST_START] = max(words[at.SLOWEST_START], longest)
        else:
            self.tops = [*self.tops[1 - WINDOW :], sorted(long)[-TOP:]]
            self.counts = [*self.counts[1 - WINDOW :], self.batch]
            highest, above = sorted(chain.from_iterable(self.tops)), sum(self.counts) // 100
            words[at.USUAL] = highest[-1 - above] if above < len(highest) else at.SHORT
            words[at.LONGEST] = self.longest = max(self.longest, longest)
        words[at.INTERVALS] = self.seen = self.seen + self.batch
        self.batch = next((end - self.seen for end in (at.WARMUP, at.ENOUGH) if self.seen < end), at.ENOUGH)
        return self.seen in (1, at.ENOUGH)
