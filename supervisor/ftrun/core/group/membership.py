"""What a coordinator knows of the members of its group: values, and their upkeep."""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from ftrun.core.group.messages import SILENCE, Counts, GroupOrder, Pulse, Report
from ftrun.core.group.root_cause import MemberLost, MemberState, Suspect, first_failure
from ftrun.core.machine.values import Reason

HINT: Final = 10.0  # s of waiting before it is said for whom
STRANGERS: Final = 1024  # that are remembered
LATE: Final = 5.0  # s; a word that is older when it arrives was sent over a connection that has been given up

Kind = Literal["gone", "fenced", "ready", "behind", "running", "done", "leaving", "fallen", "ending", "busy", "still"]
"""How a member stands to the epoch.  `fenced`: an earlier life in its place may still run its command.  `behind`:
ready, but it has not said that this epoch is over for it.  `fallen`: of what is not known yet.  `still`: of those that
run or are done, so many have accelerators that do not change."""


class Reported(NamedTuple):
    """`pulses`: of all members, where this report may be of a hang."""

    now: float
    report: Report
    pulses: Mapping[int, Pulse] = {}


class DeadlineReached(NamedTuple):
    now: float


Event = Reported | MemberLost | DeadlineReached


class ReportReceived(NamedTuple):
    """To every member."""

    order: GroupOrder


class MemberRefused(NamedTuple):
    rank: int
    life: str
    why: str


class NodeNote(NamedTuple):
    """A line for rank 0's record."""

    what: str


Effect = ReportReceived | MemberRefused | NodeNote
Effects = tuple[Effect, ...]


class Cure(NamedTuple):
    """All start again, because of this."""

    cause: Reason
    why: str
    suspect: Suspect | None = None
    counts: Counts | None = None  # None: as they were


class Gathering(NamedTuple):
    """Not all have come yet, and nobody is disturbed.  `hint`: when it is said who is missing."""

    deadline: float | None
    hint: float | None = None


class Steady(NamedTuple):
    """All run the epoch, or did, or are about to, by the deadline."""

    deadline: float | None = None


class Draining(NamedTuple):
    """The epoch is over, and not all are ready.  `lost`: since when one is or was, and `loss`: who, if it had come."""

    since: float
    deadline: float
    pulses: Mapping[int, Pulse] = {}
    cure: Cure | None = None
    lost: float | None = None
    loss: MemberState | None = None


class MemberGone(NamedTuple):
    """The same, and a member is not there: up to the deadline it is waited for."""

    since: float
    deadline: float
    pulses: Mapping[int, Pulse]
    cure: Cure | None
    lost: float | None
    loss: MemberState | None


class Ended(NamedTuple):
    deadline: None = None


Phase = Gathering | Steady | Draining | MemberGone | Ended


class Coordinator(NamedTuple):
    size: int
    wait: float  # for a member that is not there
    drain: float  # what a member takes at most to end its command
    heal: float  # and what it takes at most then, before it is ready
    started: float
    phase: Phase
    order: GroupOrder = GroupOrder(0, "wait")
    members: Mapping[int, MemberState] = {}
    kinds: Mapping[Kind, int] = {}
    fences: Mapping[int, float] = {}  # rank: until when an earlier life may run its command
    progressed: bool = False  # some member did, in this epoch
    counts: Counts | None = None  # None: not known here
    strangers: Mapping[tuple[int, str], float] = {}  # rank and life: since when it wants a place that is taken
    unheard: float | None = None  # from then on, who has not been heard is lost; None: not yet, or it is past
    missed: bool = False
    heard: bool = False  # this epoch was, and not given here
    silence: float = SILENCE  # without a word of a member that count as its loss

    @property
    def epoch(self) -> int:
        """The highest heard or given."""
        return self.order.epoch

    @property
    def lease(self) -> float:
        """For so long a member's command may work on after its last word of rank 0 (clients/group_messenger)."""
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
        """Members other than rank 0 that are there, and have not said their last word."""
        there = (m for rank, m in self.members.items() if rank and m.gone is None and m.report.state != "left")
        return sum(1 for _ in there)


Outcome = tuple[Coordinator, Effects]


def gather(
    now: float, size: int, wait: float, drain: float, heal: float = 0.0, silence: float = SILENCE
) -> Coordinator:
    """A coordinator that knows nothing yet."""
    return Coordinator(size, wait, drain, heal, now, Gathering(now + wait, now + HINT), silence=silence)


def taken(coordinator: Coordinator, now: float, report: Report, before: MemberState | None) -> Coordinator:
    """Its place has this report now."""
    if report.epoch > coordinator.epoch and not isinstance(coordinator.phase, Ended):
        coordinator = _raised(coordinator, now, report.epoch)
    return put(coordinator, MemberState(report, first_failure(report, now, before)))


def _raised(coordinator: Coordinator, now: float, epoch: int) -> Coordinator:
    """A higher epoch is heard: we have forgotten it, and nothing that we settled for the one before holds."""
    order = coordinator.order._replace(epoch=epoch, cause=None, progressed=False, still=False)
    match coordinator.phase:
        case Gathering() if coordinator.epoch == 0:  # the others have to be somewhere
            coordinator = coordinator._replace(phase=Gathering(None), unheard=now + coordinator.silence)
        case Steady():
            coordinator, order = coordinator._replace(phase=Gathering(None)), order._replace(what="wait")
        case Draining() | MemberGone() as phase:
            coordinator = coordinator._replace(phase=phase._replace(cure=None))
    coordinator = coordinator._replace(order=order, progressed=False, heard=True)
    if isinstance(coordinator.phase, Draining | MemberGone):
        return suspicious(coordinator, now)
    return coordinator._replace(kinds=count(coordinator))


def put(coordinator: Coordinator, member: MemberState) -> Coordinator:
    """Cheap: a thousand members become ready one after the other."""
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
            return "done"  # it heard the verdict of a coordinator that has forgotten it
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
        case "fallen" if current and report.trouble is None:
            return "fallen"
        case "ending" if current:
            return "ending"
    return "busy"


def count(coordinator: Coordinator) -> Mapping[Kind, int]:
    kinds: dict[Kind, int] = {}
    for rank, member in coordinator.members.items():
        kind = kind_of(member, coordinator.epoch, rank in coordinator.fences)
        kinds[kind] = kinds.get(kind, 0) + 1
        if member.report.still and kind in ("running", "done"):
            kinds["still"] = kinds.get("still", 0) + 1
    return kinds


def absent(coordinator: Coordinator) -> list[int]:
    """Who never came, or has gone."""
    gone = (r for r, m in coordinator.members.items() if kind_of(m, coordinator.epoch, False) == "gone")
    return sorted((*gone, *(r for r in range(coordinator.size) if r not in coordinator.members)))


def most(coordinator: Coordinator) -> Counts:
    """As far as anybody knows."""
    hang, fault, failure = (
        max((m.report.counts[i] for m in coordinator.members.values()), default=0) for i in range(3)
    )
    return hang, fault, failure


# --- lives that may still run their command, unseen -----------------------------------------------------------------


def fenced(coordinator: Coordinator, now: float, before: MemberState, report: Report) -> Coordinator:
    """Who does not hear rank 0 may work on, and ends its command by itself when its lease is over; who lost its machine
    may be cut off only.  Nothing of it is left where it said so, or where its connection closed and this one, on the
    same machine, came only then: one that was there before does not follow it, and it may have lost its messenger only.
    """
    gone = before.gone
    if coordinator.epoch == 0 or gone is None:
        return coordinator
    since = coordinator.strangers.get((report.rank, report.life), now)
    closed = next((at for at in (gone.shut, gone.heard) if at is not None), gone.now)
    if gone.closed and before.report.boot == report.boot and since >= closed:
        return coordinator
    # It cannot have had a word of us later than we had one of it, but for one that was on its way (LATE).
    last = gone.heard if gone.heard is not None and not gone.closed else gone.now
    return fence(coordinator, now, {report.rank: last})


def stranger(coordinator: Coordinator, now: float, report: Report) -> Coordinator:
    key = report.rank, report.life
    if key in coordinator.strangers:
        return coordinator
    known = list(coordinator.strangers.items())[1 - STRANGERS :]  # with the secret anybody may come by
    return coordinator._replace(strangers=dict([*known, (key, now)]))


def wary(coordinator: Coordinator, now: float, report: Report) -> Coordinator:
    """Who comes late to one who has forgotten, and has run nothing, may be in the place of another."""
    if isinstance(coordinator.phase, Gathering | Ended) or not without_past(report, coordinator.epoch):
        return coordinator
    return fence(coordinator, now, {report.rank: coordinator.started})


def without_past(report: Report, epoch: int) -> bool:
    """Where rank 0 is, the coordinator is: nobody else is in its place.  Who ran the newest epoch itself was alone in
    its place when that began."""
    return report.rank != 0 and report.state == "ready" and report.trouble is None and report.ran < max(epoch, 1)


def suspicious(coordinator: Coordinator, now: float) -> Coordinator:
    """Who forgot whom those without a past replace lets them wait until nobody else can be at work in their place."""
    new = {
        rank: coordinator.started
        for rank, m in coordinator.members.items()
        if without_past(m.report, coordinator.epoch)
    }
    return fence(coordinator, now, new)


def fence(coordinator: Coordinator, now: float, lost: Mapping[int, float]) -> Coordinator:
    """`lost`: rank: since when an earlier life in its place may have had no word of rank 0."""
    fences = dict(coordinator.fences)
    for rank, since in lost.items():
        until = since + coordinator.lease + LATE + coordinator.drain  # later than any before: it is lost since then
        if until > now:
            fences[rank] = max(until, fences.get(rank, until))
    after = coordinator._replace(fences=fences)
    return after._replace(kinds=count(after))
