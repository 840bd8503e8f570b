"""Axes: where an instant or a step lies in a picture, and which of them are worth a tick."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
PACES: Final = (
    *(0.001, 0.01, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0),
    *(MINUTE * n for n in (1, 2, 5, 10, 15, 30)),
    *(HOUR * n for n in (1, 2, 3, 6, 12)),
    *(DAY * n for n in (1, 2, 4, 7, 14, 28, 91, 182, 365)),
)
BREAK: Final = 28.0  # px, of a gap that is drawn shorter than it was
LONG: Final = 0.06  # a gap of more than this part of all the rest is


class Piece(NamedTuple):
    """A stretch of time and where it is drawn."""

    since: float
    until: float
    left: float
    right: float


class Tick(NamedTuple):
    x: float
    label: str
    day: str  # only where it is another than before


def pieces(runs: Sequence[tuple[float, float]], left: float, right: float) -> tuple[Piece, ...]:
    """The axis, cut where nothing ran for long.  No runs: none."""
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
    room, found, x = right - left - BREAK * (len(joined) - 1), list[Piece](), left
    for since, until in joined:
        width = room * (until - since) / length if length > 0 and until > since else room / len(joined)
        found.append(Piece(since, until, x, min(right, x + width)))
        x += width + BREAK
    return tuple(found)


def place(at: float, axis: Sequence[Piece]) -> float:
    """In px; what lies in a gap is at its edge."""
    for piece in axis:
        if at <= piece.until:
            if at <= piece.since or piece.until <= piece.since:
                return piece.left
            return piece.left + (piece.right - piece.left) * (at - piece.since) / (piece.until - piece.since)
    return axis[-1].right


def ticks(axis: Sequence[Piece], apart: float = 104.0) -> tuple[Tick, ...]:
    """At round instants of UTC, at least so many px apart."""
    longest = max(axis, key=lambda piece: piece.right - piece.left, default=None)
    if longest is None or longest.until <= longest.since:
        return ()
    rate = (longest.until - longest.since) / (longest.right - longest.left)
    pace = next((pace for pace in PACES if pace >= rate * apart), PACES[-1])
    found: list[Tick] = []
    day = ""
    for piece in axis:
        first = math.ceil(piece.since / pace)
        for number in range(first, min(math.floor(piece.until / pace), first + 200) + 1):
            x = place(number * pace, [piece])
            if found and x - found[-1].x < 0.7 * apart:
                continue
            label, of = _label(number * pace, pace), _day(number * pace)
            found.append(Tick(x, label, of if of != day and pace < DAY else ""))
            day = of
    return tuple(found)


def _label(at: float, pace: float) -> str:
    moment = datetime.fromtimestamp(at, UTC)
    if pace >= DAY:
        return moment.strftime("%b %d") if pace < 180 * DAY else moment.strftime("%Y-%m-%d")
    if pace >= MINUTE:
        return moment.strftime("%H:%M")
    if pace >= 1:
        return moment.strftime("%H:%M:%S")
    return moment.strftime("%H:%M:%S.%f")[: 10 if pace >= 0.1 else 12]


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def rounds(low: int, high: int, most: int = 6) -> tuple[int, ...]:
    """Round whole numbers from at or below `low` to at or above `high`."""
    span = max(1, high - low)
    raw = span / most
    power = 10 ** max(0, math.floor(math.log10(raw))) if raw >= 1 else 1
    pace = next((power * n for n in (1, 2, 5, 10) if power * n >= raw), power * 10)
    first, last = low // pace, -(-high // pace)
    return tuple(pace * n for n in range(first, max(last, first + 1) + 1))


def short(number: int) -> str:
    """As a label: 1,200; 45k; 1.2M."""
    for power, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if abs(number) >= 10 * power or (abs(number) >= power and power > 1000):
            return f"{number / power:.4g}{letter}"
    return f"{number:,}"
