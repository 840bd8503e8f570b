"""What the protocols between PID 1 and its helpers share: a message is one line of JSON on a pipe or a socket."""

from typing import Final, NamedTuple

LINE_LIMIT: Final = 65536  # bytes of a line that a helper says
REQUEST_LIMIT: Final = 1 << 20  # bytes of a line that a helper is asked


class Problem(NamedTuple):
    """One line for a person.  Every helper may say it."""

    what: str


class Ready(NamedTuple):
    """The helper has begun its work."""
