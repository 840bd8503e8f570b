"""The coordinator's view of the members of its group: the values, and what follows from them."""

from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal, get_args

from ftrun.core.group.lease import Place
from ftrun.core.group.losses import Losses, NodeLost, NodeNote
from ftrun.core.group.messages import SILENCE, Counts, GroupOrder, Life, MemberReport, Pulse, Starter
from ftrun.core.group.root_cause import FirstSuspect, MemberLost, MemberState
from ftrun.core.machine.values import Reason
from ftrun.core.named_tuple import NamedTuple

HINT: Final = 10.0  # s of waiting after which the missing members are named
MAX_WAITING: Final = 1024  # the most waiting processes that are remembered
MAX_STARTERS: Final = 16  # the most earlier processes of member 0 that are remembered
NONE: Final[Counts] = (0, 0, 0)
LATE: Final = 5.0  # s; no message arrives later than that, since its connection has been given up by then

MemberKind = Literal["gone", "fenced", "ready", "behind", "running", "done", "leaving", "fallen", "ending", "busy"]
"""The state of a member in the epoch.  `fenced`: an earlier process of this rank may still run its command.  `behind`:
it is ready, but has not confirmed that this epoch is over.  `fallen`: its command ended for an unknown cause."""
KINDS: Final[tuple[MemberKind, ...]] = get_args(MemberKind)
Counted = MemberKind | Literal["devices-unchanged", "devices-waited", "spare"]
"""What members are counted by: those that have a place in the epoch by their kind, and, where they run or are done, as
`devices-unchanged` too while their accelerators do not change, and as `devices-waited` while all their ranks wait for
devices that do not work; each other member as `spare` while it could start."""


class Reported(NamedTuple):
    """A report came.  `pulses`: those of all members, where this report may be about a hang."""

    now: float
    report: MemberReport
    pulses: Mapping[int, Pulse] = {}


class GroupDeadlineReached(NamedTuple):
    now: float


class StarterDied(NamedTuple):
    """It is certain that this earlier process of member 0 is dead, and its command too."""

    now: float
    life: str


class LifeEnded(NamedTuple):
    """It is certain that this process of a member, one of `Coordinator.lives`, is dead, and its command too."""

    now: float
    rank: int
    life: str


class JoiningHindered(NamedTuple):
    """What may keep a member from joining before the first start, as `10.0.0.7 has a different secret from this group`;
    empty: nothing any more.  `gave_up`: what is meant has tried for as long as a member does, and has stopped."""

    now: float
    what: str
    gave_up: bool = False


class LeaseTaken(NamedTuple):
    """This coordinator has the lease in the shared folder (lease.py).  `before`: the place in it before, which may be
    its own; None: it is the first."""

    now: float
    before: Place | None = None


class LeaseForeign(NamedTuple):
    """The lease in the shared folder may be another coordinator's, at member `holder`, which alone may start an epoch.
    `until`: when this one may have it, as far as that is known."""

    now: float
    holder: int
    until: float | None = None


class FolderProved(NamedTuple):
    """The folder of the lease is shared: `lease.proves_sharing`."""

    now: float


GroupEvent = (
    FolderProved
    | LeaseTaken
    | LeaseForeign
    | Reported
    | MemberLost
    | StarterDied
    | LifeEnded
    | JoiningHindered
    | GroupDeadlineReached
)


class SendOrder(NamedTuple):
    """Send the order to every member."""

    order: GroupOrder


class RefuseMember(NamedTuple):
    rank: int
    life: str
    why: str


GroupEffect = SendOrder | RefuseMember | NodeNote | NodeLost
GroupEffects = tuple[GroupEffect, ...]


class GroupRestart(NamedTuple):
    """The reason why all members restart."""

    cause: Reason
    why: str
    suspect: FirstSuspect | None = None
    counts: Counts | None = None  # None: as they were


class Gathering(NamedTuple):
    """Not all members have come yet, and those that run are left alone.  `hint`: when the missing ones are named."""

    deadline: float | None
    hint: float | None = None


class Steady(NamedTuple):
    """All members run the epoch, have run it, or have to start it before the deadline.

    `round_due`: until when all ranks have to wait for their next round.  `losses`: of containers that they wait for.
    (group_rounds.py)
    """

    deadline: float | None = None
    round_due: float | None = None
    losses: Losses = Losses()


class Draining(NamedTuple):
    """The epoch is over, and not all members are ready; missing ones are waited for until the deadline.
    `lost_member`: the first of those that were lost, if it had ever come."""

    since: float
    deadline: float
    pulses: Mapping[int, Pulse] = {}
    restart: GroupRestart | None = None
    losses: Losses = Losses()
    lost_member: MemberState | None = None


class Ended(NamedTuple):
    deadline: None = None


GroupPhase = Gathering | Steady | Draining | Ended


class GroupShape(NamedTuple):
    """How many of the `size` members a group needs.  It starts with all but `spares` of them, which take the places of
    lost ones, and goes on with fewer, but not with fewer than `least` (0: it needs all the others).  `replaces`: the
    platform replaces a member that ends with a verdict about itself.  `scale_out`: a member that has come late is taken
    in at the next checkpoint, and not only at the next restart."""

    size: int
    least: int = 0
    spares: int = 0
    replaces: bool = False
    scale_out: bool = False

    @property
    def most(self) -> int:
        """The members of an epoch, if none is missing."""
        return self.size - self.spares

    @property
    def fewest(self) -> int:
        return self.least or self.most

    @property
    def is_fixed(self) -> bool:
        """Whether each epoch has all members."""
        return self.fewest == self.size

    @property
    def goes_on(self) -> bool:
        """Whether the others go on when one member ends with a verdict about itself alone."""
        return self.replaces or not self.is_fixed


class Coordinator(NamedTuple):
    """`places`: the members of the epoch in the order of their places; empty: not known.  `placed`: the members that
    may work in it."""

    shape: GroupShape
    wait: float  # how long a missing member is waited for
    drain: float  # the most that a member needs to stop its command
    heal: float  # the most that it then needs before it is ready
    started: float
    phase: GroupPhase
    order: GroupOrder = GroupOrder(0, "wait")
    members: Mapping[int, MemberState] = {}
    kinds: Mapping[Counted, int] = {}
    fences: Mapping[int, float] = {}  # rank: until when an earlier process of it may run its command
    progressed: bool = False  # a member made progress in this epoch
    counts: Counts | None = None  # None: not known here
    # Processes that asked for a rank which another process holds, by (rank, life): since when they do.
    waiting_processes: Mapping[tuple[int, str], float] = {}
    report_deadline: float | None = None  # when members that have not reported count as lost; None: not set, or past
    reports_missing: bool = False  # that time has passed
    epoch_reported: bool = False  # this epoch is known from reports, and was not started by this coordinator
    silence: float = SILENCE  # how long a member may be silent before it counts as lost
    places: tuple[int, ...] = ()
    placed: frozenset[int] = frozenset()
    own: Starter | None = None  # the ftrun of this coordinator; None: epochs have no starter
    # In the shared folder (lease.py); `none`: there is none, and nobody takes over.
    lease_state: Literal["none", "held", "foreign"] = "none"
    lease_until: float | None = None  # when a foreign one may end,
    lease_holder: int = 0  # and which member has it
    # The members may share a folder that is not the one seen here, so that absent ones may be at work in an epoch of
    # which nothing is known here.
    folder_unproved: bool = False
    lease: float = 0.0  # how long a member's command may continue after its last contact (clients/messenger)
    all_new: bool = False  # this coordinator has started epoch 1, with every member
    ceded: frozenset[int] = frozenset()  # former holders of the lease, for which nobody waits any longer
    obstacle: str = ""  # what may keep a member from joining before the first start, for a person
    paused_until: float = 0.0  # until when verdicts are paused; inf: until they are resumed
    # The last epoch that all of its members have run, and those of them that may live: see `fences.may_decide`.
    base: tuple[int, frozenset[int]] = (0, frozenset())
    # Earlier processes of member 0 that may be at work, by life, and until when a member may have had contact with
    # each; and those that are certainly dead.
    starters: Mapping[str, tuple[Starter, float]] = {}
    dead_starters: frozenset[str] = frozenset()
    # For an epoch that was reported: the processes of the other members that may run it, and those members of which
    # these are certainly dead.  No later epoch has begun.
    lives: Mapping[int, Life] = {}
    dead: frozenset[int] = frozenset()
    # By member, its newest checkpoint when it became possible to take in more members; None: that is not possible.
    saved: Mapping[int, int | None] | None = None

    @property
    def size(self) -> int:
        return self.shape.size

    @property
    def own_rank(self) -> int:
        """The member whose messenger has this coordinator."""
        return 0 if self.own is None else self.own.rank

    @property
    def working(self) -> tuple[MemberState, ...]:
        """The members that have a place in the epoch, as far as they have reported."""
        return tuple(member for rank, member in self.members.items() if rank in self.placed)

    @property
    def unseen(self) -> int:
        """How many members that have a place have not reported."""
        return len(self.placed) - sum(self.kinds.get(kind, 0) for kind in KINDS)

    @property
    def epoch(self) -> int:
        """The highest epoch that was reported or ordered."""
        return self.order.epoch

    @property
    def deadline(self) -> float | None:
        """When `GroupDeadlineReached` is due."""
        if isinstance(self.phase, Ended):
            return None
        hint = self.phase.hint if isinstance(self.phase, Gathering) else None
        hint = self.phase.round_due if isinstance(self.phase, Steady) else hint
        due = (self.phase.deadline, hint, self.report_deadline, *self.fences.values())
        return min((d for d in due if d is not None), default=None)

    @property
    def own_order(self) -> GroupOrder | None:
        """The order for the member of this coordinator, which starts last: if this process has been replaced while it
        lives, the others are with its successor, and nothing starts here.  None: not yet."""
        own = self.members.get(self.own_rank)
        if (
            self.order.what != "run"
            or own is None
            or own.report.epoch >= self.epoch
            or self.own_rank not in self.placed
        ):
            return self.order
        return self.order if self.others_run else None

    @property
    def others_run(self) -> bool:
        """Whether all members of the epoch but that of this coordinator run its command, or have run it."""
        at_work: tuple[MemberKind, ...] = ("running", "done", "leaving", "fallen", "ending")
        started = sum(self.kinds.get(kind, 0) for kind in at_work)
        own = self.members.get(self.own_rank)
        if own is not None and self.own_rank in self.placed and own.report.epoch == self.epoch:
            started -= kind_of(own, self.epoch, self.own_rank in self.fences) in at_work
        return started >= len(self.placed - {self.own_rank})

    @property
    def staying(self) -> frozenset[int]:
        """The members other than this coordinator's that are not lost and have not left, also while one connects
        again."""
        there = (rank for rank, m in self.members.items() if m.gone is None and m.report.state != "left")
        return frozenset(there) - {self.own_rank}


GroupOutcome = tuple[Coordinator, GroupEffects]


def new_coordinator(
    now: float,
    shape: GroupShape,
    wait: float,
    drain: float,
    heal: float = 0.0,
    silence: float = SILENCE,
    own: Starter | None = None,
    folder_unproved: bool = False,
) -> Coordinator:
    """A new coordinator, without any knowledge."""
    phase, everyone = Gathering(now + wait, now + HINT), frozenset(range(shape.size))
    group = Coordinator(shape, wait, drain, heal, now, phase, silence=silence, placed=everyone, own=own)
    return group._replace(lease=silence + wait, folder_unproved=folder_unproved)


def kind_of(member: MemberState, epoch: int, fenced: bool) -> MemberKind:
    report = member.report
    current = report.epoch == epoch
    match report.state:
        case "left" if current and report.end is not None and report.end.code == 0 and not report.end.asked:
            return "done"  # it received the verdict of an earlier coordinator
        case _ if member.gone is not None or report.state == "left":
            return "gone"
        case _ if fenced:
            return "fenced"
        case "ready":
            return "ready" if current else "behind"
        case "running" | "done" if current and epoch > 0:
            return "running" if report.state == "running" else "done"
        case "leaving":
            return "leaving"
        case "fallen" if current and report.failure is None:
            return "fallen"
        case "ending" if current:
            return "ending"
    return "busy"


def count_kinds(group: Coordinator) -> Mapping[Counted, int]:
    return Counter(kind for member in group.members.values() for kind in kinds_of(group, member))


def kinds_of(group: Coordinator, member: MemberState) -> tuple[Counted, ...]:
    kind = kind_of(member, group.epoch, member.report.rank in group.fences)
    if member.report.rank not in group.placed:
        return ("spare",) if kind == "ready" else ()
    found, report = list[Counted]([kind]), member.report
    if kind == "done" or (kind == "running" and report.devices_unchanged):
        found.append("devices-unchanged")
    if kind == "done" or (kind == "running" and report.devices_waited):
        found.append("devices-waited")
    return tuple(found)


def absent_ranks(group: Coordinator) -> list[int]:
    """The members that have a place in the epoch and never came, or are gone."""
    gone = (m.report.rank for m in group.working if kind_of(m, group.epoch, False) == "gone")
    return sorted((*gone, *(r for r in group.placed if r not in group.members)))


def waited_for(group: Coordinator) -> list[int]:
    """The ranks of the members that the group waits for now: to come, to be ready, to run, or at the end to leave."""
    awaited: tuple[MemberKind, ...] = ("gone", "fenced", "behind", "leaving", "busy", "fallen", "ending")
    if isinstance(group.phase, Steady):
        awaited = ("ready", "behind")
    elif isinstance(group.phase, Draining):
        awaited = (*awaited, "running")
    elif isinstance(group.phase, Ended):
        others = ((r, m) for r, m in group.members.items() if r != group.own_rank)
        return sorted(r for r, m in others if m.gone is None and m.report.state != "left")
    missing = (r for r in group.placed if r not in group.members)
    kinds = ((m.report.rank, kind_of(m, group.epoch, m.report.rank in group.fences)) for m in group.working)
    return sorted({*missing, *(r for r, kind in kinds if kind in awaited)})


def highest_counts(group: Coordinator) -> Counts:
    """The highest counts that any member reports."""
    reported = (NONE, *(member.report.counts for member in group.members.values()))
    hang, fault, failure = (max(counts) for counts in zip(*reported, strict=True))
    return hang, fault, failure
