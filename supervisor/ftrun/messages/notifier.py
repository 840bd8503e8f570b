"""Messages between PID 1 and the helper `notifier` (`--on-event`, `--webhook`)."""

from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem


class Destinations(NamedTuple):
    """Where to report the records of these names.  The helper gets it in a file that only it can read, since a command
    line is visible to all users, and a URL may hold a secret.  `job`, `node`: what the notification says of the run.
    `member`: of a group; None: there is none."""

    commands: tuple[str, ...]
    urls: tuple[str, ...]
    slack: bool
    names: tuple[str, ...]
    job: str
    node: str
    member: int | None = None


Event = Problem
EVENTS: Final[Protocol[Event]] = Protocol("event", Problem)
