"""Messages of the helper `metrics` to PID 1."""

from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem


class Listening(NamedTuple):
    """`address` is HOST:PORT, with the actual port."""

    address: str


Event = Listening | Problem
EVENTS: Final[Protocol[Event]] = Protocol("event", Listening, Problem)
