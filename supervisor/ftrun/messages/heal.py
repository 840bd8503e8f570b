"""Messages between PID 1 and the helper `heal`, which runs the command that heals a device."""

from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem


class Remedy(NamedTuple):
    """The request that the helper is started with: run `sh -c command` with these variables added, for `timeout` s."""

    command: str
    timeout: float
    environment: dict[str, str]


class Healed(NamedTuple):
    """The last message.  `why` is None if the command succeeded."""

    ok: bool
    why: str | None


Event = Healed | Problem
EVENTS: Final[Protocol[Event]] = Protocol("event", Healed, Problem)
