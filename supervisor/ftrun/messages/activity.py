"""Messages between PID 1 and the helpers that see what the command does: `sampler`, which measures the activity of its
processes, and `checkpoint_watcher`, which reports the checkpoint files that were saved."""

from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem, Ready


class SampledTree(NamedTuple):
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


SamplerEvent = Begun | Sample | Problem
SAMPLER_REQUESTS: Final[Protocol[SampledTree]] = Protocol("ask", SampledTree)
SAMPLER_EVENTS: Final[Protocol[SamplerEvent]] = Protocol("event", SamplerEvent)


SINCE: Final = "--since="  # the first argument of the helper: what was written since this monotonic time is new


class Saved(NamedTuple):
    """A checkpoint was complete at `mono`, of time.monotonic().  `renamed`: it was renamed into place, rather than
    closed by its writer, which may have died.  `written`: when it was last written to, where that is known.  `older`:
    a checkpoint that was written later was reported before."""

    path: str
    mono: float
    renamed: bool
    written: float | None = None
    older: bool = False


class GetRest(NamedTuple):
    """From PID 1, after the command has ended: report what was complete by then.  Answered by `AllSent`."""


class AllSent(NamedTuple):
    """Each checkpoint that was complete at the request has been reported."""


WatcherEvent = Ready | Saved | AllSent | Problem
WATCHER_REQUESTS: Final[Protocol[GetRest]] = Protocol("ask", GetRest)
WATCHER_EVENTS: Final[Protocol[WatcherEvent]] = Protocol("event", WatcherEvent)
