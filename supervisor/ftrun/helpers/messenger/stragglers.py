"""Tells PID 1 of ranks of this node that are slow against the others for a minute, where there is no group: in a group
rank 0 compares the ranks of all members (group_view.py)."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from ftrun.core.rules.stragglers import Persistence, slow_ranks
from ftrun.helpers.lines import Lines
from ftrun.messages.messenger import Straggler
from ftrun_hooks import layout as at

WINDOW: Final = 60.0  # s over which the time per step is measured
STEPS: Final = 3  # at least, in it


class LocalStragglers:
    """Follows the slots of the beat file, as `Steps` reads them."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._attempt = 0
        self._begin(0)

    def _begin(self, attempt: int) -> None:
        self._attempt = attempt
        self._seen: dict[tuple[int, int], deque[tuple[float, int]]] = {}  # (moved at, step), by rank and pid
        self._slow: Persistence[int] = Persistence()

    def follow(self, slots: Iterable[Sequence[int]], attempt: int, now: float) -> None:
        """`now`: CLOCK_MONOTONIC."""
        if attempt != self._attempt:
            self._begin(attempt)
        for row in slots:
            if row[at.STEP] and row[at.MOVED_AT] and not row[at.UNRANKED] and not row[at.FLAGS] & at.DONE:
                seen = self._seen.setdefault((row[at.RANK], row[at.PID]), deque())
                if not seen or row[at.STEP] > seen[-1][1]:
                    seen.append((row[at.MOVED_AT] / 1e9, row[at.STEP]))
        times = {}
        for (rank, _), seen in self._seen.items():
            while seen and seen[0][0] < now - WINDOW:
                seen.popleft()
            if len(seen) > 1 and seen[-1][1] - seen[0][1] >= STEPS:
                times[rank] = (seen[-1][0] - seen[0][0]) / (seen[-1][1] - seen[0][1])
        slow = slow_ranks(times)
        for rank in self._slow.update(slow, now):
            seconds = self._slow.seconds(rank, now)
            self._lines.send(Straggler(rank, round(times[rank], 4), round(slow[rank], 4), round(seconds, 1)))
