"""Messages between PID 1 and its helper `messenger`: requests of an operator, and the messages of the group.  What the
core decides is sent as it is: `AnswerOperator` to the helper, and at rank 0 `NodeNote` and `NodeLost` from it."""

from typing import Final, Literal

from ftrun.core.group import messages
from ftrun.core.group.losses import NodeLost, NodeNote
from ftrun.core.machine.effects import AnswerOperator
from ftrun.core.named_tuple import NamedTuple
from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem

Verb = Literal["restart", "stop", "pause", "resume"]


class AttemptNumber(NamedTuple):
    """From PID 1: the number of the current attempt."""

    number: int


class ChangedReport(NamedTuple):
    """From PID 1: the changed state of this member, for rank 0."""

    report: messages.MemberReport


class SeekImports(NamedTuple):
    """From PID 1 of a spare: ask the members at work what their command has imported; the answer is `FoundImports`."""


class OperatorRequest(NamedTuple):
    """A request of an operator, who waits until `until`, of time.monotonic(); a pause lasts `lasting` s."""

    id: str
    verb: Verb
    by: str
    lasting: float | None
    until: float


class ChangedOrder(NamedTuple):
    """The changed order of rank 0 to all members."""

    order: messages.GroupOrder


class Contact(NamedTuple):
    """Rank 0 has answered the message that was sent `age` s ago."""

    age: float = 0.0


class Tenure(NamedTuple):
    """At the coordinator: until when its lease in the shared folder allows the ranks here to run, by time.monotonic();
    None: without an end; 0: another member has it."""

    until: float | None


class RankZeroSilent(NamedTuple):
    """Rank 0 has not answered for too long; sent once until the next `Contact`.  `takeover`: the seconds until another
    member takes its place; None: none does.  `holder`: the member that coordinates."""

    why: str
    takeover: float | None = None
    holder: int = 0


class NodeRefused(NamedTuple):
    """Rank 0 rejects this member.  `final`: for good, because of its version, options or secret.  `over`: the group has
    ended without it."""

    why: str
    final: bool = False
    over: bool = False


class Straggler(NamedTuple):
    """A rank has been slow for `seconds`: `step_time` s per step, the median of the others is `usual`; with `work`: so
    many of them it works, and `usual` is the work of the others.  `member`: of the group, where rank 0 reports it;
    `node`: its host; `device`: its accelerator, if that is known."""

    rank: int
    step_time: float
    usual: float
    seconds: float
    member: int | None = None
    node: str = ""
    device: str = ""
    work: float | None = None


class FoundImports(NamedTuple):
    """What the standbys of a member at work have imported, as in its `state.json`."""

    content: str


class LeaveConfirmed(NamedTuple):
    """Rank 0 has received the report that this member is leaving."""


MessengerRequest = AttemptNumber | AnswerOperator | ChangedReport | SeekImports
MessengerEvent = (
    OperatorRequest
    | ChangedOrder
    | Contact
    | Tenure
    | RankZeroSilent
    | NodeRefused
    | NodeNote
    | NodeLost
    | Straggler
    | FoundImports
    | LeaveConfirmed
    | Problem
)
REQUESTS: Final[Protocol[MessengerRequest]] = Protocol("ask", MessengerRequest)
EVENTS: Final[Protocol[MessengerEvent]] = Protocol("event", MessengerEvent)
