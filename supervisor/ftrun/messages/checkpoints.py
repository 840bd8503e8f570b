"""Messages between PID 1 and the checkpoint watcher: which checkpoint files were saved."""

from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem, Ready

SINCE: Final = "--since="  # the first argument of the helper: what was written since this monotonic time is new


class Saved(NamedTuple):
    """A checkpoint was complete at `mono`, of time.monotonic().  `renamed`: it was renamed into place, rather than
    closed by its writer, which may have died.  `written`: when it was last written to, where that is known."""

    path: str
    mono: float
    renamed: bool
    written: float | None = None


class GetRest(NamedTuple):
    """From PID 1, after the command has ended: report what was complete by then.  Answered by `AllSent`."""


class AllSent(NamedTuple):
    """Each checkpoint that was complete at the request has been reported."""


Event = Ready | Saved | AllSent | Problem
REQUESTS: Final[Protocol[GetRest]] = Protocol("ask", GetRest)
EVENTS: Final[Protocol[Event]] = Protocol("event", Ready, Saved, AllSent, Problem)
