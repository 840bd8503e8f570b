"""What the couriers of a group say to each other, and to their PID 1: values of `core.group` as JSON, and back.

A member sends four frames, always whole: who it is (`Hello`), its `Report`, its `Pulse` or nothing, and its time.
Rank 0 answers each with [ORDER, the `Order`, the `seq` of the report it has, that time], or with [REFUSED, why, MISFIT
or nothing].  A courier whose PID 1 has died says BYE after its `Hello`; one that is about to make its connection anew,
because no answer comes, says AGAIN, so that the end of the old one is not taken for its own.
"""

import json
from collections.abc import Callable
from types import UnionType
from typing import Any, Final, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from ftrun.core.group import SILENCE, Order, Pulse, Report
from ftrun.wire import objects

SCHEMA: Final = 1
ORDER: Final = b"order"
REFUSED: Final = b"refused"
BYE: Final = b"bye"
AGAIN: Final = b"again"
MISFIT: Final = b"misfit"
LIMIT: Final = 32768  # bytes of a frame
TEXT: Final = 500  # characters of a text; longer ones are cut
MOST: Final = 1 << 53
Value = TypeVar("Value", bound=tuple[Any, ...])


class Refused(ValueError):
    """One line: what is wrong with what a peer says."""


class Misfit(Refused):
    """Neither waiting nor another schedule of the same job changes it."""


class Place(NamedTuple):
    """Where this ftrun stands in its group; the third word of the courier.  `secret`: the path of a file.  `silence`:
    in s, of another member that counts as its loss."""

    size: int
    rank: int
    endpoint: str
    secret: str | None
    wait: float
    drain: float
    heal: float
    job: str
    life: str
    node: str
    boot: str
    silence: float = SILENCE


class Hello(NamedTuple):
    version: str
    job: str
    size: int
    rank: int
    life: str
    node: str


def plain(value: Any) -> Any:
    """What JSON has for it, within the limits."""
    if isinstance(value, str):
        return line(value)
    if isinstance(value, tuple):
        fields: dict[str, Any] | None = value._asdict() if hasattr(value, "_asdict") else None
        return [*map(plain, value)] if fields is None else {name: plain(field) for name, field in fields.items()}
    return value


def dump(value: tuple[Any, ...]) -> bytes:
    return json.dumps(plain(value), ensure_ascii=False).encode("utf-8", "replace")


def dump_hello(hello: Hello) -> bytes:
    return json.dumps({"schema": SCHEMA, **hello._asdict()}).encode("ascii")


def dump_pulse(pulse: Pulse | None) -> bytes:
    return b"" if pulse is None else dump(pulse)


def load_place(content: str) -> Place:
    return _made(Place, json.loads(content))


def load_hello(content: bytes, version: str) -> Hello:
    """Of another schema or version nothing else is asked."""
    found = _object(content)
    if found.get("schema") != SCHEMA or found.get("version") != version:
        theirs = line(str(found.get("version")))[:40]
        raise Misfit(f"it is ftrun {theirs}, and rank 0 is ftrun {version}: a group has one")
    del found["schema"]
    return _made(Hello, found)


def load_report(content: bytes) -> Report:
    return _made(Report, _object(content))


def load_order(content: bytes) -> Order:
    return _made(Order, _object(content))


def load_pulse(content: bytes) -> Pulse | None:
    return _made(Pulse, _object(content)) if content else None


def load_ack(content: bytes) -> int:
    if not content.isdigit() or len(content) > 16:
        raise Refused("no number")
    return int(content)


def dump_time(at: float) -> bytes:
    return b"%d" % (at * 1e6)


def load_time(content: bytes) -> float:
    return load_ack(content) / 1e6


def load_why(content: bytes) -> str:
    return line(content[: TEXT * 4].decode("utf-8", "replace"))


def report_of(fields: object) -> Report:
    """Refused for whatever is none, as also below."""
    return _made(Report, fields)


def order_of(fields: object) -> Order:
    return _made(Order, fields)


def _object(content: bytes) -> dict[str, Any]:
    try:
        return objects.load(content, LIMIT)
    except ValueError as why:
        raise Refused(str(why)) from None


def line(value: str) -> str:
    """One line for a person's terminal."""
    value = value[:TEXT]
    return value if value.isprintable() else "".join(c if c.isprintable() else " " for c in value)


def _integer(value: object) -> int:
    if type(value) is not int or abs(value) > MOST:
        raise Refused("no number")
    return value


def _number(value: object) -> float:
    """Of seconds: never below zero, and never a number that is none."""
    if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
        raise Refused("no number of seconds")
    return max(0.0, float(value if isinstance(value, float) else min(value, MOST)))


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise Refused("neither true nor false")
    return value


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise Refused("no text")
    return line(value)


Check = Callable[[object], Any]
SIMPLE: Final[dict[object, Check]] = {int: _integer, float: _number, bool: _bool, str: _string}


def _checked(kind: Any) -> Check:
    """What makes a value of that type from what JSON has for it."""
    if kind in SIMPLE:
        return SIMPLE[kind]
    if hasattr(kind, "_fields"):
        return lambda value: _made(kind, value)
    inner = get_args(kind)
    if get_origin(kind) is Literal:
        return lambda value: _one_of(inner, value)
    if get_origin(kind) is tuple:
        return lambda value: _row([_checked(one) for one in inner], value)
    assert get_origin(kind) in (Union, UnionType), kind
    (some,) = (_checked(one) for one in inner if one is not type(None))
    return lambda value: None if value is None else some(value)


def _one_of(known: tuple[Any, ...], value: object) -> Any:
    if not isinstance(value, str) or value not in known:
        raise Refused(f"none of {', '.join(known)}")
    return value


def _row(checks: list[Check], value: object) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple) or len(value) != len(checks):
        raise Refused(f"no {len(checks)} values")
    return tuple(check(one) for check, one in zip(checks, value, strict=True))


_FIELDS: Final[dict[type, dict[str, Check]]] = {}


def _made(kind: type[Value], found: object) -> Value:
    if kind not in _FIELDS:
        _FIELDS[kind] = {name: _checked(hint) for name, hint in get_type_hints(kind).items()}
    fields = _FIELDS[kind]
    if not isinstance(found, dict) or not found.keys() <= fields.keys():
        raise Refused(f"no {kind.__name__.lower()}")
    values = {}
    for name, value in found.items():
        try:
            values[name] = fields[name](value)
        except Refused as why:
            raise Refused(f"`{name}`: {why}") from None
    try:
        return kind(**values)
    except TypeError:
        raise Refused(f"a {kind.__name__.lower()} that lacks something") from None
