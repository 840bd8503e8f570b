"""Messages between PID 1 and the helpers that write to disks and readers which may not answer: `output` (of the
command), `line_writer` (ftrun's own lines to a stderr on a network disk) and `mirror` (a run dir on a network disk)."""

from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem


class AttemptBegins(NamedTuple):
    """From PID 1 at `mono`, before this attempt starts: the tail covers output from then on.  `number`: as in the line
    of the log that begins this attempt; 0: there is no such line, since the first attempt begins the log, or an earlier
    helper has written the line.  `first_rank`: the number of local rank 0 in the whole job, with which marked lines
    begin."""

    number: int
    mono: float
    first_rank: int = 0


class GetTail(NamedTuple):
    """From PID 1: send the last lines of the output."""


class LastLines(NamedTuple):
    lines: tuple[str, ...]


class Broken(NamedTuple):
    """The reader of this stream is gone, and the helper has closed its pipe."""

    stream: int


OutputRequest = AttemptBegins | GetTail
OutputEvent = LastLines | Broken | Problem
OUTPUT_REQUESTS: Final[Protocol[OutputRequest]] = Protocol("ask", OutputRequest)
OUTPUT_EVENTS: Final[Protocol[OutputEvent]] = Protocol("event", OutputEvent)


class Write(NamedTuple):
    """From PID 1: the next text, which ends with a line feed."""

    text: str


LINE_REQUESTS: Final[Protocol[Write]] = Protocol("ask", Write)


class MirrorDone(NamedTuple):
    """The request is completed.  `path`: the folder that was created.  `read`: the token of the fetched copy.
    `replace`: the fetched copy has to replace the local folder.  Each is set if the verb provides it."""

    path: str = ""
    read: str = ""
    replace: bool = False


class MirrorRefused(NamedTuple):
    """The request cannot succeed, however long one waits."""

    why: str


MirrorEvent = MirrorDone | MirrorRefused | Problem
MIRROR_EVENTS: Final[Protocol[MirrorEvent]] = Protocol("event", MirrorEvent)
