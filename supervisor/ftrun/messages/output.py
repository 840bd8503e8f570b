"""Messages between PID 1 and the helper `output`, which forwards the output of the command."""

from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem


class Attempt(NamedTuple):
    """From PID 1 at `mono`, before this attempt starts: the tail covers output from then on.  `number`: what the log
    says of it; 0: nothing, since it is the first, which begins the log, or a helper before this one has been told.
    `first_rank`: the number of local rank 0 in the whole job, which
    marked lines begin with."""

    number: int
    mono: float
    first_rank: int = 0


class GetTail(NamedTuple):
    """From PID 1: send the last lines of the output."""


class Tail(NamedTuple):
    lines: tuple[str, ...]


class Broken(NamedTuple):
    """The reader of this stream is gone, and the helper has closed its pipe."""

    stream: int


Request = Attempt | GetTail
Event = Tail | Broken | Problem
REQUESTS: Final[Protocol[Request]] = Protocol("ask", Attempt, GetTail)
EVENTS: Final[Protocol[Event]] = Protocol("event", Tail, Broken, Problem)
