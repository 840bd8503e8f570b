"""What PID 1 and the helper `sampler` say to each other: how busy the command's processes are."""

from typing import Final, NamedTuple

from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem


class Tree(NamedTuple):
    """Asked: sample the command `root` with all below it, but for the processes `spared` with all below them."""

    root: int
    spared: tuple[int, ...]


class Begun(NamedTuple):
    """Another tree is sampled from now on."""

    root: int


class Sample(NamedTuple):
    """What the tree of `root` did in the `seconds` up to `mono`: cores in use, and bytes read and written a second."""

    mono: float
    seconds: float
    cpu: float
    io: float
    processes: int
    root: int


Event = Begun | Sample | Problem
REQUESTS: Final[Protocol[Tree]] = Protocol("ask", Tree)
EVENTS: Final[Protocol[Event]] = Protocol("event", Begun, Sample, Problem)
