"""What happened, in the past tense.  Every event carries the monotonic time at which it was seen."""

from typing import TYPE_CHECKING, NamedTuple

from ftrun.core import group
from ftrun.core.history import Clock, Occurrence, Schedule
from ftrun.core.idle import Sample
from ftrun.core.values import Device, Fault, Rank

if TYPE_CHECKING:  # PID 1 loads it when there is a failure to explain
    from ftrun.core.failures import Ending


class Started(NamedTuple):
    now: float


class Spawned(NamedTuple):
    now: float
    pid: int


class SpawnFailed(NamedTuple):
    """`code` is 126, 127 or 125; `why` is one line for a person."""

    now: float
    code: int
    why: str


class Ticked(NamedTuple):
    """The phase's deadline came."""

    now: float


class Overslept(NamedTuple):
    """We wanted to wake at `since` and woke at `now`: the machine, the container or ftrun was frozen."""

    now: float
    since: float


class Looked(NamedTuple):
    """The beats were read.  `barred`: processes of the command run as a user who cannot give any."""

    now: float
    ranks: tuple[Rank, ...]
    barred: bool = False


class Saved(NamedTuple):
    """A checkpoint file came into being `at` that time: renamed into place, or written there, closed and at rest."""

    now: float
    path: str
    at: float
    renamed: bool = True


class Sampled(NamedTuple):
    """What the whole tree did in the last period."""

    now: float
    sample: Sample


class Released(NamedTuple):
    """Whether the devices are free after a kill: `held` says which are not, and by whom; `silent`, for which of them
    nobody answers, which is no fault of theirs.  `well`: those of the devices that were taken out that were just seen
    to be healthy, without any fault, and free."""

    now: float
    held: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    well: tuple[str, ...] = ()
    clock: Clock = Clock(0.0)


class Evidenced(NamedTuple):
    """What a suspicion showed on a closer look; `cleared` says why it is none, if it is none."""

    now: float
    ranks: tuple[Rank, ...]
    evidence: tuple[tuple[str, object], ...] = ()
    cleared: str | None = None


class Halted(NamedTuple):
    """The user's job control stopped the command."""

    now: float
    signal: int


class Continued(NamedTuple):
    now: float


class Exited(NamedTuple):
    """The command ended; `ending` is what is known of why, where it failed by itself."""

    now: float
    code: int | None = None
    signal: int | None = None
    ending: "Ending | None" = None


class TreeEnded(NamedTuple):
    """The kernel shows no process of the attempt any more; `killed` of them needed SIGKILL."""

    now: float
    killed: int = 0


class Survived(NamedTuple):
    """SIGKILL did not end these: `pid (name) state wchan`.

    `refused`: it was not delivered to any of them, for we are not permitted to signal them.  `command`: the command is
    one of them.  `killed` others needed SIGKILL.
    """

    now: float
    processes: tuple[str, ...]
    refused: bool = False
    command: bool = True
    killed: int = 0


class Signalled(NamedTuple):
    """A signal from outside.  `stop`: it asks for the end (SIGTERM, SIGINT, SIGQUIT)."""

    now: float
    signal: int
    stop: bool


class Faulted(NamedTuple):
    """`standing`: the device had it before the command was first started."""

    now: float
    fault: Fault
    clock: Clock = Clock(0.0)
    standing: bool = False


class Checked(NamedTuple):
    """The look at the devices before the first start is over: what it has found came before this, as `Faulted`; `well`
    are the devices that it saw to be healthy and without any fault."""

    now: float
    well: tuple[str, ...] = ()
    clock: Clock = Clock(0.0)


class Healed(NamedTuple):
    """The fault under way is gone; or it is not, and `why`."""

    now: float
    cured: bool
    why: str | None = None


class Held(NamedTuple):
    """Whether the platform permits a start: `why` it does not.  `ends`: it wants a command that runs to end, too."""

    now: float
    why: str | None = None
    ends: bool = False


class Rescheduled(NamedTuple):
    """The platform has scheduled another pod of this job again, and wants the others to start again with it."""

    now: float
    why: str


class Found(NamedTuple):
    """The devices that the command may use."""

    now: float
    devices: tuple[Device, ...]


class Remembered(NamedTuple):
    """What the state dir knows of this job: of all nodes, and of the schedules before this one."""

    now: float
    occurrences: tuple[Occurrence, ...]
    schedules: tuple[Schedule, ...]


class Shared(NamedTuple):
    """The verdict that another ftrun of this job has reached; `code` None: there is none."""

    now: float
    code: int | None = None
    verdict: str = ""
    why: str = ""
    node: str | None = None
    device: str | None = None


class Order(NamedTuple):
    """What the operator wants to be answered: `id` is the question's, `by` is who asks, and waits `until` then."""

    id: str = ""
    by: str = ""
    until: float = float("inf")


class RestartAsked(NamedTuple):
    """The operator wants the command to be ended, and started again."""

    now: float
    order: Order | None = None


class StopAsked(NamedTuple):
    """The operator wants the end: of the command, and of ftrun."""

    now: float
    order: Order | None = None


class PauseAsked(NamedTuple):
    """The operator wants no verdicts: for `lasting` s, or (None) until `ResumeAsked`."""

    now: float
    order: Order | None = None
    lasting: float | None = None


class ResumeAsked(NamedTuple):
    now: float
    order: Order | None = None


class Ordered(NamedTuple):
    """What rank 0 wants of the whole group."""

    now: float
    order: group.Order


class Unheard(NamedTuple):
    """Rank 0 has been silent for `--peer-timeout`: `why` is a sentence.  It is waited for until that time."""

    now: float
    why: str
    until: float


class CutOff(NamedTuple):
    """Rank 0 was not back in time either, or never came: `why` is a sentence.  `incurable`: it is there, and does not
    take this node because of its version, its options or its secret."""

    now: float
    why: str
    incurable: bool = False


Event = (
    Started
    | Spawned
    | SpawnFailed
    | Ticked
    | Overslept
    | Looked
    | Saved
    | Sampled
    | Released
    | Evidenced
    | Halted
    | Continued
    | Exited
    | TreeEnded
    | Survived
    | Signalled
    | Faulted
    | Checked
    | Healed
    | Held
    | Rescheduled
    | Found
    | Remembered
    | Shared
    | RestartAsked
    | StopAsked
    | PauseAsked
    | ResumeAsked
    | Ordered
    | Unheard
    | CutOff
)
EVENTS: tuple[type[Event], ...] = (
    Started,
    Spawned,
    SpawnFailed,
    Ticked,
    Overslept,
    Looked,
    Saved,
    Sampled,
    Released,
    Evidenced,
    Halted,
    Continued,
    Exited,
    TreeEnded,
    Survived,
    Signalled,
    Faulted,
    Checked,
    Healed,
    Held,
    Rescheduled,
    Found,
    Remembered,
    Shared,
    RestartAsked,
    StopAsked,
    PauseAsked,
    ResumeAsked,
    Ordered,
    Unheard,
    CutOff,
)
