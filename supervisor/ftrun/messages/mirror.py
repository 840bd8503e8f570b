"""What the helper `mirror` says to PID 1: it copies to a run dir on a network disk, and from there."""

from typing import Final, NamedTuple

from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem


class Done(NamedTuple):
    """All is done.  `path`: the folder that was made; `read`: the token of what was fetched; `replace`: what was
    fetched is to take the place of the local folder.  Each is there if the verb gives it."""

    path: str = ""
    read: str = ""
    replace: bool = False


class Refused(NamedTuple):
    """It will not work, however long one waits."""

    why: str


Event = Done | Refused | Problem
EVENTS: Final[Protocol[Event]] = Protocol("event", Done, Refused, Problem)
