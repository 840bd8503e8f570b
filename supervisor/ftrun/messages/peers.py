"""What the messengers of a group say to each other, and to their PID 1: values of `core.group` as JSON, and back.

A member sends four frames, always whole: who it is (`Hello`), its `Report`, its `Pulse` or nothing, and its time.
Rank 0 answers each with [ORDER, the `Order`, the `seq` of the report it has, that time], or with [REFUSED, why, MISFIT
or nothing].  A messenger whose PID 1 has died says BYE after its `Hello`; one that is about to make its connection
anew, because no answer comes, says AGAIN, so that the end of the old one is not taken for its own.
"""

import json
from typing import Any, Final, NamedTuple

from ftrun.core.group.messages import SILENCE, GroupOrder, Pulse, Report
from ftrun.messages import objects
from ftrun.messages.codec import Codec, Malformed

SCHEMA: Final = 1
ORDER: Final = b"order"
REFUSED: Final = b"refused"
BYE: Final = b"bye"
AGAIN: Final = b"again"
MISFIT: Final = b"misfit"
LIMIT: Final = 32768  # bytes of a frame
TEXT: Final = 500  # characters of a text; longer ones are cut


class Misfit(Malformed):
    """Neither waiting nor another schedule of the same job changes it."""


class MemberAddress(NamedTuple):
    """Where this ftrun stands in its group; the third word of the messenger.  `secret`: the path of a file.  `silence`:
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


def dump(value: tuple[Any, ...]) -> bytes:
    return json.dumps(_CODEC.plain(value), ensure_ascii=False).encode("utf-8", "replace")


def dump_hello(hello: Hello) -> bytes:
    return json.dumps({"schema": SCHEMA, **hello._asdict()}).encode("ascii")


def dump_pulse(pulse: Pulse | None) -> bytes:
    return b"" if pulse is None else dump(pulse)


def load_place(content: str) -> MemberAddress:
    return _CODEC.load(MemberAddress, content)


def load_hello(content: bytes, version: str) -> Hello:
    """Of another schema or version nothing else is asked."""
    found = _object(content)
    if found.get("schema") != SCHEMA or found.get("version") != version:
        theirs = line(str(found.get("version")))[:40]
        raise Misfit(f"it is ftrun {theirs}, and rank 0 is ftrun {version}: a group has one")
    del found["schema"]
    return _CODEC.value(Hello, found)


def load_report(content: bytes) -> Report:
    return _CODEC.value(Report, _object(content))


def load_order(content: bytes) -> GroupOrder:
    return _CODEC.value(GroupOrder, _object(content))


def load_pulse(content: bytes) -> Pulse | None:
    return _CODEC.value(Pulse, _object(content)) if content else None


def load_ack(content: bytes) -> int:
    if not content.isdigit() or len(content) > 16:
        raise Malformed("no number")
    return int(content)


def dump_time(at: float) -> bytes:
    return b"%d" % (at * 1e6)


def load_time(content: bytes) -> float:
    return load_ack(content) / 1e6


def load_why(content: bytes) -> str:
    return line(content[: TEXT * 4].decode("utf-8", "replace"))


def cleaned(report: Report) -> Report:
    """With texts within the limits."""
    return _CODEC.value(Report, _CODEC.plain(report))


def _object(content: bytes) -> dict[str, Any]:
    try:
        return objects.load(content, LIMIT)
    except ValueError as why:
        raise Malformed(str(why)) from None


def line(value: str) -> str:
    """One line for a person's terminal."""
    value = value[:TEXT]
    return value if value.isprintable() else "".join(c if c.isprintable() else " " for c in value)


_CODEC: Final = Codec(line)
