"""Which ranks are slow against the others, and when that is worth a record.  Nothing is ended for it."""

from bisect import bisect_left
from collections.abc import Hashable, Mapping
from statistics import median
from typing import Final, Generic, TypeVar

from ftrun.core.named_tuple import NamedTuple

LEAST: Final = 3  # ranks that step, for a comparison
SLOWER: Final = 1.5  # times the median of the others
PERSISTS: Final = 60.0  # s for which a rank is slow before that is recorded
AGAIN: Final = 3600.0  # s after which a rank that became slow again is recorded again
Key = TypeVar("Key", bound=Hashable)


def slow_ranks(times: Mapping[Key, float]) -> dict[Key, float]:
    """Of ranks by any name, with their seconds per step: the stragglers among them, each with the median of the
    others."""
    if len(times) < LEAST:
        return {}
    ordered = sorted(times.values())
    found = {}
    for name, time in times.items():
        if time > SLOWER * ordered[(len(ordered) - 2) // 2]:
            others = ordered.copy()
            others.pop(bisect_left(others, time))
            if time > SLOWER * (usual := median(others)):
                found[name] = usual
    return found


class Since(NamedTuple):
    """A straggler: slow since `began`; `recorded`: when that was recorded last, None: never.  `slow`: it still is."""

    began: float
    recorded: float | None = None
    slow: bool = True


class Persistence(Generic[Key]):
    """Which stragglers are to be recorded now.  Times are of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._known: dict[Key, Since] = {}

    def update(self, slow: Mapping[Key, object], now: float) -> list[Key]:
        """`slow`: the present stragglers.  Returns those that have been slow for PERSISTS and were not recorded for
        this, in their order."""
        for key, since in list(self._known.items()):
            if key in slow and not since.slow:
                self._known[key] = Since(now, since.recorded)
            elif key not in slow:
                self._known[key] = since._replace(slow=False)
            if not self._known[key].slow and (since.recorded is None or now > since.recorded + AGAIN):
                del self._known[key]
        due = []
        for key in slow:
            since = self._known.setdefault(key, Since(now))
            early = since.recorded is not None and (since.recorded >= since.began or now < since.recorded + AGAIN)
            if now >= since.began + PERSISTS and not early:
                self._known[key] = since._replace(recorded=now)
                due.append(key)
        return due

    def seconds(self, key: Key, now: float) -> float:
        """For how long this straggler has been one."""
        return now - self._known[key].began
