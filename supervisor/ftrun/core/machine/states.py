"""The state of a job: its `phase`, and what ftrun intends (`want`).  Each phase but Done has one deadline; None: it
lasts until an event."""

from typing import Literal, get_args

from ftrun.core.group.messages import GroupOrder, Places, Starter
from ftrun.core.machine.events import Event, FaultReported
from ftrun.core.machine.values import Attempt, Fault, Finding, Ledger, Reason, UsableDevice
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules.fault_history import Schedule


class Pending(NamedTuple):
    """There is no process; the next start is due at the deadline.

    `awaits`: the answers that the first start waits for until that deadline: `platform`, `devices`, `history`.
    `preexisting`: faults that the devices have before the first start, and that could heal.
    """

    deadline: float | None = None
    awaits: frozenset[str] = frozenset()
    preexisting: tuple[FaultReported, ...] = ()


class Launching(NamedTuple):
    """Forked, not yet executed.  `early`: faults and requests that are handled after the exec."""

    attempt: Attempt
    deadline: float | None = None
    early: tuple[Event, ...] = ()


class Starting(NamedTuple):
    """Executed; no rank has moved yet."""

    attempt: Attempt
    deadline: float | None = None


class Running(NamedTuple):
    """Some rank has moved."""

    attempt: Attempt
    deadline: float | None = None


class Suspect(NamedTuple):
    """A limit was exceeded; evidence is being collected until the deadline."""

    attempt: Attempt
    finding: Finding
    deadline: float | None = None


Stage = Literal["asked", "term", "kill", "inspect", "devices", "verdict"]


class Stopping(NamedTuple):
    """The process tree is being stopped: by a signal from outside (`asked`), by ftrun with SIGTERM (`term`) or SIGKILL
    (`kill`), or ftrun lists the processes that SIGKILL did not end (`inspect`).  Or the tree has ended, and ftrun waits
    until its devices are free (`devices`), or for the verdict of other nodes (`verdict`)."""

    attempt: Attempt
    stage: Stage
    deadline: float | None = None


class Healing(NamedTuple):
    """The tree is dead; a fault is being healed, or (None) the platform does not permit a start.  The devices of
    `attempt` are not known to be free yet."""

    fault: Fault | None
    deadline: float | None = None
    attempt: Attempt | None = None


class Done(NamedTuple):
    code: int
    deadline: None = None


Phase = Pending | Launching | Starting | Running | Suspect | Stopping | Healing | Done
PHASES: tuple[type[Phase], ...] = get_args(Phase)
Watched = Starting | Running | Suspect  # the attempt is watched


class KeepRunning(NamedTuple):
    """Keep the command running."""


class Restart(NamedTuple):
    """Start the command again once the tree is dead.  `faults`: heal them first.  `own`: the exit status of a command
    that failed by itself."""

    reason: Reason
    consecutive: int = 0
    delay: float = 0.0
    faults: tuple[Fault, ...] = ()
    own: int | None = None


class Finish(NamedTuple):
    """End with this verdict.  `own`: with the command's own status, if it still exits with one; otherwise with `code`.
    `node`: the node that the verdict is about; None: this node; `device`: a device of that node.  `asked`: the end
    was requested from outside.  `cut`: this member lost contact with rank 0, which is no verdict about the job.
    """

    code: int
    verdict: str
    message: str
    own: bool = False
    node: str | None = None
    device: str | None = None
    asked: bool = False
    cut: bool = False


Want = KeepRunning | Restart | Finish


class Paused(NamedTuple):
    """The operator `by` has paused all verdicts (empty: on another member); the pause ends by itself at `until`.
    `faults` are handled after it."""

    since: float
    until: float | None = None
    faults: tuple[FaultReported, ...] = ()
    by: str = ""


class Blame(NamedTuple):
    """Why ftrun ended the attempt, or why it ended by itself, and when that began (`at`).  `rank`, `step`: of the
    suspect; `waits`: its stack shows that it waits for others; `proved`: it is proved to be the cause.  `symptom`: its
    exception is the consequence of the end of another process, such as a broken connection."""

    at: float
    cause: Reason
    why: str
    rank: int | None = None
    step: int | None = None
    waits: bool = False
    symptom: bool = False
    proved: bool = False


class Job(NamedTuple):
    """The whole state.  `held`: why the platform does not permit a start; `leaving`: it requests the end of the
    command.  `devices`: the devices that the command may use.  `past`: the earlier schedules of this job.  `order`: the
    group's current order.  `announced_pause`: the pause that the operator last requested here, as the group is informed
    of it (`MemberReport.paused`).  `removed_devices`: devices that were removed since the last start.  `places`: of the
    group's epoch in the ledger; empty: not known.  `starter`: of that epoch, too; None: not known.  `ran`: the last
    epoch of the group that this ftrun process has started; 0: none.  `input_spent`: the command has read from a pipe,
    so that another start would not get the same.  `unexpected`: how often each event came in a phase in which it has no
    meaning."""

    phase: Phase = Pending()
    want: Want = KeepRunning()
    ledger: Ledger = Ledger()
    held: str | None = None
    devices: tuple[UsableDevice, ...] = ()
    past: tuple[Schedule, ...] = ()
    paused: Paused | None = None
    blame: Blame | None = None
    order: GroupOrder | None = None
    announced_pause: float | None = None
    removed_devices: tuple[str, ...] = ()
    places: Places = ()
    starter: Starter | None = None
    leaving: bool = False
    ran: int = 0
    input_spent: bool = False
    unexpected: tuple[tuple[str, int], ...] = ()

    @property
    def recovers_ranks(self) -> bool:
        """Whether the ranks of the attempt under way can still recover."""
        return isinstance(self.phase, Watched) and self.phase.attempt.rounds.is_open

    @property
    def asleep(self) -> tuple[tuple[float, float], ...]:
        """When this attempt was frozen, stopped by the user or paused; nothing is learned from these silences."""
        attempt = getattr(self.phase, "attempt", None)
        return () if attempt is None else tuple(away for away in attempt.aways if away[0] > attempt.spawned_at)
