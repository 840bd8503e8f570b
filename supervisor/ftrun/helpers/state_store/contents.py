"""The files of the state dir, as values: `history.json` (device faults and schedules, in the order of arrival) and
`verdict.json` (the verdict that all tasks of a job share)."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules.fault_history import Occurrence, Schedule
from ftrun.helpers.shared_folder import ForeignContent
from ftrun.messages import state_store as messages
from ftrun.messages.codec import EXACT, Malformed, Value, parse_object
from ftrun.messages.state_store import SharedVerdict

SCHEMA: Final = 1  # of both files
LIMIT: Final = 8 << 20  # bytes of the history; at most half of it is written
VERDICT_LIMIT: Final = 65536  # bytes
ENTRY: Final = 2048  # bytes of one entry, as JSON
EXTRA: Final = 65536  # bytes of unknown fields
FAULTS: Final = 1024  # faults that are stored, of which at most
SAME: Final = 8  # with the same code on the same device: many faults of one node must not displace those of others
SCHEDULES: Final = 64
SENT_FAULTS: Final = 256
RECENT: Final = 2 * 24 * 3600.0  # s
LINE: Final = 63_000  # bytes of a reply, of the 64 KiB that PID 1 accepts
FOR_SCHEDULES: Final = 24_000  # bytes of it at most
SENT_PATHS: Final = 16  # schedules that are sent with the path of their last checkpoint, the newest
BEST: Final = ("best_step", "best_checkpoint")
StoredEntry = dict[str, Any]


class HistoryFile(NamedTuple):
    """`extra`: unknown fields of the file, which are preserved."""

    faults: tuple[StoredEntry, ...] = ()
    schedules: tuple[StoredEntry, ...] = ()
    extra: Mapping[str, Any] = {}


def validation_error(entry: object, kind: type[Value]) -> str | None:
    """The reason why an entry is not of this kind, or None."""
    if not isinstance(entry, dict):
        return "it is not an object"
    try:
        EXACT.value(kind, _fields(entry, kind))
    except Malformed as error:
        return str(error)
    times = entry.get("at", entry)
    if any(abs(times[name]) > messages.LATEST for name in ("wall", "mono") if name in times):
        return "its time is invalid"
    return "it is too large" if len(json.dumps(entry)) > ENTRY else None


def _fields(entry: StoredEntry, kind: type[tuple[Any, ...]]) -> StoredEntry:
    """The fields that this version knows."""
    return {name: entry[name] for name in kind._fields if name in entry}  # type: ignore[attr-defined]


def parse(content: bytes) -> tuple[HistoryFile, list[str]]:
    """The history in the file, and why entries were dropped.  `ForeignContent` if it has another format."""
    try:
        found = parse_object(content, LIMIT)
    except Malformed as error:
        raise ForeignContent(f"it is {error}") from None
    if type(found.get("schema")) is not int or found["schema"] != SCHEMA:
        raise ForeignContent(f"its schema is not {SCHEMA}")
    extra = {name: value for name, value in found.items() if name not in ("schema", "faults", "schedules")}
    dropped: list[str] = []
    if len(json.dumps(extra)) > EXTRA:
        extra, dropped = {}, ["the unknown fields: they are too large"]
    faults = _valid_entries(found, "faults", Occurrence, dropped)
    schedules = _valid_entries(found, "schedules", Schedule, dropped)
    return HistoryFile(faults, schedules, extra), dropped


def _valid_entries(
    found: Mapping[str, Any], name: str, kind: type[Value], dropped: list[str]
) -> tuple[StoredEntry, ...]:
    entries = found.get(name)
    if not isinstance(entries, list):
        raise ForeignContent(f"{name!r} is not a list")
    why = [validation_error(entry, kind) for entry in entries]
    dropped += [f"{name}[{number}]: {reason}" for number, reason in enumerate(why) if reason is not None]
    return tuple(entry for entry, reason in zip(entries, why, strict=True) if reason is None)


def dump(history: HistoryFile) -> bytes:
    content = {"schema": SCHEMA, "faults": history.faults, "schedules": history.schedules, **history.extra}
    return json.dumps(content).encode("ascii") + b"\n"


def merge(base: HistoryFile, faults: Iterable[StoredEntry], schedules: Iterable[StoredEntry]) -> HistoryFile:
    """Merge: each fault once, and one schedule for each key.  The operation is idempotent."""
    by_identity = {_identity(fault): fault for fault in base.faults}
    for fault in faults:
        by_identity.setdefault(_identity(fault), fault)
    by_key = {schedule["key"]: schedule for schedule in base.schedules}
    for schedule in schedules:
        before = by_key.get(schedule["key"])
        by_key[schedule["key"]] = schedule if before is None else _merged(before, schedule)
    return HistoryFile(_limited(tuple(by_identity.values())), tuple(by_key.values())[-SCHEDULES:], base.extra)


def _identity(fault: StoredEntry) -> tuple[object, ...]:
    return *(fault[name] for name in ("node", "device", "code")), *sorted(fault["at"].items())


def _merged(before: StoredEntry, after: StoredEntry) -> StoredEntry:
    known = {name: [one[name] for one in (before, after) if one.get(name) is not None] for name in BEST}
    either = {name: bool(before.get(name) or after.get(name)) for name in ("progressed", "faulted")}
    return before | after | {name: max(found, default=None) for name, found in known.items()} | either


def _limited(faults: Sequence[StoredEntry]) -> tuple[StoredEntry, ...]:
    seen: Counter[tuple[str, str, str]] = Counter()
    kept = []
    for fault in reversed(faults):
        same = fault["node"], fault["device"], fault["code"]
        seen[same] += 1
        if seen[same] <= SAME:
            kept.append(fault)
    return tuple(reversed(kept[:FAULTS]))


def reply(history: HistoryFile, now: float, boot: str) -> messages.StoredHistory:
    """The reply to PID 1: faults of the last two days by the wall clock, or of this boot, whatever the clock."""
    times = [(fault, fault["at"]) for fault in history.faults]
    recent = [fault for fault, at in times if at.get("boot") == boot or at["wall"] > now - RECENT]
    older = [schedule | {"last_checkpoint": ""} for schedule in history.schedules[:-SENT_PATHS]]
    sent = [*older, *history.schedules[-SENT_PATHS:]]
    schedules, room = _last_that_fit(Schedule, sent, FOR_SCHEDULES)
    faults, _ = _last_that_fit(Occurrence, recent[-SENT_FAULTS:], LINE - FOR_SCHEDULES + room)
    return messages.StoredHistory(faults, schedules)


def _last_that_fit(kind: type[Value], entries: Sequence[StoredEntry], room: int) -> tuple[tuple[Value, ...], int]:
    """The latest entries that fit into `room` bytes, with the fields of this version; and the remaining bytes."""
    kept: list[Value] = []
    for entry in reversed(entries):
        one = EXACT.value(kind, _fields(entry, kind))
        if (left := room - len(EXACT.dump(one)) - 2) < 0:
            break
        room = left
        kept.append(one)
    return tuple(reversed(kept)), room


def parse_verdict(content: bytes) -> SharedVerdict:
    """The verdict with its known fields.  `ForeignContent` if it is incomplete or invalid."""
    try:
        found = {"device": None} | _fields(parse_object(content, VERDICT_LIMIT), SharedVerdict)
        verdict = EXACT.value(SharedVerdict, found)
    except Malformed:
        raise ForeignContent("it is not a complete verdict") from None
    if verdict.schema != SCHEMA or _seconds(verdict.time) is None:
        raise ForeignContent("it is not a complete verdict")
    return verdict


def holds(verdict: SharedVerdict, schedule_cnt: int, since: float) -> bool:
    """Whether it belongs to that schedule; a verdict from before `since` (s since the epoch) is of an earlier job."""
    time = _seconds(verdict.time)
    return time is not None and verdict.schedule_cnt == schedule_cnt and time >= since


def _seconds(text: str) -> float | None:
    """Seconds since the epoch of an ISO-8601 time with a time zone, else None."""
    try:
        found = datetime.fromisoformat(text)
        return None if found.tzinfo is None else found.timestamp()
    except (ValueError, OverflowError):
        return None
