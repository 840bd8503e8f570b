"""Whether a figure of a running ftrun grows with its restarts, or only varies: pure functions of the samples."""

import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

from proof.soak.samples import Sample

WARM: Final = 0.1  # of the samples, in which caches fill and helpers are started
FILLED: Final = (
    300  # restarts, after which the state store has its 256 attempts (`schedules.MOST`) and only replaces them
)
TENTH: Final = 0.1
FEW: Final = 3


class Allowed(NamedTuple):
    """Variation that is no growth: `slack` in total, and `each` per restart, in the unit of the figure."""

    slack: float = 0.0
    each: float = 0.0


class Growth(NamedTuple):
    """`first` and `last` are medians of a tenth of the samples, or of three if there are few: one sample in which a
    helper was being started is no growth.  `first` follows the warm-up; `limit` is the maximum of `last`."""

    first: float
    last: float
    limit: float

    @property
    def grown(self) -> bool:
        return self.last > self.limit


NOTHING: Final = Allowed()
# KiB.  A new helper fills its caches, Python touches its arenas page by page, and a subreaper reads all processes of
# the machine, whose number varies; PSS depends on what other processes share.
MEMORY: Final = Allowed(slack=1024, each=0.05)
ALLOWED: Final = {
    "descriptors": Allowed(slack=1),  # a sample may include one that is open for a moment
    "rss": MEMORY,
    "pss": MEMORY,
    "state": Allowed(slack=16),  # files in the state dir: the copies of the last reports
    "processes": Allowed(slack=2),  # temporary helpers: evidence, one that was restarted
}


def growth(figures: Sequence[tuple[int, float]], allowed: Allowed) -> Growth:
    """The growth of one figure, as (restarts before the sample, value) in order.  ValueError for less than three."""
    if len(figures) < 3:
        raise ValueError(f"{len(figures)} samples are too few")
    filled = [at >= FILLED for at, _ in figures].count(True)  # a short run is judged from its first tenth on
    figures = figures[max(int(WARM * len(figures)), len(figures) - filled if 2 * filled >= len(figures) else 0) :]
    many = max(1, min(FEW, len(figures) // 2), int(TENTH * len(figures)))
    (began, first), (ended, last) = _middle(figures[:many]), _middle(figures[-many:])
    return Growth(first, last, first + allowed.slack + allowed.each * (ended - began))


def _middle(figures: Sequence[tuple[int, float]]) -> tuple[float, float]:
    return statistics.median(at for at, _ in figures), statistics.median(figure for _, figure in figures)


def growths(samples: Sequence[Sample]) -> dict[tuple[str, str], Growth]:
    """The growth of each figure that is in at least half of the samples, by its process and name."""
    series: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for sample in samples:
        for key, figure in sample.figures().items():
            series.setdefault(key, []).append((sample.restarts, figure))
    long = {key: figures for key, figures in series.items() if 2 * len(figures) >= len(samples)}
    return {key: growth(figures, ALLOWED.get(key[1], NOTHING)) for key, figures in long.items()}


def grown(samples: Sequence[Sample]) -> list[str]:
    """One line for each figure that has grown."""
    lines = [
        f"{who}: {what} from {growth.first:.0f} to {growth.last:.0f} (at most {growth.limit:.0f})"
        for (who, what), growth in growths(samples).items()
        if growth.grown
    ]
    return lines + [
        f"{name}: {len(pids)} processes one after another"
        for name, pids in _pids(samples).items()
        if len(pids) > max(2, len(samples) // 20)
    ]


def _pids(samples: Sequence[Sample]) -> dict[str, set[int]]:
    """The pids of each process: a helper that is restarted again and again would hide its growth."""
    found: dict[str, set[int]] = {}
    for sample in samples:
        for name, process in sample.processes.items():
            found.setdefault(name, set()).add(process.pid)
    return found
