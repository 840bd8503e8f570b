"""Messages of the helper `mirror`, which copies to and from a run dir on a network disk, to PID 1."""

from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem


class Done(NamedTuple):
    """The request is completed.  `path`: the folder that was created.  `read`: the token of the fetched copy.
    `replace`: the fetched copy has to replace the local folder.  Each is set if the verb provides it."""

    path: str = ""
    read: str = ""
    replace: bool = False


class Refused(NamedTuple):
    """The request cannot succeed, however long one waits."""

    why: str


Event = Done | Refused | Problem
EVENTS: Final[Protocol[Event]] = Protocol("event", Done, Refused, Problem)
