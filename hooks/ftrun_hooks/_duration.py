"""Durations as people write them: `500ms`, `90s`, `10m`, `1.5h`, `1d`."""

from __future__ import annotations

UNITS = (("ms", 10**6), ("s", 10**9), ("m", 60 * 10**9), ("h", 3600 * 10**9), ("d", 86400 * 10**9))
LONGEST = 1 << 61  # added to any time of the clock it still fits into 64 bits, with two flags


def nanoseconds(duration: object) -> int:
    """`duration` (seconds, or a text with a unit) as 1 to LONGEST nanoseconds; ValueError for anything else."""
    if isinstance(duration, str):
        value, scale = _split(duration.strip())
    elif isinstance(duration, (int, float)) and not isinstance(duration, bool):
        value, scale = duration, 10**9
    else:
        raise _bad(duration)
    if not 0 < value < float("inf"):
        raise _bad(duration)
    # A float beyond LONGEST may not fit an int of any useful size: compare before converting.
    return LONGEST if value >= LONGEST / scale else max(1, int(value * scale))


def _split(text: str) -> tuple[float, int]:
    for unit, scale in UNITS:
        number = text[: -len(unit)]
        if text.endswith(unit) and number.isascii() and number.replace(".", "", 1).isdigit():
            return float(number), scale
    raise _bad(text)


def _bad(duration: object) -> ValueError:
    return ValueError(f"not a duration: {duration!r} (a number of seconds, or like '500ms', '90s', '10m', '1h', '1d')")
