"""The view of a whole group: between its messengers, in `group.json` of each run dir, and in requests of `ftctl`.

Members send a `MemberRow` each to rank 0, which sends the rows of all to all.  A `FileRequest` is passed on to the
member that it names, and the `FilePart` back.  Nothing in it changes what a member does.
"""

import json
from typing import Final, Literal

from ftrun.core.group.losses import LossWait
from ftrun.core.named_tuple import NamedTuple
from ftrun.messages.codec import Codec, Malformed, Value, one_line, parse_object
from ftrun.messages.group_waits import ANSWER, WAITS

SCHEMA: Final = 1
FILE: Final = "group.json"
ROW: Final = b"row"  # from a member: its `MemberRow`
VIEW: Final = b"view"  # from rank 0: a `GroupView`
ASK: Final = b"ask"  # a `FileRequest`, to rank 0 and from it
FILE_PART: Final = b"file part"  # a `FilePart`, to rank 0 and from it
KINDS: Final = (ROW, VIEW, ASK, FILE_PART, WAITS, ANSWER)
LIMIT: Final = 32768  # bytes of a frame
VIEW_ROWS: Final = 24_000  # bytes of rows in a frame
FILE_LIMIT: Final = 64 << 20  # bytes of `group.json`
PART: Final = 12_000  # bytes of a file in one answer
MOST: Final = 1 << 20  # bytes of a file that are passed on
PERIOD: Final = 2.0  # s between two rows of a member, in a group of up to 200
ROWS_PER_SECOND: Final = 100  # that rank 0 receives
BYTES_PER_SECOND: Final = 500_000  # that rank 0 sends for the view
ROW_BYTES: Final = 600  # of a row, for that rate
TEXT: Final = 300  # characters of a text
PACES: Final = 64  # ranks of a member whose step times are compared over the group
SLOW: Final = 8  # stragglers of a member that are shown


def period(size: int) -> float:
    """Seconds between two views that rank 0 sends to all members of a group of that size."""
    return max(PERIOD, size * size * ROW_BYTES / BYTES_PER_SECOND)


def row_period(size: int) -> float:
    """Seconds between two rows of a member in a group of that size."""
    return max(PERIOD, size / ROWS_PER_SECOND)


class RankPace(NamedTuple):
    """The seconds per step of a rank, lately, and its `work` in them (core/rules/stragglers.py); `device`: its
    accelerator, if that is known."""

    rank: int
    step_time: float
    device: str = ""
    work: float | None = None


class SlowRank(NamedTuple):
    """A straggler: `usual` is the median of the other ranks of the group, of `work` where that is given.  `since`: for
    how many seconds it has been one."""

    rank: int
    step_time: float
    usual: float
    device: str = ""
    since: float = 0.0
    work: float | None = None


class MemberRow(NamedTuple):
    """One member as its own run dir shows it.  `beat`: seconds since the last heartbeat of the rank that has been
    silent longest; `at`: CLOCK_MONOTONIC of the sender, and in `group.json` of its reader.  `report`: the attempt of
    the last report; `present`: it is not lost for rank 0, also while it connects again.  `paces` reach rank 0 only."""

    rank: int
    node: str
    phase: str
    health: str
    attempt: int
    at: float
    step: int | None = None
    step_time: float | None = None
    beat: float | None = None
    ranks: int = 0
    trouble: str | None = None
    report: int | None = None
    run_dir: str = ""
    present: bool = True
    slow: tuple[SlowRank, ...] = ()
    paces: tuple[RankPace, ...] = ()


class GroupView(NamedTuple):
    """What the coordinator knows at `now`, its CLOCK_MONOTONIC.  `what`, `why`: its order; `waits_for`: the members
    that it waits for; `loss`: until when it waits for those that are lost, None: for none.  `rows`: some or all.  In
    `group.json`: `rank` is that of the reader, and `now` its time of the last view of rank 0; `contact`: of the last
    reply of rank 0, which counts as lost after `silence` seconds, and after which the command may go on for `lease`.
    `holder`: the member that has the coordinator; `takeover`: when its lease in a shared folder ends, and another
    member takes its place; 0: there is none."""

    schema: int
    size: int
    rank: int
    now: float
    epoch: int = 0
    what: str = "wait"
    why: str = ""
    waits_for: tuple[int, ...] = ()
    rows: tuple[MemberRow, ...] = ()
    boot: str = ""
    loss: LossWait | None = None
    contact: float = 0.0
    silence: float = 0.0
    lease: float = 0.0
    holder: int = 0
    takeover: float = 0.0


class FileRequest(NamedTuple):
    """A part of a file of member `member`, from byte `offset` on.  `attempt` 0: the last one with a report.  `stacks`:
    those of that report; `present stacks`: those of the processes now, of one `rank` if given; `imports`: what its
    standbys have imported, as in its `state.json`."""

    id: str
    member: int
    what: Literal["report.md", "report.json", "stacks", "present stacks", "imports"]
    attempt: int = 0
    offset: int = 0
    rank: int | None = None


class FilePart(NamedTuple):
    """`size`: of the whole file; `attempt`: to which it belongs; `content`: base64, at most PART bytes of it."""

    id: str
    ok: bool
    why: str = ""
    attempt: int = 0
    size: int = 0
    content: str = ""


def dump(value: tuple[object, ...]) -> bytes:
    return json.dumps(_CODEC.plain(value)).encode("ascii")


def load(kind: type[Value], content: bytes, limit: int = LIMIT) -> Value:
    """The value, or Malformed."""
    return _CODEC.value(kind, parse_object(content, limit))


def load_row(content: bytes, rank: int) -> MemberRow:
    """The row of that member; Malformed if it is of another member, or too large."""
    row = load(MemberRow, content)
    if row.rank != rank or len(row.paces) > PACES or len(row.slow) > SLOW or len(row.run_dir) > TEXT:
        raise Malformed("it is not a row of that member")
    return row


_CODEC: Final = Codec(one_line)
