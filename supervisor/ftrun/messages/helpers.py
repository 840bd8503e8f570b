"""Shared by all protocols between PID 1 and its helpers: a message is one line of JSON on a pipe or a socket."""

from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.messages.codec import Protocol

LINE_LIMIT: Final = 65536  # bytes of a line from a helper
UNEXPECTED: Final = "unexpected error: "  # begins the problem of which a helper ends
REQUEST_LIMIT: Final = 1 << 20  # bytes of a request to a helper


class Problem(NamedTuple):
    """A problem, as one line of text.  Every helper may send it."""

    what: str


class Ready(NamedTuple):
    """The helper has begun its work."""


PROBLEMS: Final[Protocol[Problem]] = Protocol("event", Problem)  # of a helper that says nothing else
