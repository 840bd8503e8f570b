"""What PID 1 and the helper `output` say to each other: it passes on what the command writes."""

from typing import Final, NamedTuple

from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem


class Attempt(NamedTuple):
    """Said at `mono`, before this attempt is started: the tail is of what is written from then on."""

    number: int
    mono: float


class GetTail(NamedTuple):
    """Asked: what were the last lines?"""


class Tail(NamedTuple):
    lines: tuple[str, ...]


class Broken(NamedTuple):
    """Nobody reads this stream any more, and the helper has let go of its pipe."""

    stream: int


Request = Attempt | GetTail
Event = Tail | Broken | Problem
REQUESTS: Final[Protocol[Request]] = Protocol("ask", Attempt, GetTail)
EVENTS: Final[Protocol[Event]] = Protocol("event", Tail, Broken, Problem)
