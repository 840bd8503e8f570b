"""Axes: where a time or a step lies in a picture, and which of them have a tick."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from ftrun.core.named_tuple import NamedTuple

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
INTERVALS: Final = (
    *(0.001, 0.01, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0),
    *(MINUTE * n for n in (1, 2, 5, 10, 15, 30)),
    *(HOUR * n for n in (1, 2, 3, 6, 12)),
    *(DAY * n for n in (1, 2, 4, 7, 14, 28, 91, 182, 365)),
)
BREAK: Final = 28.0  # px of a gap that is cut out
APART: Final = 104.0  # px between two ticks
LONG: Final = 0.06  # a gap longer than this share of all runs is cut out


class Segment(NamedTuple):
    """A part of the time axis without a gap, and where it is drawn, in px."""

    since: float
    until: float
    left: float
    right: float


class Tick(NamedTuple):
    x: float
    label: str
    day: str  # empty: the same day as at the tick before


def segments(runs: Sequence[tuple[float, float]], left: float, right: float) -> tuple[Segment, ...]:
    """The axis, without the long gaps in which nothing ran."""
    if not runs:
        return ()
    busy = sum(until - since for since, until in runs)
    joined: list[list[float]] = [list(runs[0])]
    for since, until in runs[1:]:
        if since - joined[-1][1] > LONG * busy and len(joined) < 12:
            joined.append([since, until])
        else:
            joined[-1][1] = until
    length = sum(until - since for since, until in joined) or 1.0
    room, found, x = right - left - BREAK * (len(joined) - 1), list[Segment](), left
    for since, until in joined:
        width = room * (until - since) / length if length > 0 and until > since else room / len(joined)
        found.append(Segment(since, until, x, min(right, x + width)))
        x += width + BREAK
    return tuple(found)


def position(at: float, axis: Sequence[Segment]) -> float:
    """Where a time is drawn, in px; a time within a gap is at the edge of the gap."""
    for segment in axis:
        if at <= segment.until:
            if at <= segment.since or segment.until <= segment.since:
                return segment.left
            return segment.left + (segment.right - segment.left) * (at - segment.since) / (
                segment.until - segment.since
            )
    return axis[-1].right


def ticks(axis: Sequence[Segment]) -> tuple[Tick, ...]:
    """The ticks, at round times of UTC, about APART px apart."""
    longest = max(axis, key=lambda segment: segment.right - segment.left, default=None)
    if longest is None or longest.until <= longest.since:
        return ()
    rate = (longest.until - longest.since) / (longest.right - longest.left)
    interval = next((one for one in INTERVALS if one >= rate * APART), INTERVALS[-1])
    found: list[Tick] = []
    day = ""
    for segment in axis:
        first = math.ceil(segment.since / interval)
        for number in range(first, min(math.floor(segment.until / interval), first + 200) + 1):
            at = number * interval
            x = position(at, [segment])
            if found and x - found[-1].x < 0.7 * APART:
                continue
            new_day = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")
            found.append(Tick(x, _label(at, interval), new_day if new_day != day and interval < DAY else ""))
            day = new_day
    return tuple(found)


def _label(at: float, interval: float) -> str:
    moment = datetime.fromtimestamp(at, UTC)
    if interval >= DAY:
        return moment.strftime("%b %d") if interval < 180 * DAY else moment.strftime("%Y-%m-%d")
    if interval >= MINUTE:
        return moment.strftime("%H:%M")
    if interval >= 1:
        return moment.strftime("%H:%M:%S")
    return moment.strftime("%H:%M:%S.%f")[: 10 if interval >= 0.1 else 12]


def round_numbers(low: int, high: int) -> tuple[int, ...]:
    """About six round integers, from at or below `low` to at or above `high`."""
    raw = max(1, high - low) / 6
    power = 10 ** max(0, math.floor(math.log10(raw))) if raw >= 1 else 1
    interval = next((power * n for n in (1, 2, 5, 10) if power * n >= raw), power * 10)
    first, last = low // interval, -(-high // interval)
    return tuple(interval * n for n in range(first, max(last, first + 1) + 1))


def short_number(number: int) -> str:
    """The number as a label: 1,200; 45k; 1.2M."""
    for power, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if abs(number) >= 10 * power or (abs(number) >= power and power > 1000):
            return f"{number / power:.4g}{letter}"
    return f"{number:,}"
