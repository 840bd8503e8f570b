"""Messages between PID 1 and the helper `state_store`, which keeps in the state dir what outlives the pod."""

from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules.fault_history import Occurrence, Schedule
from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem

PATH: Final = 512  # bytes of a path, as JSON
NOT_KEPT: Final = "its data does not outlive this pod"  # the end of the problem that is printed for the user
LATEST: Final = 1e12  # s, of either clock: the largest time that `state.json` allows


class SharedVerdict(NamedTuple):
    """The verdict on this job, for all its ftruns.  `time` is ISO-8601, UTC."""

    schema: int
    verdict: str
    exit_code: int
    node: str
    device: str | None
    why: str
    schedule_cnt: int
    time: str


class Keep(NamedTuple):
    """From PID 1: add these to the history.  `attempt`: the number of the last attempt that was started; `ended`: the
    last record of this run is written.  A `last_checkpoint` of more than `PATH` bytes is empty."""

    faults: tuple[Occurrence, ...]
    schedule: Schedule | None
    attempt: int = 0
    ended: bool = False


class KeepImports(NamedTuple):
    """From PID 1: write what a later ftrun may import in advance (`pid1/preload.py`), as JSON."""

    content: str


class StoreVerdict(NamedTuple):
    """From PID 1: write this verdict, unless the same schedule has one since `since`, in s since the epoch.  `member`:
    the verdict is about this member of a group only, which goes on without it, and goes to a file of its own."""

    verdict: SharedVerdict
    since: float = 0.0
    member: int | None = None


class GetVerdict(NamedTuple):
    """From PID 1: send the verdict of that schedule, if it is not older than `since`."""

    schedule_cnt: int
    since: float


class StoredHistory(NamedTuple):
    """The complete history, oldest first: at the start, and after each `Keep`."""

    faults: tuple[Occurrence, ...]
    schedules: tuple[Schedule, ...]


class StoredImports(NamedTuple):
    """At the start, before the history: what the last `KeepImports` of any ftrun has left, if anything."""

    content: str


class VerdictStored(NamedTuple):
    """Answer to `StoreVerdict`: the valid verdict."""

    verdict: SharedVerdict | None


class Shared(NamedTuple):
    """Answer to `GetVerdict`; None if there is no such verdict."""

    verdict: SharedVerdict | None


StoreRequest = Keep | KeepImports | StoreVerdict | GetVerdict
StoreEvent = StoredHistory | StoredImports | VerdictStored | Shared | Problem
REQUESTS: Final[Protocol[StoreRequest]] = Protocol("ask", StoreRequest)
EVENTS: Final[Protocol[StoreEvent]] = Protocol("event", StoreEvent)
