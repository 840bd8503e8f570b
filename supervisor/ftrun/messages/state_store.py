"""What PID 1 and the helper `state_store` say to each other: what outlives the pod, in the state dir."""

from typing import Final, NamedTuple

from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem

LATEST: Final = 1e12  # s, of either clock: `state.json` takes no more


class Fault(NamedTuple):
    """One device fault; `wall` and `mono` are when it occurred, in s since the epoch and since the boot `boot`."""

    node: str
    device: str
    code: str
    severity: str
    wall: float
    boot: str
    mono: float
    job: str = ""


class Schedule(NamedTuple):
    """One life of a container, in the order of `core.history.Schedule`: `count` is the outer scheduler's number."""

    key: str
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    node: str
    wall: float
    best_step: int | None
    best_checkpoint: int | None
    progressed: bool
    faulted: bool
    failed: bool = False
    phase: str = ""
    job: str = ""


class Verdict(NamedTuple):
    """How this job ended, for all its ftruns.  `time` is ISO-8601, UTC."""

    schema: int
    verdict: str
    exit_code: int
    node: str
    device: str | None
    why: str
    schedule_cnt: int
    time: str


class Keep(NamedTuple):
    """Asked: add these to the history."""

    faults: tuple[Fault, ...]
    schedule: Schedule | None


class TellVerdict(NamedTuple):
    """Asked: write this verdict, unless there is one of the same schedule since `since`, in s since the epoch."""

    verdict: Verdict
    since: float = 0.0


class GetVerdict(NamedTuple):
    """Asked: the verdict of that schedule, if it is not older than `since`."""

    schedule_cnt: int
    since: float


class History(NamedTuple):
    """All that is known now, the oldest first: at the start, and after each `KeepRunning`."""

    faults: tuple[Fault, ...]
    schedules: tuple[Schedule, ...]


class Told(NamedTuple):
    """After `TellVerdict`: the verdict that stands."""

    verdict: Verdict | None


class Shared(NamedTuple):
    """After `GetVerdict`; None: there is no such verdict."""

    verdict: Verdict | None


Request = Keep | TellVerdict | GetVerdict
Event = History | Told | Shared | Problem
REQUESTS: Final[Protocol[Request]] = Protocol("ask", Keep, TellVerdict, GetVerdict)
EVENTS: Final[Protocol[Event]] = Protocol("event", History, Told, Shared, Problem)
