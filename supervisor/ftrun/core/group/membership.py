"""The coordinator's view of the members of its group: the values, and how reports change them."""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from ftrun.core.group.messages import SILENCE, Counts, GroupOrder, Pulse, Report
from ftrun.core.group.root_cause import MemberLost, MemberState, Suspect, first_failure
from ftrun.core.machine.values import Reason

HINT: Final = 10.0  # s of waiting after which the missing members are named
STRANGERS: Final = 1024  # the most strangers that are remembered
LATE: Final = 5.0  # s; no message arrives later than that, since its connection has been given up by then

Kind = Literal["gone", "fenced", "ready", "behind", "running", "done", "leaving", "fallen", "ending", "busy", "still"]
"""The state of a member in the epoch.  `fenced`: an earlier life in its place may still run its command.  `behind`: it
is ready, but has not confirmed that this epoch is over.  `fallen`: its command ended for an unknown cause.  `still`:
among the members that run or are done, those whose accelerators do not change."""


class Reported(NamedTuple):
    """A report came.  `pulses`: those of all members, where this report may be about a hang."""

    now: float
    report: Report
    pulses: Mapping[int, Pulse] = {}


class DeadlineReached(NamedTuple):
    now: float


Event = Reported | MemberLost | DeadlineReached


class ReportReceived(NamedTuple):
    """Send the order to every member."""

    order: GroupOrder


class MemberRefused(NamedTuple):
    rank: int
    life: str
    why: str


class NodeNote(NamedTuple):
    """A line for the records of rank 0."""

    what: str


Effect = ReportReceived | MemberRefused | NodeNote
Effects = tuple[Effect, ...]


class Cure(NamedTuple):
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
    """The epoch is over, and not all members are ready; missing ones are waited for until the deadline.  `lost`: since
    when a member is or was lost, and `loss`: which one, if it had ever come."""

    since: float
    deadline: float
    pulses: Mapping[int, Pulse] = {}
    cure: Cure | None = None
    lost: float | None = None
    loss: MemberState | None = None


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
    kinds: Mapping[Kind, int] = {}
    fences: Mapping[int, float] = {}  # rank: until when an earlier life may run its command
    progressed: bool = False  # a member made progress in this epoch
    counts: Counts | None = None  # None: not known here
    strangers: Mapping[tuple[int, str], float] = {}  # (rank, life): since when it asks for a place that is taken
    unheard: float | None = None  # when members that have not reported count as lost; None: not set, or past
    missed: bool = False  # that time has passed
    heard: bool = False  # this epoch is known from reports, and was not started by this coordinator
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
        due = (self.phase.deadline, hint, self.unheard, *self.fences.values())
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


def take_report(coordinator: Coordinator, now: float, report: Report, before: MemberState | None) -> Coordinator:
    """The coordinator with this report of a member."""
    if report.epoch > coordinator.epoch and not isinstance(coordinator.phase, Ended):
        coordinator = _adopt_epoch(coordinator, now, report.epoch)
    return put_member(coordinator, MemberState(report, first_failure(report, now, before)))


def _adopt_epoch(coordinator: Coordinator, now: float, epoch: int) -> Coordinator:
    """A higher epoch was reported: this coordinator is new and does not know it, so that its decisions about the epoch
    before are void."""
    order = coordinator.order._replace(epoch=epoch, cause=None, progressed=False, still=False)
    match coordinator.phase:
        case Gathering() if coordinator.epoch == 0:  # the other members must exist
            coordinator = coordinator._replace(phase=Gathering(None), unheard=now + coordinator.silence)
        case Steady():
            coordinator, order = coordinator._replace(phase=Gathering(None)), order._replace(what="wait")
        case Draining() as phase:
            coordinator = coordinator._replace(phase=phase._replace(cure=None))
    coordinator = coordinator._replace(order=order, progressed=False, heard=True)
    if isinstance(coordinator.phase, Draining):
        return fence_unknown(coordinator, now)
    return coordinator._replace(kinds=count_kinds(coordinator))


def put_member(coordinator: Coordinator, member: MemberState) -> Coordinator:
    """The coordinator with this member.  It is cheap, since a thousand members may become ready one after the other."""
    rank = member.report.rank
    before = coordinator.members.get(rank)
    members = dict(coordinator.members)
    members[rank] = member
    kinds = dict(coordinator.kinds)
    for sign, one in ((-1, before), (1, member)):
        if one is not None:
            kind = kind_of(one, coordinator.epoch, rank in coordinator.fences)
            kinds[kind] = kinds.get(kind, 0) + sign
            if one.report.still and kind in ("running", "done"):
                kinds["still"] = kinds.get("still", 0) + sign
    report = member.report
    order = coordinator.order
    if isinstance(coordinator.phase, Ended):
        return coordinator._replace(members=members, kinds=kinds)
    if report.paused is not None and (before is None or before.report.paused != report.paused):
        order = order._replace(paused=report.paused)
    progressed = coordinator.progressed or (report.progressed and report.epoch == coordinator.epoch)
    return coordinator._replace(members=members, kinds=kinds, order=order, progressed=progressed)


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


def count_kinds(coordinator: Coordinator) -> Mapping[Kind, int]:
    kinds: dict[Kind, int] = {}
    for rank, member in coordinator.members.items():
        kind = kind_of(member, coordinator.epoch, rank in coordinator.fences)
        kinds[kind] = kinds.get(kind, 0) + 1
        if member.report.still and kind in ("running", "done"):
            kinds["still"] = kinds.get("still", 0) + 1
    return kinds


def absent_ranks(coordinator: Coordinator) -> list[int]:
    """The ranks of the members that never came or are gone."""
    gone = (r for r, m in coordinator.members.items() if kind_of(m, coordinator.epoch, False) == "gone")
    return sorted((*gone, *(r for r in range(coordinator.size) if r not in coordinator.members)))


def highest_counts(coordinator: Coordinator) -> Counts:
    """The highest counts that any member reports."""
    hang, fault, failure = (
        max((m.report.counts[i] for m in coordinator.members.values()), default=0) for i in range(3)
    )
    return hang, fault, failure


# --- lives that may still run their command, unseen -----------------------------------------------------------------


def fence_predecessor(coordinator: Coordinator, now: float, before: MemberState, report: Report) -> Coordinator:
    """A member that has lost contact with rank 0 may keep working, and stops its command itself when its lease is over;
    a machine that seems lost may only be cut off.  So the new life in its place is fenced, unless nothing of the
    earlier life is left: its connection closed, and the new life, on the same machine, came only after that.  A new
    life that was there before does not succeed it, since the earlier one may have lost only its messenger.
    """
    gone = before.gone
    if coordinator.epoch == 0 or gone is None:
        return coordinator
    since = coordinator.strangers.get((report.rank, report.life), now)
    closed = next((at for at in (gone.shut, gone.heard) if at is not None), gone.now)
    if gone.closed and before.report.boot == report.boot and since >= closed:
        return coordinator
    # Its last message from rank 0 is not later than rank 0's last one from it, but for one on the way (LATE).
    last = gone.heard if gone.heard is not None and not gone.closed else gone.now
    return fence(coordinator, now, {report.rank: last})


def note_stranger(coordinator: Coordinator, now: float, report: Report) -> Coordinator:
    key = report.rank, report.life
    if key in coordinator.strangers:
        return coordinator
    known = list(coordinator.strangers.items())[1 - STRANGERS :]  # anyone who has the secret may connect
    return coordinator._replace(strangers=dict([*known, (key, now)]))


def fence_latecomer(coordinator: Coordinator, now: float, report: Report) -> Coordinator:
    """A member that comes late to a new coordinator, and has run nothing, may have replaced another: fence it."""
    if isinstance(coordinator.phase, Gathering | Ended) or not has_no_past(report, coordinator.epoch):
        return coordinator
    return fence(coordinator, now, {report.rank: coordinator.started})


def has_no_past(report: Report, epoch: int) -> bool:
    """Whether an earlier life may exist in the place of this member.  Not in that of rank 0, where the coordinator is;
    nor in that of a member that itself ran the newest epoch, since it was alone in its place when that began."""
    return report.rank != 0 and report.state == "ready" and report.failure is None and report.ran < max(epoch, 1)


def fence_unknown(coordinator: Coordinator, now: float) -> Coordinator:
    """A new coordinator does not know the earlier lives of members without a past: it fences them until no earlier life
    can still be at work in their place."""
    new = {
        rank: coordinator.started for rank, m in coordinator.members.items() if has_no_past(m.report, coordinator.epoch)
    }
    return fence(coordinator, now, new)


def fence(coordinator: Coordinator, now: float, lost: Mapping[int, float]) -> Coordinator:
    """Fence these members.  `lost`: for each rank, the last time that an earlier life in its place may have had contact
    with rank 0."""
    fences = dict(coordinator.fences)
    for rank, since in lost.items():
        until = since + coordinator.lease + LATE + coordinator.drain  # after the end of its lease and its command
        if until > now:
            fences[rank] = max(until, fences.get(rank, until))
    after = coordinator._replace(fences=fences)
    return after._replace(kinds=count_kinds(after))
