"""A verdict that all tasks of a job share: `verdict.json`, as values."""

import json
from datetime import datetime
from typing import Any, Final

SCHEMA: Final = 1
LIMIT: Final = 65536  # bytes
_TYPES: Final = {"schema": int, "verdict": str, "exit_code": int, "node": str, "why": str, "schedule_cnt": int}
Verdict = dict[str, Any]


def whole(found: object) -> bool:
    return (
        isinstance(found, dict)
        and all(type(found.get(name)) is kind for name, kind in _TYPES.items())
        and found["schema"] == SCHEMA
        and isinstance(found.get("device"), str | None)
        and _time(found.get("time")) is not None
    )


def parse(content: bytes) -> Verdict | None:
    """None for whatever is no whole verdict."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return dict(found) if whole(found) else None


def holds(verdict: Verdict, schedule_cnt: object, since: float) -> bool:
    """Whether it is of that schedule; one from before `since`, in s since the epoch, is of an earlier job."""
    time = _time(verdict["time"])
    return time is not None and bool(verdict["schedule_cnt"] == schedule_cnt) and time >= since


def dump(verdict: Verdict) -> bytes:
    return json.dumps(verdict).encode("ascii") + b"\n"


def _time(text: object) -> float | None:
    """Of an ISO-8601 time that says its zone."""
    try:
        found = datetime.fromisoformat(str(text))
        return None if found.tzinfo is None else found.timestamp()
    except (ValueError, OverflowError):
        return None
