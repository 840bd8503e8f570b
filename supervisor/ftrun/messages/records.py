"""The lines of `events.jsonl`, and the termination message."""

import json
from collections.abc import Iterable
from typing import Final

SCHEMA: Final = 1
MESSAGE_LIMIT: Final = 4096  # bytes of a Kubernetes termination message
_ENCODE: Final = json.JSONEncoder(default=str).encode  # json.dumps would create an encoder for each record


def timestamp(nanoseconds: int, parts: tuple[int, ...]) -> str:
    """ISO-8601 UTC with milliseconds, from the wall clock and its `time.gmtime`."""
    year, month, day, hour, minute, second = parts[:6]
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanoseconds // 1_000_000 % 1000:03}Z"


def seconds(time: object) -> float | None:
    """Seconds since the epoch of such a time, or of another one of ISO-8601 with its zone; None for anything else."""
    from datetime import datetime  # PID 1 reads no times

    try:
        found = datetime.fromisoformat(str(time))
        return None if found.tzinfo is None else found.timestamp()
    except (ValueError, OverflowError):
        return None


def line(time: str, mono: float, event: str, attempt: int, fields: Iterable[tuple[str, object]]) -> bytes:
    """One record; always one line of ASCII, whatever bytes a name has."""
    record = {"schema": SCHEMA, "time": time, "mono": round(mono, 6), "event": event, "attempt": attempt}
    for name, value in fields:
        record.setdefault(name, round(value, 6) if isinstance(value, float) else value)
    return _ENCODE(record).encode("ascii") + b"\n"


def message(fields: dict[str, object]) -> bytes:
    """The termination message: JSON of at most 4,096 bytes; the longest text is truncated if needed."""
    content = json.dumps(fields).encode("ascii")
    while len(content) > MESSAGE_LIMIT:
        name = max(fields, key=lambda key: len(str(fields[key])))
        text = str(fields[name])
        fields = {**fields, name: text[: max(0, len(text) - max(64, (len(content) - MESSAGE_LIMIT)))] + "..."}
        content = json.dumps(fields).encode("ascii")
    return content
