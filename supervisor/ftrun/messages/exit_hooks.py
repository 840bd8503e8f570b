"""Messages between PID 1 and the helper `exit_hooks`, which does the work at the end of the container."""

from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem


class Work(NamedTuple):
    """The request that the helper is started with: run the commands, then unmount the paths; wait at most `grace` s, or
    without a limit if None.  The commands get `variables` in their environment."""

    commands: tuple[str, ...]
    unmount: tuple[str, ...]
    grace: float | None
    variables: tuple[tuple[str, str], ...] = ()


class Failed(NamedTuple):
    """A part of the work that failed, and the reason, one line each."""

    what: str
    why: str


class HooksFinished(NamedTuple):
    """The last message.  Work that is `late` continues unattended in the processes `pids`."""

    late: tuple[str, ...]
    failed: tuple[Failed, ...]
    pids: tuple[int, ...]


ExitHooksEvent = HooksFinished | Problem
EVENTS: Final[Protocol[ExitHooksEvent]] = Protocol("event", ExitHooksEvent)
