"""The coordinator's view of the members of its group: the values, and how reports change them."""

from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal

from ftrun.core.group.messages import SILENCE, Counts, GroupOrder, Pulse, Report
from ftrun.core.group.root_cause import MemberLost, MemberState, Suspect, first_failure
from ftrun.core.machine.values import Reason
from ftrun.core.named_tuple import NamedTuple

HINT: Final = 10.0  # s of waiting after which the missing members are named
MAX_WAITING: Final = 1024  # the most waiting processes that are remembered
NONE: Final[Counts] = (0, 0, 0)
LATE: Final = 5.0  # s; no message arrives later than that, since its connection has been given up by then

Kind = Literal["gone", "fenced", "ready", "behind", "running", "done", "leaving", "fallen", "ending", "busy"]
"""The state of a member in the epoch.  `fenced`: an earlier process of this rank may still run its command.  `behind`:
it is ready, but has not confirmed that this epoch is over.  `fallen`: its command ended for an unknown cause."""
Counted = Kind | Literal["devices-unchanged"]
"""What members are counted by: their kind, and those that run or are done as `devices-unchanged` as well, where their
accelerators do not change."""


class Reported(NamedTuple):
    """A report came.  `pulses`: those of all members, where this report may be about a hang."""

    now: float
    report: Report
    pulses: Mapping[int, Pulse] = {}


class DeadlineReached(NamedTuple):
    now: float


Event = Reported | MemberLost | DeadlineReached


class SendOrder(NamedTuple):
    """Send the order to every member."""

    order: GroupOrder


class RefuseMember(NamedTuple):
    rank: int
    life: str
    why: str


class NodeNote(NamedTuple):
    """A line for the records of rank 0."""

    what: str


Effect = SendOrder | RefuseMember | NodeNote
Effects = tuple[Effect, ...]


class GroupRestart(NamedTuple):
    """The reason why all members restart."""

    cause: Reason
    why: str
    suspect: Suspect | None = None
    counts: Counts | None = None  # None: as they were


class Gathering(NamedTuple):
    """Not all members have come yet, and those that run are left alone.  `hint`: when the missing ones are named."""

    deadline: float | None
    hint: float | None = None


class Steady(NamedTuple):
    """All members run the epoch, have run it, or have to start it before the deadline."""

    deadline: float | None = None


class Draining(NamedTuple):
    """The epoch is over, and not all members are ready; missing ones are waited for until the deadline.  `lost_since`:
    since when a member is or was lost, and `lost_member`: which one, if it had ever come."""

    since: float
    deadline: float
    pulses: Mapping[int, Pulse] = {}
    restart: GroupRestart | None = None
    lost_since: float | None = None
    lost_member: MemberState | None = None


class Ended(NamedTuple):
    deadline: None = None


Phase = Gathering | Steady | Draining | Ended


class Coordinator(NamedTuple):
    size: int
    wait: float  # how long a missing member is waited for
    drain: float  # the most that a member needs to stop its command
    heal: float  # the most that it then needs before it is ready
    started: float
    phase: Phase
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

    @property
    def epoch(self) -> int:
        """The highest epoch that was reported or ordered."""
        return self.order.epoch

    @property
    def lease(self) -> float:
        """How long a member's command may continue after the last message from rank 0 (clients/messenger)."""
        return self.silence + self.wait

    @property
    def deadline(self) -> float | None:
        """When `DeadlineReached` is due."""
        if isinstance(self.phase, Ended):
            return None
        hint = self.phase.hint if isinstance(self.phase, Gathering) else None
        due = (self.phase.deadline, hint, self.report_deadline, *self.fences.values())
        return min((d for d in due if d is not None), default=None)

    @property
    def staying(self) -> int:
        """How many members other than rank 0 are connected and have not left."""
        there = (m for rank, m in self.members.items() if rank and m.gone is None and m.report.state != "left")
        return sum(1 for _ in there)


Outcome = tuple[Coordinator, Effects]


def new_coordinator(
    now: float, size: int, wait: float, drain: float, heal: float = 0.0, silence: float = SILENCE
) -> Coordinator:
    """A new coordinator, without any knowledge."""
    return Coordinator(size, wait, drain, heal, now, Gathering(now + wait, now + HINT), silence=silence)


def take_report(group: Coordinator, now: float, report: Report, before: MemberState | None) -> Coordinator:
    """The coordinator with this report of a member."""
    if report.epoch > group.epoch and not isinstance(group.phase, Ended):
        group = _adopt_epoch(group, now, report.epoch)
    return put_member(group, MemberState(report, first_failure(report, now, before)))


def _adopt_epoch(group: Coordinator, now: float, epoch: int) -> Coordinator:
    """A higher epoch was reported: this coordinator is new and does not know it, so that its decisions about the epoch
    before are void."""
    order = group.order._replace(epoch=epoch, cause=None, progressed=False, devices_unchanged=False)
    match group.phase:
        case Gathering() if group.epoch == 0:  # the other members must exist
            group = group._replace(phase=Gathering(None), report_deadline=now + group.silence)
        case Steady():
            group, order = group._replace(phase=Gathering(None)), order._replace(what="wait")
        case Draining() as phase:
            group = group._replace(phase=phase._replace(restart=None))
    group = group._replace(order=order, progressed=False, epoch_reported=True)
    if isinstance(group.phase, Draining):
        return fence_unknown(group, now)
    return group._replace(kinds=count_kinds(group))


def put_member(group: Coordinator, member: MemberState) -> Coordinator:
    """The coordinator with this member.  It is cheap, since a thousand members may become ready one after the other."""
    rank = member.report.rank
    before = group.members.get(rank)
    members = {**group.members, rank: member}
    kinds = dict(group.kinds)
    for sign, one in ((-1, before), (1, member)):
        for kind in _kinds_of(group, one) if one is not None else ():
            kinds[kind] = kinds.get(kind, 0) + sign
    report, order = member.report, group.order
    if isinstance(group.phase, Ended):
        return group._replace(members=members, kinds=kinds)
    if report.paused is not None and (before is None or before.report.paused != report.paused):
        order = order._replace(paused=report.paused)
    progressed = group.progressed or (report.progressed and report.epoch == group.epoch)
    return group._replace(members=members, kinds=kinds, order=order, progressed=progressed)


def kind_of(member: MemberState, epoch: int, fenced: bool) -> Kind:
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
    return Counter(kind for member in group.members.values() for kind in _kinds_of(group, member))


def _kinds_of(group: Coordinator, member: MemberState) -> tuple[Counted, ...]:
    kind = kind_of(member, group.epoch, member.report.rank in group.fences)
    return (kind, "devices-unchanged") if member.report.devices_unchanged and kind in ("running", "done") else (kind,)


def absent_ranks(group: Coordinator) -> list[int]:
    """The ranks of the members that never came or are gone."""
    gone = (r for r, m in group.members.items() if kind_of(m, group.epoch, False) == "gone")
    return sorted((*gone, *(r for r in range(group.size) if r not in group.members)))


def waited_for(group: Coordinator) -> list[int]:
    """The ranks of the members that the group waits for now: to come, to be ready, to run, or at the end to leave."""
    awaited: tuple[Kind, ...] = ("gone", "fenced", "behind", "leaving", "busy", "fallen", "ending")
    if isinstance(group.phase, Steady):
        awaited = ("ready", "behind")
    elif isinstance(group.phase, Draining):
        awaited = (*awaited, "running")
    elif isinstance(group.phase, Ended):
        return sorted(r for r, m in group.members.items() if r and m.gone is None and m.report.state != "left")
    missing = (r for r in range(group.size) if r not in group.members)
    kinds = ((r, kind_of(m, group.epoch, r in group.fences)) for r, m in group.members.items())
    return sorted({*missing, *(r for r, kind in kinds if kind in awaited)})


def highest_counts(group: Coordinator) -> Counts:
    """The highest counts that any member reports."""
    reported = (NONE, *(member.report.counts for member in group.members.values()))
    hang, fault, failure = (max(counts) for counts in zip(*reported, strict=True))
    return hang, fault, failure


# --- earlier processes that may still run their command -------------------------------------------------------------


def fence_predecessor(group: Coordinator, now: float, before: MemberState, report: Report) -> Coordinator:
    """A member that has lost contact with rank 0 may keep working, and stops its command itself when its lease is over;
    a machine that seems lost may only be cut off.  So its successor is fenced, unless the earlier process is certainly
    dead: its connection closed, and the successor, on the same machine, came only after that.  One that was there
    before is fenced, since the earlier process may have lost only its messenger.
    """
    gone = before.gone
    if group.epoch == 0 or gone is None:
        return group
    since = group.waiting_processes.get((report.rank, report.life), now)
    closed = next((at for at in (gone.closed_at, gone.last_message) if at is not None), gone.now)
    if gone.closed and before.report.boot == report.boot and since >= closed:
        return group
    # Its last message from rank 0 is not later than rank 0's last one from it, but for one on the way (LATE).
    last = gone.last_message if gone.last_message is not None and not gone.closed else gone.now
    return fence(group, now, {report.rank: last})


def note_waiting(group: Coordinator, now: float, report: Report) -> Coordinator:
    key = report.rank, report.life
    if key in group.waiting_processes:
        return group
    known = list(group.waiting_processes.items())[1 - MAX_WAITING :]  # anyone who has the secret may connect
    return group._replace(waiting_processes=dict([*known, (key, now)]))


def fence_latecomer(group: Coordinator, now: float, report: Report) -> Coordinator:
    """A member that comes late to a new coordinator, and has run nothing, may have replaced another: fence it."""
    if isinstance(group.phase, Gathering | Ended) or not may_have_predecessor(report, group.epoch):
        return group
    return fence(group, now, {report.rank: group.started})


def may_have_predecessor(report: Report, epoch: int) -> bool:
    """True where an earlier process of this rank may still run its command.  Never for rank 0, where the coordinator
    is; nor for a member that itself ran the newest epoch, since it was the only one of its rank when that began."""
    return report.rank != 0 and report.state == "ready" and report.failure is None and report.ran < max(epoch, 1)


def fence_unknown(group: Coordinator, now: float) -> Coordinator:
    """A new coordinator does not know which processes its members have replaced: it fences the members that may have
    replaced one until none of these can still run its command."""
    members, epoch = group.members.items(), group.epoch
    return fence(group, now, {r: group.started for r, m in members if may_have_predecessor(m.report, epoch)})


def fence(group: Coordinator, now: float, lost: Mapping[int, float]) -> Coordinator:
    """Fence these members.  `lost`: for each rank, the last time that an earlier process of it may have had contact
    with rank 0."""
    fences = dict(group.fences)
    for rank, since in lost.items():
        until = since + group.lease + LATE + group.drain  # after the end of its lease and its command
        if until > now:
            fences[rank] = max(until, fences.get(rank, until))
    after = group._replace(fences=fences)
    return after._replace(kinds=count_kinds(after))
