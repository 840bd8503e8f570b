"""What is known across schedules: device faults and schedules, as values.  Lists are in the order of arrival."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ftrun.messages import state_store as messages
from ftrun.messages.codec import EXACT, Malformed, Value

SCHEMA: Final = 1
ENTRY: Final = 2048  # bytes of one, as JSON
EXTRA: Final = 65536  # bytes of what we do not know
FAULTS: Final = 1024  # that are kept, of
SAME: Final = 8  # the same code on the same device: a storm on one node must not push out what others know
SCHEDULES: Final = 64
TOLD: Final = 256  # faults
RECENT: Final = 2 * 24 * 3600.0  # s
LINE: Final = 60_000  # bytes that are told, of the 64 KiB that PID 1 takes; schedules have at most a quarter of it
Entry = dict[str, Any]


class ForeignHistory(Exception):
    """One line: why this is not what we write."""


class History(NamedTuple):
    """`extra`: what else the file holds, kept as it is."""

    faults: tuple[Entry, ...] = ()
    schedules: tuple[Entry, ...] = ()
    extra: Mapping[str, Any] = {}


def _text(value: object) -> bool:
    return isinstance(value, str)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= messages.LATEST


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _step(value: object) -> bool:
    return value is None or _whole(value)


def _truth(value: object) -> bool:
    return isinstance(value, bool)


Shape = Mapping[str, Callable[[object], bool]]
FAULT: Final[Shape] = {
    **dict.fromkeys(("node", "device", "code", "severity", "boot"), _text),
    **dict.fromkeys(("wall", "mono"), _number),
}
SCHEDULE: Final[Shape] = {
    **dict.fromkeys(("key", "node"), _text),
    "count": _whole,
    "wall": _number,
    **dict.fromkeys(("best_step", "best_checkpoint"), _step),
    **dict.fromkeys(("progressed", "faulted"), _truth),
}


def wrong(entry: object, shape: Shape) -> str | None:
    """Why it is no such entry."""
    if not isinstance(entry, dict):
        return "it is no object"
    for name, right in shape.items():
        if name not in entry or not right(entry[name]):
            return f"{name!r} is {'wrong' if name in entry else 'missing'}"
    return "it is too long" if len(json.dumps(entry)) > ENTRY else None


def parse(content: bytes) -> tuple[History, list[str]]:
    """What the file holds, and why entries were dropped.  Foreign if it is none of ours."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise ForeignHistory("it is not JSON") from None
    if not isinstance(found, dict) or not _whole(found.get("schema")) or found["schema"] != SCHEMA:
        raise ForeignHistory(f"its schema is not {SCHEMA}")
    extra = {name: value for name, value in found.items() if name not in ("schema", "faults", "schedules")}
    dropped: list[str] = []
    if len(json.dumps(extra)) > EXTRA:
        extra, dropped = {}, ["what we do not know: it is too long"]
    faults = _good(found, "faults", FAULT, dropped)
    schedules = _good(found, "schedules", SCHEDULE, dropped)
    return History(faults, schedules, extra), dropped


def _good(found: Mapping[str, Any], name: str, shape: Shape, dropped: list[str]) -> tuple[Entry, ...]:
    entries = found.get(name)
    if not isinstance(entries, list):
        raise ForeignHistory(f"{name!r} is no list")
    why = [wrong(entry, shape) for entry in entries]
    dropped += [f"{name}[{number}]: {reason}" for number, reason in enumerate(why) if reason is not None]
    return tuple(entry for entry, reason in zip(entries, why, strict=True) if reason is None)


def dump(history: History) -> bytes:
    whole = {"schema": SCHEMA, "faults": history.faults, "schedules": history.schedules, **history.extra}
    return json.dumps(whole).encode("ascii") + b"\n"


def merge(base: History, faults: Iterable[Entry], schedules: Iterable[Entry]) -> History:
    """Both, of faults that are the same one, and of schedules with the same key one.  Twice gives the same as once."""
    by_identity = {_identity(fault): fault for fault in base.faults}
    for fault in faults:
        by_identity.setdefault(_identity(fault), fault)
    by_key = {schedule["key"]: schedule for schedule in base.schedules}
    for schedule in schedules:
        before = by_key.get(schedule["key"])
        by_key[schedule["key"]] = schedule if before is None else _joined(before, schedule)
    return History(_kept(tuple(by_identity.values())), tuple(by_key.values())[-SCHEDULES:], base.extra)


def _identity(fault: Entry) -> tuple[object, ...]:
    return tuple(fault[name] for name in ("node", "device", "code", "boot", "mono", "wall"))


def _joined(before: Entry, after: Entry) -> Entry:
    known = {
        name: max((one[name] for one in (before, after) if one[name] is not None), default=None)
        for name in ("best_step", "best_checkpoint")
    }
    either = {name: before[name] or after[name] for name in ("progressed", "faulted")}
    return before | after | known | either


def _kept(faults: Sequence[Entry]) -> tuple[Entry, ...]:
    seen: Counter[tuple[str, str, str]] = Counter()
    kept = []
    for fault in reversed(faults):
        same = fault["node"], fault["device"], fault["code"]
        seen[same] += 1
        if seen[same] <= SAME:
            kept.append(fault)
    return tuple(reversed(kept[:FAULTS]))


def described(history: History, now: float, boot: str) -> messages.History:
    """What is said of it: faults of the last two days by the wall clock, or of this boot, which no clock can hide."""
    recent = [fault for fault in history.faults if fault["boot"] == boot or fault["wall"] > now - RECENT]
    schedules, room = _last(messages.Schedule, history.schedules, LINE // 4)
    faults, _ = _last(messages.Fault, recent[-TOLD:], LINE - LINE // 4 + room)
    return messages.History(faults, schedules)


def _last(kind: type[Value], entries: Sequence[Entry], room: int) -> tuple[tuple[Value, ...], int]:
    """As many of the last ones as have room, with the fields that we know; and the room that is left."""
    kept: list[Value] = []
    for entry in reversed(entries):
        try:
            one = EXACT.value(kind, {name: entry[name] for name in kind._fields if name in entry})  # type: ignore[attr-defined]
        except Malformed:
            continue  # of another version of ftrun
        if (left := room - len(EXACT.dump(one)) - 2) < 0:
            break
        room = left
        kept.append(one)
    return tuple(reversed(kept)), room
