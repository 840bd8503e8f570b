"""Whether a figure grows with the restarts, or only moves: a pure judgement."""

import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

WARM: Final = 0.1  # of the samples, in which caches fill and helpers are started
TENTH: Final = 0.1


class Allowed(NamedTuple):
    """Growth that is none: `slack` in all, and `each` a restart, both in the unit of the figure."""

    slack: float = 0.0
    each: float = 0.0


class Growth(NamedTuple):
    """`first` and `last` are medians of a tenth of the samples, the first after the warm-up; `limit` is what `last` may
    be."""

    first: float
    last: float
    limit: float

    @property
    def grown(self) -> bool:
        return self.last > self.limit


def judge(figures: Sequence[tuple[int, float]], allowed: Allowed) -> Growth:
    """Of one figure, with the restarts before each sample, in order.  ValueError for fewer than three samples."""
    if len(figures) < 3:
        raise ValueError(f"{len(figures)} samples say nothing")
    figures = figures[int(WARM * len(figures)) :]
    many = max(1, int(TENTH * len(figures)))
    (began, first), (ended, last) = _middle(figures[:many]), _middle(figures[-many:])
    return Growth(first, last, first + allowed.slack + allowed.each * (ended - began))


def _middle(figures: Sequence[tuple[int, float]]) -> tuple[float, float]:
    return statistics.median(at for at, _ in figures), statistics.median(figure for _, figure in figures)
