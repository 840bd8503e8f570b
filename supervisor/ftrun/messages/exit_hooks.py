"""What PID 1 and the helper `exit_hooks` say to each other: it does what is to be done at the end of the container."""

from typing import Final, NamedTuple

from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem


class Work(NamedTuple):
    """The request that it is started with: run the commands, then unmount the paths; wait for at most `grace` s, or
    (None) as long as it takes."""

    commands: tuple[str, ...]
    unmount: tuple[str, ...]
    grace: float | None


class Failed(NamedTuple):
    """One line each: which part of the work failed, and why."""

    what: str
    why: str


class Parted(NamedTuple):
    """Its last message.  What is `late` goes on without being waited for, in the processes `pids`."""

    late: tuple[str, ...]
    failed: tuple[Failed, ...]
    pids: tuple[int, ...]


Event = Parted | Problem
EVENTS: Final[Protocol[Event]] = Protocol("event", Parted, Problem)
