"""The verdict that all tasks of a job share, in `verdict.json`, as values."""

from datetime import datetime
from typing import Any, Final

from ftrun.messages.codec import EXACT, Malformed, parse_json
from ftrun.messages.state_store import Verdict

SCHEMA: Final = 1
LIMIT: Final = 65536  # bytes


def validated(found: object) -> Verdict | None:
    """The verdict with its known fields; None if a field is missing or invalid."""
    if not isinstance(found, dict):
        return None
    known: dict[str, Any] = {"device": None} | {name: found[name] for name in Verdict._fields if name in found}
    try:
        verdict = EXACT.value(Verdict, known)
    except Malformed:
        return None
    return verdict if verdict.schema == SCHEMA and _time(verdict.time) is not None else None


def parse(content: bytes) -> Verdict | None:
    """None if the content is not a complete verdict."""
    try:
        return validated(parse_json(content))
    except Malformed:
        return None


def holds(verdict: Verdict, schedule_cnt: int, since: float) -> bool:
    """Whether it belongs to that schedule; a verdict from before `since` (s since the epoch) is of an earlier job."""
    time = _time(verdict.time)
    return time is not None and verdict.schedule_cnt == schedule_cnt and time >= since


def dump(verdict: Verdict) -> bytes:
    return EXACT.dump(verdict).encode("ascii") + b"\n"


def _time(text: str) -> float | None:
    """Seconds since the epoch of an ISO-8601 time with a time zone, else None."""
    try:
        found = datetime.fromisoformat(text)
        return None if found.tzinfo is None else found.timestamp()
    except (ValueError, OverflowError):
        return None
