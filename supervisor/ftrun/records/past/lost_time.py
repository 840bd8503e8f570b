"""Where in the picture of a run its lost time is drawn: intervals, from the records.

How much time was lost is read from `state.json` (`core/accounting`), which knows more than the records.  The records
do not say when the tree was dead: it is taken to be dead at the last record of its end.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Final

from ftrun.core.accounting.totals import LostTime
from ftrun.core.named_tuple import NamedTuple
from ftrun.records.files.steps import StepSample

REASONS: Final = LostTime._fields


class LostInterval(NamedTuple):
    since: float
    until: float
    why: str


class AttemptSpan(NamedTuple):
    """One attempt, from its start until the next start or the end.

    `cause`: hang, fault, failure or stop (from outside), if one of them ended it.  `silent`: since when the rank that
    hung was silent.  `verdict`: when the end was decided, or the command ended by itself; `rested`: the last record
    of the end of its tree.  `grouped`: this ftrun is a member of a group; `elsewhere`: what ended the attempt on
    another member, as `a failure on node-b`.  `offset`: from its monotonic clock to the wall clock.  `under_way`: it
    is running; `stopped`: it was stopped by request; `cut_off`: its ftrun was killed, and no other ftrun followed.
    `run`: how many ftruns worked in this run dir before its own.
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
    recoveries: tuple[LostInterval, ...] = ()  # of its ranks, without the end of the attempt
    rests: tuple[tuple[float, str], ...] = ()  # since when it was healing or waiting after that
    killed: int | None = None
    cause: str | None = None
    why: str = ""
    place: str = ""  # in the code: where it hung or failed, if that is known
    report: str | None = None
    again: bool = False  # another attempt followed, not after an end
    kept: bool = False  # it ended the run with success
    under_way: bool = False
    stopped: bool = False
    cut_off: bool = False
    first_step: int | None = None
    last_step: int | None = None
    grouped: bool = False
    elsewhere: str = ""
    offset: float = 0.0
    run: int = 0

    @property
    def worked_until(self) -> float:
        ends = [end for end in (self.silent, self.verdict) if end is not None]
        return max(self.since, min(ends, default=self.until))

    @property
    def undecided(self) -> bool:
        """How much of its work is kept is known only when another attempt follows."""
        return self.under_way or self.stopped or self.cut_off


def with_steps(attempts: Sequence[AttemptSpan], samples: Sequence[StepSample]) -> tuple[AttemptSpan, ...]:
    """The attempts with their first and last steps."""
    return tuple(
        attempt._replace(first_step=own[0].low, last_step=max(s.high for s in own))
        if (own := _of_attempt(samples, attempt))
        else attempt
        for attempt in attempts
    )


def _of_attempt(samples: Sequence[StepSample], attempt: AttemptSpan) -> Sequence[StepSample]:
    first = bisect_left(samples, attempt.since, key=lambda s: s.at)
    last = bisect_right(samples, attempt.until, first, key=lambda s: s.at)
    return [sample for sample in samples[first:last] if sample.attempt == attempt.number]


def lost_intervals(
    attempts: Sequence[AttemptSpan],
    samples: Sequence[StepSample],
    paused: Sequence[LostInterval],
    saved_before: bool = False,
) -> tuple[LostInterval, ...]:
    """The lost intervals in order, without overlaps; within a pause only the pause counts.  `saved_before`: there was a
    checkpoint in an attempt before these."""
    found: list[LostInterval] = []
    saves = saved_before or any(attempt.saved is not None for attempt in attempts)
    for attempt, following in zip_longest(attempts, attempts[1:]):
        if attempt.first_beat is not None:
            found.append(LostInterval(attempt.since, min(attempt.first_beat, attempt.worked_until), "startup"))
        found += _lost_work(attempt, following, saves, samples)
        if attempt.silent is not None and attempt.verdict is not None:
            found.append(LostInterval(max(attempt.since, attempt.silent), attempt.verdict, "hang"))
        found += [*attempt.recoveries, *_until_next_start(attempt, following)]
    counted = [part for interval in _disjoint(found) for part in _outside(interval, paused)]
    return tuple(_disjoint([*counted, *paused]))


def _disjoint(found: Iterable[LostInterval]) -> list[LostInterval]:
    """The intervals in order; where two overlap, as in records of an unusual order, the first one counts."""
    disjoint: list[LostInterval] = []
    for interval in sorted(found):
        since = max(interval.since, disjoint[-1].until if disjoint else interval.since)
        if interval.until > since:
            disjoint.append(interval._replace(since=since))
    return disjoint


def _lost_work(
    attempt: AttemptSpan, following: AttemptSpan | None, saves: bool, samples: Sequence[StepSample]
) -> list[LostInterval]:
    """The work after what was kept, if a restart or an unsuccessful end lost it."""
    if attempt.kept or attempt.undecided:
        return []
    since = began = attempt.first_beat or attempt.since
    until = attempt.worked_until
    if saves:
        since = attempt.saved or began
    elif attempt.again and following is not None and (next_steps := _of_attempt(samples, following)):
        since = _reached(_of_attempt(samples, attempt), next_steps[0].high, until)  # as in the account: the first rank
    elif attempt.again and following is not None and following.undecided and attempt.first_step is not None:
        return []  # unknown until the next attempt steps
    # As in the account: nothing is known of an attempt without a heartbeat and without a checkpoint but that it began.
    why = "startup" if attempt.first_beat is None and not saves else "redone" if attempt.again else "discarded"
    return [LostInterval(max(began, since), until, why)] if until > max(began, since) else []


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


def _until_next_start(attempt: AttemptSpan, following: AttemptSpan | None) -> list[LostInterval]:
    """From the verdict on: the tree is ended, devices are healed, the next start is awaited."""
    if attempt.verdict is None:
        return []
    begins = [(attempt.verdict, "stopping"), *attempt.rests]
    # Without a group a restart that waits for no backoff may wait for its devices, which is a part of stopping.
    waits = attempt.cause == "failure" and (following is None or following.reason == "failure")
    waits |= attempt.grouped and attempt.rested is not None
    if waits and not attempt.rests and (attempt.again or attempt.undecided):
        begins.append((max(attempt.verdict, attempt.rested or attempt.verdict), "waiting"))
    ends = [*(since for since, _ in begins[1:]), attempt.until]
    return [LostInterval(since, min(end, attempt.until), why) for (since, why), end in zip(begins, ends, strict=True)]


def _outside(interval: LostInterval, paused: Iterable[LostInterval]) -> list[LostInterval]:
    """What is left of the interval outside of the pauses."""
    left, since = [], interval.since
    for pause in paused:
        if pause.until <= since or pause.since >= interval.until:
            continue
        if pause.since > since:
            left.append(interval._replace(since=since, until=pause.since))
        since = pause.until
    return [*left, interval._replace(since=since)] if since < interval.until else left
