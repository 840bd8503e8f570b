"""Where in the picture of a run its lost time is drawn: stretches, from what the records tell.

How much was lost is not asked here: that is in the account of `state.json`, which `core/accounting/goodput.py` keeps.

What the records do not tell is taken from the instants that they do: the tree is dead at the last of its records.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ftrun.core.accounting.totals import LostTime

WHYS: Final = LostTime._fields


class Stretch(NamedTuple):
    since: float
    until: float
    why: str


class StepSample(NamedTuple):
    """`low` and `high`: of the ranks that step."""

    at: float
    attempt: int
    low: int
    high: int


class Life(NamedTuple):
    """One attempt, from when it was to be executed until the next one was, or the end.

    `cause`: hang, fault, failure or stop (from outside), if it ended of one.  `silent`: since when the one that hung
    was.  `verdict`: when it was decided, or the command ended by itself; `rested`: the last record of its tree's end.
    `offset`: from its monotonic clock to the wall clock.  `under_way`: it runs; `stopped`: by who asked for it, or
    `cut_off`: its ftrun was killed, and no other one followed.
    """

    number: int
    reason: str
    since: float
    until: float
    first_beat: float | None = None
    saved: float | None = None  # the newest checkpoint of this attempt
    silent: float | None = None
    verdict: float | None = None
    rested: float | None = None
    rests: tuple[tuple[float, str], ...] = ()  # from when on it was healing or waiting, after that
    killed: int | None = None
    cause: str | None = None
    why: str = ""
    report: str | None = None
    again: bool = False  # another one followed, not after an end
    kept: bool = False  # it ended the run with success
    under_way: bool = False
    stopped: bool = False
    cut_off: bool = False
    first_step: int | None = None
    last_step: int | None = None
    offset: float = 0.0

    @property
    def worked_until(self) -> float:
        ends = [end for end in (self.silent, self.verdict) if end is not None]
        return max(self.since, min(ends, default=self.until))

    @property
    def undecided(self) -> bool:
        """What of its work is kept shows only when another one follows."""
        return self.under_way or self.stopped or self.cut_off


def with_steps(lives: Sequence[Life], samples: Sequence[StepSample]) -> tuple[Life, ...]:
    """The same, with their first and last steps."""
    return tuple(
        life._replace(first_step=of[0].low, last_step=max(s.high for s in of))
        if (of := _within(samples, life))
        else life
        for life in lives
    )


def _within(samples: Sequence[StepSample], life: Life) -> Sequence[StepSample]:
    first = bisect_left(samples, life.since, key=lambda s: s.at)
    last = bisect_right(samples, life.until, first, key=lambda s: s.at)
    return [sample for sample in samples[first:last] if sample.attempt == life.number]


def stretches(lives: Sequence[Life], samples: Sequence[StepSample], paused: Sequence[Stretch]) -> tuple[Stretch, ...]:
    """What was lost, in order, without overlaps; under `paused` nothing else counts."""
    found: list[Stretch] = []
    saves = any(life.saved is not None for life in lives)
    for index, life in enumerate(lives):
        following = lives[index + 1] if index + 1 < len(lives) else None
        found += _startup(life)
        found += _redone(life, following, saves, samples)
        if life.silent is not None and life.verdict is not None:
            found.append(Stretch(max(life.since, life.silent), life.verdict, "hang"))
        found += _between(life, following)
    counted = [piece for stretch in _apart(found) for piece in _without(stretch, paused)]
    return tuple(_apart([*counted, *paused]))


def _apart(found: Iterable[Stretch]) -> list[Stretch]:
    """In order; where two would overlap, as records in a strange order may have it, the first one counts."""
    apart: list[Stretch] = []
    for stretch in sorted(found):
        since = max(stretch.since, apart[-1].until if apart else stretch.since)
        if stretch.until > since:
            apart.append(stretch._replace(since=since))
    return apart


def _startup(life: Life) -> list[Stretch]:
    """A command that never beats has none."""
    if life.first_beat is not None:
        return [Stretch(life.since, min(life.first_beat, life.worked_until), "startup")]
    return []


def _redone(life: Life, following: Life | None, saves: bool, samples: Sequence[StepSample]) -> list[Stretch]:
    """The work after what was kept, where a restart, or an end in trouble, threw it away."""
    if life.kept or life.undecided:
        return []
    begun, until = life.first_beat or life.since, life.worked_until
    since = begun
    if saves:
        since = life.saved or begun
    elif life.again and following is not None and (next_steps := _within(samples, following)):
        since = _reached(_within(samples, life), next_steps[0].high, until)  # as in the account: the furthest rank
    elif life.again and following is not None and following.undecided and life.first_step is not None:
        return []  # how far it goes back shows when it steps
    return [Stretch(max(begun, since), until, "redone")] if until > max(begun, since) else []


def _reached(samples: Sequence[StepSample], step: int, otherwise: float) -> float:
    """When that step was first reached, between two samples in proportion."""
    before: StepSample | None = None
    for sample in samples:
        if sample.high >= step:
            if before is None or sample.high == before.high:
                return sample.at
            return before.at + (sample.at - before.at) * (step - before.high) / (sample.high - before.high)
        before = sample
    return otherwise


def _between(life: Life, following: Life | None) -> list[Stretch]:
    """From the verdict to the next start: the tree is ended, devices are healed, a start is waited for."""
    if life.verdict is None:
        return []
    ends = [(life.verdict, "stopping"), *life.rests]
    backoff = life.cause == "failure" and (following is None or following.reason == "failure")
    if backoff and not life.rests and (life.again or life.undecided):
        ends.append((max(life.verdict, life.rested or life.verdict), "waiting"))
    untils = [*(since for since, _ in ends[1:]), life.until]
    return [Stretch(since, min(until, life.until), why) for (since, why), until in zip(ends, untils, strict=True)]


def _without(stretch: Stretch, paused: Iterable[Stretch]) -> list[Stretch]:
    """What is left of it outside of the pauses."""
    left, since = [], stretch.since
    for pause in paused:
        if pause.until <= since or pause.since >= stretch.until:
            continue
        if pause.since > since:
            left.append(stretch._replace(since=since, until=pause.since))
        since = pause.until
    return [*left, stretch._replace(since=since)] if since < stretch.until else left
