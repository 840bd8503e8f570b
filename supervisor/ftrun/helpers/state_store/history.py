"""The history across schedules, as values: device faults and schedules, in the order of arrival."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ftrun.messages import state_store as messages
from ftrun.messages.codec import EXACT, Malformed, Value

SCHEMA: Final = 1
ENTRY: Final = 2048  # bytes of one entry, as JSON
EXTRA: Final = 65536  # bytes of unknown fields
FAULTS: Final = 1024  # faults that are stored, of which at most
SAME: Final = 8  # with the same code on the same device: many faults of one node must not displace those of others
SCHEDULES: Final = 64
SENT_FAULTS: Final = 256
RECENT: Final = 2 * 24 * 3600.0  # s
LINE: Final = 60_000  # bytes of a reply, of the 64 KiB that PID 1 accepts; schedules take at most a quarter of it
Entry = dict[str, Any]


class ForeignHistory(Exception):
    """The file has not been written by a state store; the text is one line with the reason."""


class History(NamedTuple):
    """`extra`: unknown fields of the file, which are preserved."""

    faults: tuple[Entry, ...] = ()
    schedules: tuple[Entry, ...] = ()
    extra: Mapping[str, Any] = {}


def _text(value: object) -> bool:
    return isinstance(value, str)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= messages.LATEST


def _integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _optional_integer(value: object) -> bool:
    return value is None or _integer(value)


def _boolean(value: object) -> bool:
    return isinstance(value, bool)


Shape = Mapping[str, Callable[[object], bool]]
FAULT: Final[Shape] = {
    **dict.fromkeys(("node", "device", "code", "severity", "boot"), _text),
    **dict.fromkeys(("wall", "mono"), _number),
}
SCHEDULE: Final[Shape] = {
    **dict.fromkeys(("key", "node"), _text),
    "count": _integer,
    "wall": _number,
    **dict.fromkeys(("best_step", "best_checkpoint"), _optional_integer),
    **dict.fromkeys(("progressed", "faulted"), _boolean),
}


def validation_error(entry: object, shape: Shape) -> str | None:
    """The reason why an entry does not have this shape, or None."""
    if not isinstance(entry, dict):
        return "it is not an object"
    for name, right in shape.items():
        if name not in entry or not right(entry[name]):
            return f"{name!r} is {'invalid' if name in entry else 'missing'}"
    return "it is too large" if len(json.dumps(entry)) > ENTRY else None


def parse(content: bytes) -> tuple[History, list[str]]:
    """The history in the file, and why entries were dropped.  `ForeignHistory` if it has another format."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise ForeignHistory("it is not JSON") from None
    if not isinstance(found, dict) or not _integer(found.get("schema")) or found["schema"] != SCHEMA:
        raise ForeignHistory(f"its schema is not {SCHEMA}")
    extra = {name: value for name, value in found.items() if name not in ("schema", "faults", "schedules")}
    dropped: list[str] = []
    if len(json.dumps(extra)) > EXTRA:
        extra, dropped = {}, ["the unknown fields: they are too large"]
    faults = _valid_entries(found, "faults", FAULT, dropped)
    schedules = _valid_entries(found, "schedules", SCHEDULE, dropped)
    return History(faults, schedules, extra), dropped


def _valid_entries(found: Mapping[str, Any], name: str, shape: Shape, dropped: list[str]) -> tuple[Entry, ...]:
    entries = found.get(name)
    if not isinstance(entries, list):
        raise ForeignHistory(f"{name!r} is not a list")
    why = [validation_error(entry, shape) for entry in entries]
    dropped += [f"{name}[{number}]: {reason}" for number, reason in enumerate(why) if reason is not None]
    return tuple(entry for entry, reason in zip(entries, why, strict=True) if reason is None)


def dump(history: History) -> bytes:
    whole = {"schema": SCHEMA, "faults": history.faults, "schedules": history.schedules, **history.extra}
    return json.dumps(whole).encode("ascii") + b"\n"


def merge(base: History, faults: Iterable[Entry], schedules: Iterable[Entry]) -> History:
    """Merge: each fault once, and one schedule for each key.  The operation is idempotent."""
    by_identity = {_identity(fault): fault for fault in base.faults}
    for fault in faults:
        by_identity.setdefault(_identity(fault), fault)
    by_key = {schedule["key"]: schedule for schedule in base.schedules}
    for schedule in schedules:
        before = by_key.get(schedule["key"])
        by_key[schedule["key"]] = schedule if before is None else _merged(before, schedule)
    return History(_limited(tuple(by_identity.values())), tuple(by_key.values())[-SCHEDULES:], base.extra)


def _identity(fault: Entry) -> tuple[object, ...]:
    return tuple(fault[name] for name in ("node", "device", "code", "boot", "mono", "wall"))


def _merged(before: Entry, after: Entry) -> Entry:
    known = {
        name: max((one[name] for one in (before, after) if one[name] is not None), default=None)
        for name in ("best_step", "best_checkpoint")
    }
    either = {name: before[name] or after[name] for name in ("progressed", "faulted")}
    return before | after | known | either


def _limited(faults: Sequence[Entry]) -> tuple[Entry, ...]:
    seen: Counter[tuple[str, str, str]] = Counter()
    kept = []
    for fault in reversed(faults):
        same = fault["node"], fault["device"], fault["code"]
        seen[same] += 1
        if seen[same] <= SAME:
            kept.append(fault)
    return tuple(reversed(kept[:FAULTS]))


def reply(history: History, now: float, boot: str) -> messages.History:
    """The reply to PID 1: faults of the last two days by the wall clock, or of this boot, whatever the clock."""
    recent = [fault for fault in history.faults if fault["boot"] == boot or fault["wall"] > now - RECENT]
    schedules, room = _last_that_fit(messages.Schedule, history.schedules, LINE // 4)
    faults, _ = _last_that_fit(messages.Fault, recent[-SENT_FAULTS:], LINE - LINE // 4 + room)
    return messages.History(faults, schedules)


def _last_that_fit(kind: type[Value], entries: Sequence[Entry], room: int) -> tuple[tuple[Value, ...], int]:
    """The latest entries that fit into `room` bytes, with the fields of this version; and the remaining bytes."""
    kept: list[Value] = []
    for entry in reversed(entries):
        try:
            one = EXACT.value(kind, {name: entry[name] for name in kind._fields if name in entry})  # type: ignore[attr-defined]
        except Malformed:
            continue  # an entry of another version of ftrun
        if (left := room - len(EXACT.dump(one)) - 2) < 0:
            break
        room = left
        kept.append(one)
    return tuple(reversed(kept)), room
