"""What PID 1 and its helper `messenger` say to each other: orders of an operator, and the words of the group."""

from typing import Final, Literal, NamedTuple

from ftrun.core.group import messages
from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem

Verb = Literal["restart", "stop", "pause", "resume"]


class Attempt(NamedTuple):
    """Said: the number of the attempt that is under way."""

    number: int


class Answer(NamedTuple):
    """Said: what became of the operator's order `id`."""

    id: str
    ok: bool
    why: str


class Report(NamedTuple):
    """Said: what rank 0 has to know of this member, when it has changed."""

    report: messages.Report


class OperatorOrder(NamedTuple):
    """An operator wants this done, and waits `until` then, of time.monotonic(); a pause lasts `lasting` s."""

    id: str
    verb: Verb
    by: str
    lasting: float | None
    until: float


class Ordered(NamedTuple):
    """What rank 0 orders all members to do, when it has changed."""

    order: messages.GroupOrder


class Contact(NamedTuple):
    """Rank 0 has answered what we said `age` s ago."""

    age: float = 0.0


class Cut(NamedTuple):
    """Rank 0 has not answered for too long; once until `Contact`."""

    why: str


class Refused(NamedTuple):
    """Rank 0 does not take this member.  `misfit`: nor will it ever, for its version, options or secret."""

    why: str
    misfit: bool = False


class Noted(NamedTuple):
    """At rank 0: one line for its records, of what it has seen of the group."""

    what: str


class Left(NamedTuple):
    """Rank 0 has the report that we are leaving."""


Request = Attempt | Answer | Report
Event = OperatorOrder | Ordered | Contact | Cut | Refused | Noted | Left | Problem
REQUESTS: Final[Protocol[Request]] = Protocol("ask", Attempt, Answer, Report)
EVENTS: Final[Protocol[Event]] = Protocol("event", OperatorOrder, Ordered, Contact, Cut, Refused, Noted, Left, Problem)
