"""Messages between the messengers of a group, and to their PID 1: values of `core.group` to JSON, and back.

A member always sends four frames: its `MemberHello`, its `MemberReport`, its `Pulse` or nothing, and its time.  Rank 0
answers each message with [ORDER, the `GroupOrder`, the `seq` of the report it has, that time], or with [REFUSED, the
reason, FINAL, OVER or nothing]: it can never join, or the group has ended without it.  A coordinator that has a lease
in a shared folder adds a frame to an order, its stamp, and a member that shares it adds a `LeaseView` to each
message.  A messenger whose PID 1 has died sends BYE after its `MemberHello`.  One that is about to reconnect, because
no answer comes, sends RENEW, so that the end of the old connection does not count as the end of the member.
"""

import json
from typing import Any, Final

from ftrun.core.group.lease import Place
from ftrun.core.group.messages import (
    MOST_LIVES,
    SILENCE,
    EpochRanks,
    GroupOrder,
    Life,
    MemberReport,
    Places,
    Pulse,
    Ranks,
    Starter,
)
from ftrun.core.group.places import MOST_PAIRS
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.ranks.shared import GroupRound, NodeRounds
from ftrun.core.text.sentences import several
from ftrun.messages.codec import Codec, Malformed, Value, one_line, parse_object

SCHEMA: Final = 8
ORDER: Final = b"order"
REFUSED: Final = b"refused"
BYE: Final = b"bye"
RENEW: Final = b"again"
FINAL: Final = b"misfit"
OVER: Final = b"over"
LIMIT: Final = 32768  # bytes of a frame
TEXT: Final = 500  # characters of a text; a longer one is truncated
PERIOD: Final = 1.0  # s between two heartbeats of a member
MAX_PERIOD: Final = 4.5  # s, in a large group; PID 1 gets a `contact` at least every 5 s
HEARTBEATS_PER_SECOND: Final = 200  # that rank 0 receives at most
MOST_RANKS: Final = 1024  # on one node: the slots of a beat file
MOST_MEMBERS: Final = 1 << 20
MOST_REPLACED: Final = 2048  # ranks that a round names
MOST_WITNESSES: Final = 64  # members that may take over
ADDRESS: Final = 255  # characters


class Incompatible(Malformed):
    """A mismatch that neither waiting nor another schedule of the same job resolves."""


class MemberAddress(NamedTuple):
    """The position of this ftrun in its group; the third argument of the messenger.  `secret`: the path of a file.
    `silence`: seconds without a message after which a member counts as lost.  `least`, `spares`, `replaces`,
    `scale_out`: as in `membership.GroupShape`.  `port`: as long as this ftrun lives, it accepts connections there; 0:
    there is none.  `contained`: if it dies, the kernel ends all of its processes.  `folder`: where the group may have a
    lease; empty: nowhere, as in a group of a fixed size, which has no lease."""

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
    least: int = 0
    spares: int = 0
    replaces: bool = False
    scale_out: bool = False
    port: int = 0
    contained: bool = False
    folder: str = ""


class LeaseView(NamedTuple):
    """A fifth frame of a member's message, where its group has a lease (core/group/lease.py): which place it has seen,
    so that it shares that folder; `life`: of its holder; `quiet`: for how long that place has not changed, nor its
    holder answered.  `heard`: the stamp of the newest answer that had one."""

    number: int
    life: str
    quiet: float
    binding: bool
    heard: str = ""


class MemberHello(NamedTuple):
    version: str
    job: str
    size: int
    rank: int
    life: str
    node: str
    least: int = 0
    spares: int = 0
    port: int = 0
    contained: bool = False
    schema: int = SCHEMA


def period(size: int) -> float:
    """The period of the heartbeats, in seconds, for a group of that size."""
    return min(max(PERIOD, size / HEARTBEATS_PER_SECOND), MAX_PERIOD)


def shape_text(found: MemberHello | MemberAddress) -> str:
    """`2:4 with 1 spare`."""
    size = f"{found.least}:{found.size}" if found.least else str(found.size)
    return f"{size} with {several(found.spares, 'spare')}" if found.spares else size


def dump(value: tuple[Any, ...]) -> bytes:
    return json.dumps(_CODEC.plain(value), ensure_ascii=False).encode("utf-8", "replace")


def load_hello(content: bytes, version: str) -> MemberHello:
    """The hello; if the schema or version differs, the other fields are not checked."""
    found = parse_object(content, LIMIT)
    if found.get("schema") != SCHEMA or found.get("version") != version:
        version_sent = line(str(found.get("version")))[:40]
        raise Incompatible(f"it is ftrun {version_sent}, and rank 0 is ftrun {version}: a group has one")
    hello = _CODEC.value(MemberHello, found)
    _check_address("", hello.port)
    return hello


def load_report(content: bytes) -> MemberReport:
    report = load(MemberReport, content)
    _check_places(report.places)
    _check_address(report.address, 0)
    _check_starter(report.starter)
    _check_lives(report.lives)
    if report.ranks is not None:
        _check_ranks(report.ranks)
    if report.rounds is not None:
        _check_rounds(report.rounds)
    return report


def load_order(content: bytes) -> GroupOrder:
    order = load(GroupOrder, content)
    _check_places(order.places)
    _check_address(order.master, 0)
    _check_starter(order.starter)
    _check_lives(order.lives)
    if order.world is not None:
        _check_world(order.world)
    if order.round is not None:
        _check_round(order.round)
    return order


def load_place(content: bytes) -> Place:
    place = load(Place, content)
    _check_places(place.places)
    if len(place.witnesses) > MOST_WITNESSES or len(place.endpoint) > ADDRESS + 8:
        raise Malformed("not a place of a lease")
    return place


def dump_pulse(pulse: Pulse | None) -> bytes:
    return b"" if pulse is None else dump(pulse)


def load_pulse(content: bytes) -> Pulse | None:
    return load(Pulse, content) if content else None


def load_ack(content: bytes) -> int:
    if not content.isdigit() or len(content) > 16:
        raise Malformed("not a number")
    return int(content)


def dump_time(at: float) -> bytes:
    return b"%d" % (at * 1e6)


def dump_stamp(life: str, at: float) -> bytes:
    """The stamp of a coordinator that has the lease: its life, and its time."""
    return f"{life} ".encode() + dump_time(at)


def load_stamp(content: bytes) -> tuple[str, float]:
    life, _, at = content[:LIMIT].decode("ascii", "replace").partition(" ")
    return life, load_time(at.encode())


def load_time(content: bytes) -> float:
    return load_ack(content) / 1e6


def load_why(content: bytes) -> str:
    return line(content[: TEXT * 4].decode("utf-8", "replace"))


def bounded(report: MemberReport) -> MemberReport:
    """The report with all texts within the limits."""
    return _CODEC.value(MemberReport, _CODEC.plain(report))


def line(value: str) -> str:
    """One printable line for a terminal."""
    return one_line(value[:TEXT])


def _check_ranks(ranks: Ranks) -> None:
    if not 0 < ranks.number <= MOST_RANKS:
        raise Malformed(f"`ranks`: not 1 to {MOST_RANKS}")
    _check_address(ranks.address, ranks.port)


def _check_world(world: EpochRanks) -> None:
    counts = world.counts
    if not 0 < len(counts) <= MOST_PAIRS or not all(members > 0 and 0 < n <= MOST_RANKS for members, n in counts):
        raise Malformed("`world`: not the counts of ranks")
    if sum(members for members, _ in counts) > MOST_MEMBERS:
        raise Malformed(f"`world`: more than {MOST_MEMBERS} members")
    _check_address(world.address, world.port)


def _check_rounds(rounds: NodeRounds) -> None:
    _check_numbers(rounds.number, rounds.ranks)
    if rounds.adopted is not None:
        _check_round(rounds.adopted)


def _check_round(found: GroupRound) -> None:
    _check_numbers(found.number, found.ranks)
    _check_address(found.address, found.port)


def _check_numbers(number: int, ranks: tuple[int, ...]) -> None:
    if number < 1 or len(ranks) > MOST_REPLACED or not all(rank >= 0 for rank in ranks):
        raise Malformed("not a round of ranks")


def _check_places(places: Places) -> None:
    if len(places) > MOST_PAIRS or not all(first >= 0 and count > 0 for first, count in places):
        raise Malformed("`places`: not the members of an epoch")
    if sum(count for _, count in places) > MOST_MEMBERS:
        raise Malformed(f"`places`: more than {MOST_MEMBERS} members")


def _check_starter(starter: Starter | None) -> None:
    if starter is not None:
        _check_address(starter.host, starter.port)


def _check_lives(lives: tuple[Life, ...]) -> None:
    if len(lives) > MOST_LIVES:
        raise Malformed(f"`lives`: more than {MOST_LIVES}")
    for life in lives:
        _check_address(life.host, life.port)


def _check_address(address: str, port: int) -> None:
    if not 0 <= port < 65536 or len(address) > ADDRESS or " " in address:
        raise Malformed("not an address and a port")


def load(kind: type[Value], content: bytes) -> Value:
    return _CODEC.value(kind, parse_object(content, LIMIT))


_CODEC: Final = Codec(line)
