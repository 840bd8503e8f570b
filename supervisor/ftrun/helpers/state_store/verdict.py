"""A verdict that all tasks of a job share: `verdict.json`, as values."""

from datetime import datetime
from typing import Any, Final

from ftrun.messages.codec import EXACT, Malformed, parsed
from ftrun.messages.state_store import Verdict

SCHEMA: Final = 1
LIMIT: Final = 65536  # bytes


def whole(found: object) -> Verdict | None:
    """What this verdict says, as far as we know its fields; None for what is no whole verdict."""
    if not isinstance(found, dict):
        return None
    known: dict[str, Any] = {"device": None} | {name: found[name] for name in Verdict._fields if name in found}
    try:
        verdict = EXACT.value(Verdict, known)
    except Malformed:
        return None
    return verdict if verdict.schema == SCHEMA and _time(verdict.time) is not None else None


def parse(content: bytes) -> Verdict | None:
    """None for whatever is no whole verdict."""
    try:
        return whole(parsed(content))
    except Malformed:
        return None


def holds(verdict: Verdict, schedule_cnt: int, since: float) -> bool:
    """Whether it is of that schedule; one from before `since`, in s since the epoch, is of an earlier job."""
    time = _time(verdict.time)
    return time is not None and verdict.schedule_cnt == schedule_cnt and time >= since


def dump(verdict: Verdict) -> bytes:
    return EXACT.dump(verdict).encode("ascii") + b"\n"


def _time(text: str) -> float | None:
    """Of an ISO-8601 time that says its zone."""
    try:
        found = datetime.fromisoformat(text)
        return None if found.tzinfo is None else found.timestamp()
    except (ValueError, OverflowError):
        return None
