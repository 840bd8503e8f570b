"""Events: what happened, named in the past tense.  `now` is the monotonic time at which the event was noticed."""

from typing import TYPE_CHECKING, get_args

from ftrun.core.group import messages
from ftrun.core.machine.values import Fault, LocalRank, Rank, Spin, UsableDevice
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.ranks.table import RankReport
from ftrun.core.rules.fault_history import Clock, Occurrence, Schedule
from ftrun.core.rules.idle import TreeSample

if TYPE_CHECKING:  # PID 1 loads it when there is a failure to explain
    from ftrun.core.rules.crash_causes import CommandFailure


class Started(NamedTuple):
    now: float


class CommandSpawned(NamedTuple):
    """The command was executed.  `processes`: one for each rank, where ftrun starts the ranks; `pid` is the first.
    `port`: MASTER_PORT of the ranks."""

    now: float
    pid: int
    processes: tuple[LocalRank, ...] = ()
    port: int = 0


class SpawnFailed(NamedTuple):
    """The command could not be executed.  `code` is 126, 127 or 125; `why` is one line for a person."""

    now: float
    code: int
    why: str


class DeadlineReached(NamedTuple):
    """The deadline of the phase was reached."""

    now: float


class WokeLate(NamedTuple):
    """ftrun was due to wake at `since` and woke at `now`: the machine, the container or ftrun was frozen."""

    now: float
    since: float


class BeatsRead(NamedTuple):
    """The heartbeats were read.  `cannot_beat`: processes of the command run as a user who cannot send any, or the
    command has deleted the files for them.  `frameworks`: the libraries for training that processes of the command have
    imported."""

    now: float
    ranks: tuple[Rank, ...]
    cannot_beat: bool = False
    frameworks: tuple[str, ...] = ()


class CheckpointSaved(NamedTuple):
    """A checkpoint file was completed at the time `at`: it was renamed into place, or written there, closed, and not
    changed since.  `written`: when it was last written to, where that is known.  `older`: a checkpoint that was written
    later was reported before."""

    now: float
    path: str
    at: float
    renamed: bool = True
    written: float | None = None
    older: bool = False


class TreeSampled(NamedTuple):
    """What the whole tree did in the last period."""

    now: float
    sample: TreeSample


class DevicesReleased(NamedTuple):
    """Whether the devices are free after a kill.  `held` names those that are not, and who holds them.  `silent` names
    those that no tool gave an answer for, which is not a device fault.  `well`: devices that had been removed and are
    now healthy, without any fault, and free."""

    now: float
    held: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    well: tuple[str, ...] = ()
    clock: Clock = Clock(0.0)


class EvidenceCollected(NamedTuple):
    """The evidence about a suspicion.  `cleared`: why the suspicion was unfounded, if it was."""

    now: float
    ranks: tuple[Rank, ...]
    evidence: tuple[tuple[str, object], ...] = ()
    cleared: str | None = None


class Looked(NamedTuple):
    """The result of a look at a job that stands still, as the helper `evidence` sends it.

    `open_reason`: why something may still end the wait; None: the look is closed, nothing can.  `mechanism`: of a
    closed look, what waits for what; of an open one, what the still rank waits for; a sentence.  `fingerprint`: two
    closed looks with the same one found the same threads in the same calls, none of which has run in between.  `rank`,
    `pid`: of a closed look, the rank, if it has one, and the process at the end of the chain.  `cost`: CPU seconds.
    `again`: of an open look, it has to be repeated soon, because all members of the group together seem to be closed.
    `spin`: the rank that computes, if one does and nothing of it can be seen outside.  `failed`: the look had no
    result, and `open_reason` says why; PID 1 itself sets it."""

    now: float
    open_reason: str | None
    mechanism: str = ""
    fingerprint: str = ""
    rank: int | None = None
    pid: int = 0
    cost: float = 0.0
    again: bool = False
    spin: Spin | None = None
    failed: bool = False


class CommandStopped(NamedTuple):
    """The user's job control stopped the command."""

    now: float
    signal: int


class CommandContinued(NamedTuple):
    now: float


class RankExited(NamedTuple):
    """A rank that ftrun started ended.  `exception`: the last that one of its processes left.  Where the end decides
    about the attempt, `CommandExited` follows."""

    now: float
    local_rank: int
    code: int | None = None
    signal: int | None = None
    exception: str = ""

    @property
    def outcome(self) -> tuple[tuple[str, object], ...]:
        """How it ended, as the fields of a record."""
        status = ("code", self.code) if self.signal is None else ("signal", self.signal)
        return (status, ("exception", self.exception)) if self.exception else (status,)


class RankReported(NamedTuple):
    """A rank that can recover has reported over its control socket."""

    now: float
    report: RankReport


class RankTreeEnded(NamedTuple):
    """No process of this rank is left, after `EndRank` or `EndLeftovers`; `killed` of them needed SIGKILL."""

    now: float
    local_rank: int
    killed: int = 0


class RankStarted(NamedTuple):
    """The process of this rank was started again, after `StartRank`."""

    now: float
    local_rank: int
    pid: int


class LeftoversFound(NamedTuple):
    """A rank that is done has left these processes, `pid (name) state wchan`, after `FindLeftovers`."""

    now: float
    local_rank: int
    processes: tuple[str, ...]


RankEvent = RankExited | RankReported | RankTreeEnded | RankStarted | LeftoversFound


class CommandExited(NamedTuple):
    """The command ended.  `ending`: what is known about the cause, where the command failed by itself.  `began`: when
    the exception was raised that ended it; `symptom`: it is the consequence of the end of another process.
    `taken_port`: rank 0 could not use MASTER_PORT, because another program had taken that port.

    Where ftrun starts the ranks: all ranks ended with 0, or `rank` was the first that failed; others may still run.
    """

    now: float
    code: int | None = None
    signal: int | None = None
    ending: "CommandFailure | None" = None
    rank: int | None = None
    began: float | None = None
    symptom: bool = False
    taken_port: int | None = None


class TreeEnded(NamedTuple):
    """No process of the attempt exists any more; `killed` of them needed SIGKILL."""

    now: float
    killed: int = 0


class ProcessesSurvived(NamedTuple):
    """SIGKILL did not end these processes: `pid (name) state wchan`.

    `refused`: the signal was not delivered to any of them, since ftrun has no permission to signal them.  `command`:
    the command is one of them.  `killed`: how many other processes needed SIGKILL.
    """

    now: float
    processes: tuple[str, ...]
    refused: bool = False
    command: bool = True
    killed: int = 0


class SignalReceived(NamedTuple):
    """A signal from outside.  `stop`: it requests the end (SIGTERM, SIGINT, SIGQUIT)."""

    now: float
    signal: int
    stop: bool


class FaultReported(NamedTuple):
    """A device reports a fault.  `preexisting`: it had the fault before the first start of the command."""

    now: float
    fault: Fault
    clock: Clock = Clock(0.0)
    preexisting: bool = False


class DevicesChecked(NamedTuple):
    """The check of the devices before the first start is complete.  What it found came before this event, as
    `FaultReported`; `well`: the devices that are healthy and have no fault."""

    now: float
    well: tuple[str, ...] = ()
    clock: Clock = Clock(0.0)


class HealingFinished(NamedTuple):
    """The fault that was being healed is gone, or it is not, and `why`."""

    now: float
    cured: bool
    why: str | None = None


class StartPermission(NamedTuple):
    """Whether the platform permits a start; `why`: the reason if it does not.  `ends`: it also requests the end of a
    running command."""

    now: float
    why: str | None = None
    ends: bool = False


class Rescheduled(NamedTuple):
    """The platform has rescheduled another pod of this job, and requests that the other pods restart with it."""

    now: float
    why: str


class DevicesFound(NamedTuple):
    """The devices that the command may use.  `well`: those of them that are healthy, without any fault."""

    now: float
    devices: tuple[UsableDevice, ...]
    well: tuple[str, ...] = ()
    clock: Clock = Clock(0.0)


class HistoryLoaded(NamedTuple):
    """The history of this job in the state dir: device faults on all nodes, and the earlier schedules."""

    now: float
    occurrences: tuple[Occurrence, ...]
    schedules: tuple[Schedule, ...]


class VerdictShared(NamedTuple):
    """The verdict that another ftrun of this job has reached; `code` is None if there is none."""

    now: float
    code: int | None = None
    verdict: str = ""
    why: str = ""
    node: str | None = None
    device: str | None = None


class Requester(NamedTuple):
    """Who made a request and waits for the reply: `id` identifies the request, `by` names the operator, who waits until
    `until`."""

    id: str = ""
    by: str = ""
    until: float = float("inf")


class RestartRequested(NamedTuple):
    """The operator requests a restart of the command."""

    now: float
    requester: Requester | None = None


class StopRequested(NamedTuple):
    """The operator requests the end of the command and of ftrun."""

    now: float
    requester: Requester | None = None


class PauseRequested(NamedTuple):
    """The operator requests a pause of all verdicts: for `lasting` seconds, or (None) until `ResumeRequested`."""

    now: float
    requester: Requester | None = None
    lasting: float | None = None


class ResumeRequested(NamedTuple):
    now: float
    requester: Requester | None = None


class InputSpent(NamedTuple):
    """The command has read from the pipe on its standard input: another start would not get the same."""

    now: float


class GroupOrderReceived(NamedTuple):
    """The current order of rank 0 to the whole group."""

    now: float
    order: messages.GroupOrder


class CoordinatorSilent(NamedTuple):
    """Rank 0 has been silent for `--peer-timeout`; `why` is a sentence.  ftrun waits for rank 0 until `until`.
    `takeover`: the seconds until another member takes its place; None: none does.  `holder`: the member that is it."""

    now: float
    why: str
    until: float
    takeover: float | None = None
    holder: int = 0


class CoordinatorLost(NamedTuple):
    """Rank 0 did not come back in time, or was never reached; `why` is a sentence.  `incurable`: rank 0 is there and
    refuses this node because of its version, its options or its secret."""

    now: float
    why: str
    incurable: bool = False


Event = (
    Started
    | CommandSpawned
    | RankEvent
    | SpawnFailed
    | DeadlineReached
    | WokeLate
    | BeatsRead
    | CheckpointSaved
    | TreeSampled
    | DevicesReleased
    | EvidenceCollected
    | Looked
    | CommandStopped
    | CommandContinued
    | CommandExited
    | TreeEnded
    | ProcessesSurvived
    | SignalReceived
    | FaultReported
    | DevicesChecked
    | HealingFinished
    | StartPermission
    | Rescheduled
    | DevicesFound
    | HistoryLoaded
    | VerdictShared
    | RestartRequested
    | StopRequested
    | PauseRequested
    | ResumeRequested
    | InputSpent
    | GroupOrderReceived
    | CoordinatorSilent
    | CoordinatorLost
)
EVENTS: tuple[type[Event], ...] = get_args(Event)
