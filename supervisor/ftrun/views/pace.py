"""How long steps took, over time: what a sparkline shows."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

KEPT: Final = 900  # samples


class Seen(NamedTuple):
    """At `mono` (CLOCK_MONOTONIC) this attempt had reached `step`."""

    mono: float
    attempt: int
    step: int


class Span(NamedTuple):
    """From `since` to `until` a step took so many seconds; one that is not done took at least so long."""

    since: float
    until: float
    each: float


def seen(before: Sequence[Seen], now: Seen) -> tuple[Seen, ...]:
    """With this sample, thinned out: the older half of too many loses every second one."""
    if before and now.mono <= before[-1].mono:
        return tuple(before)
    found = (*before, now)
    return (*found[: KEPT // 2 : 2], *found[KEPT // 2 :]) if len(found) > KEPT else found


def spans(samples: Iterable[Seen]) -> list[Span]:
    """Between two starts there is none."""
    found: list[Span] = []
    since = last = None
    for sample in samples:
        if since is None or sample.attempt != since.attempt or sample.step < since.step:
            found += _undone(since, last, found)
            since = sample
        elif sample.step > since.step:
            found.append(Span(since.mono, sample.mono, (sample.mono - since.mono) / (sample.step - since.step)))
            since = sample
        last = sample
    return found + _undone(since, last, found)


def _undone(since: Seen | None, last: Seen | None, before: Sequence[Span]) -> list[Span]:
    """The step under way, once it takes longer than the one before."""
    if since is None or last is None or not before or last.mono - since.mono <= before[-1].each:
        return []
    return [Span(since.mono, last.mono, last.mono - since.mono)]


def columns(samples: Sequence[Seen], count: int) -> list[float | None]:
    """Seconds a step in so many equal stretches of the time that was seen: the longest in each; None: none."""
    if count < 1 or len(samples) < 2:
        return []
    begun, width = samples[0].mono, (samples[-1].mono - samples[0].mono) / count
    found: list[float | None] = [None] * count
    for span in spans(samples):
        first = int((span.since - begun) / width)
        last = max(first + 1, int((span.until - begun) / width + 0.5))
        for column in range(first, min(count, last)):
            found[column] = max(span.each, found[column] or 0.0)
    return found
