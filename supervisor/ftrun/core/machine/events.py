"""What happened, in the past tense.  Every event carries the monotonic time at which it was seen."""

from typing import TYPE_CHECKING, NamedTuple

from ftrun.core.group import messages
from ftrun.core.machine.values import Device, Fault, Rank
from ftrun.core.rules.fault_history import Clock, Occurrence, Schedule
from ftrun.core.rules.idle import TreeSample

if TYPE_CHECKING:  # PID 1 loads it when there is a failure to explain
    from ftrun.core.rules.crash_causes import CommandFailure


class Started(NamedTuple):
    now: float


class CommandSpawned(NamedTuple):
    now: float
    pid: int


class SpawnFailed(NamedTuple):
    """`code` is 126, 127 or 125; `why` is one line for a person."""

    now: float
    code: int
    why: str


class DeadlineReached(NamedTuple):
    """The phase's deadline came."""

    now: float


class WokeLate(NamedTuple):
    """We wanted to wake at `since` and woke at `now`: the machine, the container or ftrun was frozen."""

    now: float
    since: float


class BeatsRead(NamedTuple):
    """The beats were read.  `barred`: processes of the command run as a user who cannot give any."""

    now: float
    ranks: tuple[Rank, ...]
    barred: bool = False


class CheckpointSaved(NamedTuple):
    """A checkpoint file came into being `at` that time: renamed into place, or written there, closed and at rest."""

    now: float
    path: str
    at: float
    renamed: bool = True


class TreeSampled(NamedTuple):
    """What the whole tree did in the last period."""

    now: float
    sample: TreeSample


class DevicesReleased(NamedTuple):
    """Whether the devices are free after a kill: `held` says which are not, and by whom; `silent`, for which of them
    nobody answers, which is no fault of theirs.  `well`: those of the devices that were taken out that were just seen
    to be healthy, without any fault, and free."""

    now: float
    held: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    well: tuple[str, ...] = ()
    clock: Clock = Clock(0.0)


class EvidenceCollected(NamedTuple):
    """What a suspicion showed on a closer look; `cleared` says why it is none, if it is none."""

    now: float
    ranks: tuple[Rank, ...]
    evidence: tuple[tuple[str, object], ...] = ()
    cleared: str | None = None


class CommandStopped(NamedTuple):
    """The user's job control stopped the command."""

    now: float
    signal: int


class CommandContinued(NamedTuple):
    now: float


class CommandExited(NamedTuple):
    """The command ended; `ending` is what is known of why, where it failed by itself."""

    now: float
    code: int | None = None
    signal: int | None = None
    ending: "CommandFailure | None" = None


class TreeEnded(NamedTuple):
    """The kernel shows no process of the attempt any more; `killed` of them needed SIGKILL."""

    now: float
    killed: int = 0


class ProcessesSurvived(NamedTuple):
    """SIGKILL did not end these: `pid (name) state wchan`.

    `refused`: it was not delivered to any of them, for we are not permitted to signal them.  `command`: the command is
    one of them.  `killed` others needed SIGKILL.
    """

    now: float
    processes: tuple[str, ...]
    refused: bool = False
    command: bool = True
    killed: int = 0


class SignalReceived(NamedTuple):
    """A signal from outside.  `stop`: it asks for the end (SIGTERM, SIGINT, SIGQUIT)."""

    now: float
    signal: int
    stop: bool


class FaultReported(NamedTuple):
    """`standing`: the device had it before the command was first started."""

    now: float
    fault: Fault
    clock: Clock = Clock(0.0)
    standing: bool = False


class DevicesChecked(NamedTuple):
    """The look at the devices before the first start is over: what it has found came before this, as `FaultReported`;
    `well` are the devices that it saw to be healthy and without any fault."""

    now: float
    well: tuple[str, ...] = ()
    clock: Clock = Clock(0.0)


class HealingFinished(NamedTuple):
    """The fault under way is gone; or it is not, and `why`."""

    now: float
    cured: bool
    why: str | None = None


class StartHeld(NamedTuple):
    """Whether the platform permits a start: `why` it does not.  `ends`: it wants a command that runs to end, too."""

    now: float
    why: str | None = None
    ends: bool = False


class Rescheduled(NamedTuple):
    """The platform has scheduled another pod of this job again, and wants the others to start again with it."""

    now: float
    why: str


class DevicesFound(NamedTuple):
    """The devices that the command may use."""

    now: float
    devices: tuple[Device, ...]


class HistoryLoaded(NamedTuple):
    """What the state dir knows of this job: of all nodes, and of the schedules before this one."""

    now: float
    occurrences: tuple[Occurrence, ...]
    schedules: tuple[Schedule, ...]


class VerdictShared(NamedTuple):
    """The verdict that another ftrun of this job has reached; `code` None: there is none."""

    now: float
    code: int | None = None
    verdict: str = ""
    why: str = ""
    node: str | None = None
    device: str | None = None


class OperatorRequest(NamedTuple):
    """What the operator wants to be answered: `id` is the question's, `by` is who asks, and waits `until` then."""

    id: str = ""
    by: str = ""
    until: float = float("inf")


class RestartRequested(NamedTuple):
    """The operator wants the command to be ended, and started again."""

    now: float
    order: OperatorRequest | None = None


class StopRequested(NamedTuple):
    """The operator wants the end: of the command, and of ftrun."""

    now: float
    order: OperatorRequest | None = None


class PauseRequested(NamedTuple):
    """The operator wants no verdicts: for `lasting` s, or (None) until `ResumeRequested`."""

    now: float
    order: OperatorRequest | None = None
    lasting: float | None = None


class ResumeRequested(NamedTuple):
    now: float
    order: OperatorRequest | None = None


class GroupOrderReceived(NamedTuple):
    """What rank 0 wants of the whole group."""

    now: float
    order: messages.GroupOrder


class CoordinatorSilent(NamedTuple):
    """Rank 0 has been silent for `--peer-timeout`: `why` is a sentence.  It is waited for until that time."""

    now: float
    why: str
    until: float


class CoordinatorLost(NamedTuple):
    """Rank 0 was not back in time either, or never came: `why` is a sentence.  `incurable`: it is there, and does not
    take this node because of its version, its options or its secret."""

    now: float
    why: str
    incurable: bool = False


Event = (
    Started
    | CommandSpawned
    | SpawnFailed
    | DeadlineReached
    | WokeLate
    | BeatsRead
    | CheckpointSaved
    | TreeSampled
    | DevicesReleased
    | EvidenceCollected
    | CommandStopped
    | CommandContinued
    | CommandExited
    | TreeEnded
    | ProcessesSurvived
    | SignalReceived
    | FaultReported
    | DevicesChecked
    | HealingFinished
    | StartHeld
    | Rescheduled
    | DevicesFound
    | HistoryLoaded
    | VerdictShared
    | RestartRequested
    | StopRequested
    | PauseRequested
    | ResumeRequested
    | GroupOrderReceived
    | CoordinatorSilent
    | CoordinatorLost
)
EVENTS: tuple[type[Event], ...] = (
    Started,
    CommandSpawned,
    SpawnFailed,
    DeadlineReached,
    WokeLate,
    BeatsRead,
    CheckpointSaved,
    TreeSampled,
    DevicesReleased,
    EvidenceCollected,
    CommandStopped,
    CommandContinued,
    CommandExited,
    TreeEnded,
    ProcessesSurvived,
    SignalReceived,
    FaultReported,
    DevicesChecked,
    HealingFinished,
    StartHeld,
    Rescheduled,
    DevicesFound,
    HistoryLoaded,
    VerdictShared,
    RestartRequested,
    StopRequested,
    PauseRequested,
    ResumeRequested,
    GroupOrderReceived,
    CoordinatorSilent,
    CoordinatorLost,
)
