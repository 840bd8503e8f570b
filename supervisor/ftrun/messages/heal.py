"""What PID 1 and the helper `heal` say to each other: it runs the command that heals a device."""

from typing import Final, NamedTuple

from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem


class Remedy(NamedTuple):
    """The request that it is started with: `sh -c command`, with that added to the environment, for `timeout` s."""

    command: str
    timeout: float
    environment: dict[str, str]


class Healed(NamedTuple):
    """Its last message.  `why` is None where the command has succeeded."""

    ok: bool
    why: str | None


Event = Healed | Problem
EVENTS: Final[Protocol[Event]] = Protocol("event", Healed, Problem)
