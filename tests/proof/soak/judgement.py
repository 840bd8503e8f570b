"""What of a running ftrun may grow with its restarts: nothing; and how that is told from what only moves."""

from collections.abc import Sequence
from typing import Final

from proof.soak.growth import Allowed, Growth, judge
from proof.soak.samples import Sample

NOTHING: Final = Allowed()
# KiB.  A new helper fills its caches, Python touches its arenas page by page, and a subreaper looks at all processes of
# a machine, however many there are just then; PSS depends on what others share.
MEMORY: Final = Allowed(slack=1024, each=0.05)
ALLOWED: Final = {
    "descriptors": Allowed(slack=1),  # a look may meet one that is open for a moment
    "rss": MEMORY,
    "pss": MEMORY,
    "processes": Allowed(slack=2),  # helpers that come and go: evidence, one that was started again
}


def growths(samples: Sequence[Sample]) -> dict[tuple[str, str], Growth]:
    """Of all that is known in at least half of the samples, by whose and what it is."""
    series: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for sample in samples:
        for key, figure in sample.figures().items():
            series.setdefault(key, []).append((sample.restarts, figure))
    long = {key: figures for key, figures in series.items() if 2 * len(figures) >= len(samples)}
    return {key: judge(figures, ALLOWED.get(key[1], NOTHING)) for key, figures in long.items()}


def grown(samples: Sequence[Sample]) -> list[str]:
    """A line each."""
    lines = [
        f"{who}: {what} from {growth.first:.0f} to {growth.last:.0f} (at most {growth.limit:.0f})"
        for (who, what), growth in growths(samples).items()
        if growth.grown
    ]
    return lines + [
        f"{name}: {len(lives)} lives"
        for name, lives in _lives(samples).items()
        if len(lives) > max(2, len(samples) // 20)
    ]


def _lives(samples: Sequence[Sample]) -> dict[str, set[int]]:
    """The pids that each process was seen with: a helper that has to be started again and again grows nothing."""
    found: dict[str, set[int]] = {}
    for sample in samples:
        for name, process in sample.processes.items():
            found.setdefault(name, set()).add(process.pid)
    return found
