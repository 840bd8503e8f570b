"""What is (`phase`) and what we want (`want`).  Each phase but Done carries one deadline; None: until an event."""

from typing import Literal, NamedTuple

from ftrun.core.group.messages import GroupOrder
from ftrun.core.machine.events import Event, FaultReported
from ftrun.core.machine.values import Attempt, Device, Fault, Finding, Ledger, Reason
from ftrun.core.rules.fault_history import Schedule


class Pending(NamedTuple):
    """No process; the next start is due at the deadline.

    `awaits`: whose answers the first start waits for, until that deadline: `platform`, `devices`, `history`.
    `standing`: faults that the devices have before it, which could heal.
    """

    deadline: float | None = None
    awaits: frozenset[str] = frozenset()
    standing: tuple[FaultReported, ...] = ()


class Launching(NamedTuple):
    """Forked, not yet executed; `early` has to wait for that: faults and orders."""

    attempt: Attempt
    deadline: float | None = None
    early: tuple[Event, ...] = ()


class Starting(NamedTuple):
    """Executed; nothing has moved yet."""

    attempt: Attempt
    deadline: float | None = None


class Running(NamedTuple):
    """Some rank has moved."""

    attempt: Attempt
    deadline: float | None = None


class Suspect(NamedTuple):
    """A limit was passed; evidence is being gathered until the deadline."""

    attempt: Attempt
    finding: Finding
    deadline: float | None = None


class Stopping(NamedTuple):
    """The tree is being ended: `asked` from outside, by SIGTERM (`term`), by SIGKILL (`kill`), or what SIGKILL left
    is being named (`inspect`); or it has ended, and its devices are to become free (`devices`), or others are asked
    for the verdict (`verdict`)."""

    attempt: Attempt
    stage: Literal["asked", "term", "kill", "inspect", "devices", "verdict"]
    deadline: float | None = None


class Healing(NamedTuple):
    """The tree is dead; a fault is being cured, or (None) the platform does not permit a start.  The devices of
    `attempt` have still to become free."""

    fault: Fault | None
    deadline: float | None = None
    attempt: Attempt | None = None


class Done(NamedTuple):
    code: int
    deadline: None = None


Phase = Pending | Launching | Starting | Running | Suspect | Stopping | Healing | Done
PHASES: tuple[type[Phase], ...] = (Pending, Launching, Starting, Running, Suspect, Stopping, Healing, Done)


class KeepRunning(NamedTuple):
    """Keep the command running."""


class Restart(NamedTuple):
    """Start it again once the tree is dead; `faults`: heal them first.  `own`: the status of a command that failed by
    itself."""

    reason: Reason
    consecutive: int = 0
    delay: float = 0.0
    faults: tuple[Fault, ...] = ()
    own: int | None = None


class Finish(NamedTuple):
    """End.  `own`: with the command's own status where it still gives one; `code` is what holds without one.
    `node`: the one that the verdict is about, if it is not this one; `device`: of it.  `asked`: from
    outside.  `cut`: for not hearing rank 0, which is the loss of this member of the group and says nothing of the job.
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
    """No verdicts, by order of the operator; `until`: they come again by themselves then.  `faults` wait for that."""

    since: float
    until: float | None = None
    faults: tuple[FaultReported, ...] = ()


class Blame(NamedTuple):
    """Why the attempt was ended by us, or ended by itself, `at` that time; `rank`, `step`: of the suspect, which by its
    stack `waits` for others."""

    at: float
    cause: Reason
    why: str
    rank: int | None = None
    step: int | None = None
    waits: bool = False


class Job(NamedTuple):
    """`held`: why the platform permits no start; `leaving`: it wants the command ended.  `devices`: those that the
    command may use.  `past`: the schedules of this job before this one.  `order`: of the group, as it stands;
    `told_paused`: what the operator told us, and so the group, last (as in `Report`).  `shed`: devices that were taken
    out since the last start."""

    phase: Phase = Pending()
    want: Want = KeepRunning()
    ledger: Ledger = Ledger()
    held: str | None = None
    devices: tuple[Device, ...] = ()
    past: tuple[Schedule, ...] = ()
    paused: Paused | None = None
    blame: Blame | None = None
    order: GroupOrder | None = None
    announced_pause: float | None = None
    removed_devices: tuple[str, ...] = ()
    leaving: bool = False

    @property
    def asleep(self) -> tuple[tuple[float, float], ...]:
        """When this attempt was frozen, stopped by the user or paused: silences in that time teach nothing."""
        attempt = getattr(self.phase, "attempt", None)
        return () if attempt is None else tuple(away for away in attempt.aways if away[0] > attempt.spawned_at)
