"""Messages between PID 1 and the helper `sampler`, which measures the activity of the command's processes."""

from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem


class Tree(NamedTuple):
    """From PID 1: sample the command `root` and its descendants, without the processes `spared` and theirs."""

    root: int
    spared: tuple[int, ...]


class Begun(NamedTuple):
    """Another tree is sampled from now on."""

    root: int


class Sample(NamedTuple):
    """Activity of the tree of `root` in the `seconds` up to `mono`: cores in use, bytes read and written per second."""

    mono: float
    seconds: float
    cpu: float
    io: float
    processes: int
    root: int


Event = Begun | Sample | Problem
REQUESTS: Final[Protocol[Tree]] = Protocol("ask", Tree)
EVENTS: Final[Protocol[Event]] = Protocol("event", Begun, Sample, Problem)
