"""Which ranks are slow against the others, and when that is worth a record.  Nothing is ended for it.

Ranks that wait for each other in each step all take the same time for it, that of the slowest.  It is found by its
work: the time of a step in which its main thread did not wait for other ranks (ADR 36).
"""

from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from typing import Final, Generic, Literal, TypeVar

from ftrun.core.named_tuple import NamedTuple

LEAST: Final = 3  # ranks that step, for a comparison
SLOWER: Final = 1.5  # times the step time of the others
SAME: Final = 0.1  # of the step time of the others: a smaller difference is that of ranks in lockstep
WAITED: Final = 0.15  # of a step for which the others wait for a rank, on average
LATE_STEPS: Final = 3  # step times without a step
LATE: Final = 5.0  # s beyond those
PERSISTS: Final = 60.0  # s for which a rank is slow before that is recorded
AGAIN: Final = 3600.0  # s after which a rank that became slow again is recorded again
Key = TypeVar("Key", bound=Hashable)


class Pace(NamedTuple):
    """Of a rank, in seconds: `step_time` per step, lately; `work`: of that, the time in which it did not wait for
    other ranks, None where that cannot be known; `silence`: since its last step, None in a section or where the others
    are not read at the same time."""

    step_time: float
    work: float | None = None
    silence: float | None = None


class Slowness(NamedTuple):
    """Why a rank is a straggler: the figure of `Pace` that differs, and its value.  `usual`: the median of the others;
    of a silence, that of their step times."""

    what: Literal["step_time", "work", "silence"]
    seconds: float
    usual: float

    @property
    def work(self) -> float | None:
        """The work of a step, if it is the figure that differs; else None."""
        return self.seconds if self.what == "work" else None


def stragglers(paces: Mapping[Key, Pace]) -> dict[Key, Slowness]:
    """The stragglers among ranks by any name.

    A rank is one if its steps take 1.5 times as long as those of the others; or, if all take the same time, if it works
    for so much longer that the others wait for it for 15 % of each step; or if its last step is older than three of
    the others' step times and five seconds while the others step.  Each against the median of all others.
    """
    if len(paces) < LEAST:
        return {}
    times = sorted(pace.step_time for pace in paces.values())
    works = _in_lockstep(paces, times)
    worked = sorted(works.values())
    silences = sorted(pace.silence for pace in paces.values() if pace.silence is not None)
    found = {}
    for name, pace in paces.items():
        slow = _slow_steps(pace, times) or _much_work(pace, works.get(name), worked) or _silent(pace, silences, times)
        if slow is not None:
            found[name] = slow
    return found


def _slow_steps(pace: Pace, times: Sequence[float]) -> Slowness | None:
    time = pace.step_time
    if time <= SLOWER * _lowest_median(times) or time <= SLOWER * (usual := _median_of_others(times, time)):
        return None
    return Slowness("step_time", time, usual)


def _much_work(pace: Pace, work: float | None, worked: Sequence[float]) -> Slowness | None:
    if work is None or len(worked) < LEAST or work - _lowest_median(worked) <= WAITED * pace.step_time:
        return None
    usual = _median_of_others(worked, work)
    return Slowness("work", work, usual) if work - usual > WAITED * pace.step_time else None


def _silent(pace: Pace, silences: Sequence[float], times: Sequence[float]) -> Slowness | None:
    silence = pace.silence
    if silence is None or len(silences) < LEAST or silence <= LATE + _lowest_median(silences):
        return None
    usual = _median_of_others(times, pace.step_time)
    if silence <= LATE + max(_median_of_others(silences, silence), LATE_STEPS * usual):
        return None
    return Slowness("silence", silence, usual)


def _in_lockstep(paces: Mapping[Key, Pace], times: Sequence[float]) -> dict[Key, float]:
    """The work of the ranks whose step time is the same as that of all ranks."""
    usual = times[len(times) // 2]
    return {
        name: pace.work
        for name, pace in paces.items()
        if pace.work is not None and abs(pace.step_time - usual) <= SAME * usual
    }


def _lowest_median(ordered: Sequence[float]) -> float:
    """The lowest median that is left when one of these is left out."""
    return ordered[(len(ordered) - 2) // 2]


def _median_of_others(ordered: Sequence[float], own: float) -> float:
    """The median of the other values, without `own`."""
    at, middle = bisect_left(ordered, own), len(ordered) - 1
    low, high = (middle - 1) // 2, middle // 2
    return (ordered[low + (low >= at)] + ordered[high + (high >= at)]) / 2


class SlowPeriod(NamedTuple):
    """A straggler: slow since `began`; `recorded`: when that was recorded last, None: never.  `slow`: it still is."""

    began: float
    recorded: float | None = None
    slow: bool = True


class Persistence(Generic[Key]):
    """Which stragglers are to be recorded now.  Times are of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._known: dict[Key, SlowPeriod] = {}

    def update(self, slow: Mapping[Key, object], now: float) -> list[Key]:
        """`slow`: the present stragglers.  Returns those that have been slow for PERSISTS and were not recorded for
        this, in their order."""
        for key, since in list(self._known.items()):
            if key in slow and not since.slow:
                self._known[key] = SlowPeriod(now, since.recorded)
            elif key not in slow:
                self._known[key] = since._replace(slow=False)
            if not self._known[key].slow and (since.recorded is None or now > since.recorded + AGAIN):
                del self._known[key]
        due = []
        for key in slow:
            since = self._known.setdefault(key, SlowPeriod(now))
            early = since.recorded is not None and (since.recorded >= since.began or now < since.recorded + AGAIN)
            if now >= since.began + PERSISTS and not early:
                self._known[key] = since._replace(recorded=now)
                due.append(key)
        return due

    def seconds(self, key: Key, now: float) -> float:
        """For how long this straggler has been one."""
        return now - self._known[key].began
