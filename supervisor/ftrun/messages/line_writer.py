"""Messages between PID 1 and the helper `line_writer`, which writes ftrun's lines to a stderr on a network disk."""

from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem


class Write(NamedTuple):
    """From PID 1: the next text, which ends with a line feed."""

    text: str


Request = Write
Event = Problem
REQUESTS: Final[Protocol[Request]] = Protocol("ask", Write)
EVENTS: Final[Protocol[Event]] = Protocol("event", Problem)
