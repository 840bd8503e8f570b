"""The files of the state dir, as values: `history.json` (device faults and schedules, in the order of arrival) and
`verdict.json` (the verdict that all tasks of a job share).  Fields that this version does not know are left out."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules.fault_history import Occurrence, Schedule
from ftrun.helpers.shared_folder import ForeignContent
from ftrun.messages import records
from ftrun.messages import state_store as messages
from ftrun.messages.codec import EXACT, TOLERANT, Malformed, Value, parse_object
from ftrun.messages.state_store import SharedVerdict

SCHEMA: Final = 1  # of both files
LIMIT: Final = 8 << 20  # bytes of the history; at most half of it is written
VERDICT_LIMIT: Final = 65536  # bytes
ENTRY: Final = 2048  # bytes of one entry, as JSON
FAULTS: Final = 1024  # faults that are stored, of which at most
SAME: Final = 8  # with the same code on the same device: many faults of one node must not displace those of others
SCHEDULES: Final = 64
SENT_FAULTS: Final = 256
RECENT: Final = 2 * 24 * 3600.0  # s
LINE: Final = 63_000  # bytes of a reply, of the 64 KiB that PID 1 accepts
FOR_SCHEDULES: Final = 24_000  # bytes of it at most
SENT_PATHS: Final = 16  # schedules that are sent with the path of their last checkpoint, the newest


class HistoryFile(NamedTuple):
    faults: tuple[Occurrence, ...] = ()
    schedules: tuple[Schedule, ...] = ()


def parse(content: bytes) -> tuple[HistoryFile, list[str]]:
    """The history in the file, and why entries were dropped.  `ForeignContent` if it has another format."""
    try:
        found = parse_object(content, LIMIT)
    except Malformed as error:
        raise ForeignContent(f"it is {error}") from None
    if type(found.get("schema")) is not int or found["schema"] != SCHEMA:
        raise ForeignContent(f"its schema is not {SCHEMA}")
    dropped: list[str] = []
    faults = _valid_entries(found, "faults", Occurrence, dropped)
    return HistoryFile(faults, _valid_entries(found, "schedules", Schedule, dropped)), dropped


def _valid_entries(found: Mapping[str, Any], name: str, kind: type[Value], dropped: list[str]) -> tuple[Value, ...]:
    entries = found.get(name)
    if not isinstance(entries, list):
        raise ForeignContent(f"{name!r} is not a list")
    valid = []
    for number, entry in enumerate(entries):
        try:
            valid.append(_checked(TOLERANT.value(kind, entry)))
        except Malformed as reason:
            dropped.append(f"{name}[{number}]: {reason}")
    return tuple(valid)


def _checked(entry: Value) -> Value:
    """The entry; Malformed if it cannot be sent to PID 1."""
    at = entry.at if isinstance(entry, Occurrence) else entry
    if any(getattr(at, name, 0.0) > messages.LATEST for name in ("wall", "mono")):
        raise Malformed("its time is invalid")
    if len(EXACT.dump(entry)) > ENTRY:
        raise Malformed("it is too large")
    return entry


def dump(history: HistoryFile) -> bytes:
    return json.dumps({"schema": SCHEMA, **EXACT.plain(history)}).encode("ascii") + b"\n"


def merge(base: HistoryFile, faults: Iterable[Occurrence], schedules: Iterable[Schedule]) -> HistoryFile:
    """Merge: each fault once, and one schedule for each key.  The operation is idempotent."""
    by_identity = {(fault.key, fault.at): fault for fault in base.faults}
    for fault in faults:
        by_identity.setdefault((fault.key, fault.at), fault)
    by_key = {schedule.key: schedule for schedule in base.schedules}
    for schedule in schedules:
        before = by_key.get(schedule.key)
        by_key[schedule.key] = schedule if before is None else _merged(before, schedule)
    return HistoryFile(_limited(tuple(by_identity.values())), tuple(by_key.values())[-SCHEDULES:])


def _merged(before: Schedule, after: Schedule) -> Schedule:
    def highest(one: int | None, other: int | None) -> int | None:
        return max((step for step in (one, other) if step is not None), default=None)

    return after._replace(
        best_step=highest(before.best_step, after.best_step),
        best_checkpoint=highest(before.best_checkpoint, after.best_checkpoint),
        progressed=before.progressed or after.progressed,
        faulted=before.faulted or after.faulted,
    )


def _limited(faults: Sequence[Occurrence]) -> tuple[Occurrence, ...]:
    seen: Counter[tuple[str, str, str]] = Counter()
    kept = []
    for fault in reversed(faults):
        seen[fault.key] += 1
        if seen[fault.key] <= SAME:
            kept.append(fault)
    return tuple(reversed(kept[:FAULTS]))


def reply(history: HistoryFile, now: float, boot: str) -> messages.StoredHistory:
    """The reply to PID 1: faults of the last two days by the wall clock, or of this boot, whatever the clock."""
    recent = [fault for fault in history.faults if fault.at.boot == boot or fault.at.wall > now - RECENT]
    older = [schedule._replace(last_checkpoint="") for schedule in history.schedules[:-SENT_PATHS]]
    schedules, room = _last_that_fit([*older, *history.schedules[-SENT_PATHS:]], FOR_SCHEDULES)
    faults, _ = _last_that_fit(recent[-SENT_FAULTS:], LINE - FOR_SCHEDULES + room)
    return messages.StoredHistory(faults, schedules)


def _last_that_fit(entries: Sequence[Value], room: int) -> tuple[tuple[Value, ...], int]:
    """The latest entries that fit into `room` bytes; and the remaining bytes."""
    kept: list[Value] = []
    for entry in reversed(entries):
        if (left := room - len(EXACT.dump(entry)) - 2) < 0:
            break
        room = left
        kept.append(entry)
    return tuple(reversed(kept)), room


def parse_verdict(content: bytes) -> SharedVerdict:
    """The verdict with its known fields.  `ForeignContent` if it is incomplete or invalid."""
    try:
        verdict = TOLERANT.value(SharedVerdict, {"device": None} | parse_object(content, VERDICT_LIMIT))
    except Malformed:
        raise ForeignContent("it is not a complete verdict") from None
    if verdict.schema != SCHEMA or records.seconds(verdict.time) is None:
        raise ForeignContent("it is not a complete verdict")
    return verdict


def holds(verdict: SharedVerdict, schedule_cnt: int, since: float) -> bool:
    """Whether it belongs to that schedule; a verdict from before `since` (s since the epoch) is of an earlier job."""
    time = records.seconds(verdict.time)
    return time is not None and verdict.schedule_cnt == schedule_cnt and time >= since
