"""How the reports of its members, and the lease in the shared folder, change what the coordinator of a group knows."""

from ftrun.core.group.fences import (
    end_of_starters,
    fence_unknown,
    note_buried,
    note_lives,
    note_starter,
    without_dead,
)
from ftrun.core.group.lease import Place
from ftrun.core.group.membership import (
    Coordinator,
    Draining,
    Ended,
    Gathering,
    LeaseTaken,
    Steady,
    count_kinds,
    kinds_of,
)
from ftrun.core.group.messages import MemberReport, ReportedState
from ftrun.core.group.places import members
from ftrun.core.group.root_cause import MemberLost, MemberState, first_failure


def take_report(group: Coordinator, now: float, report: MemberReport, before: MemberState | None) -> Coordinator:
    """The coordinator with this report of a member."""
    if report.epoch > group.epoch and not isinstance(group.phase, Ended):
        group = _adopt_epoch(group, now, report.epoch)
    if report.epoch == group.epoch and report.places and not group.places and group.epoch_reported:
        group = with_places(group, members(report.places))
        group = group._replace(order=group.order._replace(places=report.places), base=(group.epoch, group.placed))
    if report.state == "left":
        group = without_dead(group, report.rank)
    group = note_lives(note_buried(group, report), report)
    after = put_member(
        note_starter(group, now, report, before), MemberState(report, first_failure(report, now, before))
    )
    return after if after.order.paused == group.order.paused else _with_pause(after, now)


def _with_pause(group: Coordinator, now: float) -> Coordinator:
    """A pause begins, changes or ends.  What ranks are waited for has its whole time again after it."""
    group = group._replace(paused_until=now + (group.order.paused or 0.0))
    if isinstance(group.phase, Steady) and group.phase.round_due is not None:
        group = group._replace(phase=group.phase._replace(round_due=None))
    return group


def _adopt_epoch(group: Coordinator, now: float, epoch: int) -> Coordinator:
    """A higher epoch was reported: this coordinator is new and does not know it, so that its decisions about the epoch
    before are void."""
    order = group.order._replace(
        epoch=epoch, cause=None, progressed=False, devices_unchanged=False, devices_waited=False, places=()
    )
    order = order._replace(round=None)
    group = with_places(group, ())
    match group.phase:
        case Gathering() if group.epoch == 0:  # the other members must exist
            group = group._replace(phase=Gathering(None), report_deadline=now + group.silence)
        case Steady():
            group, order = group._replace(phase=Gathering(None)), order._replace(what="wait")
        case Draining() as phase:
            group = group._replace(phase=phase._replace(restart=None))
    group = group._replace(order=order, progressed=False, epoch_reported=True, base=(epoch, group.placed))
    group = group._replace(lives={}, dead=frozenset())
    if isinstance(group.phase, Draining):
        return fence_unknown(group, now)
    return group._replace(kinds=count_kinds(group))


def put_member(group: Coordinator, member: MemberState) -> Coordinator:
    """The coordinator with this member.  It is cheap, since a thousand members may become ready one after the other."""
    rank = member.report.rank
    before = group.members.get(rank)
    everyone = {**group.members, rank: member}
    kinds = dict(group.kinds)
    for sign, one in ((-1, before), (1, member)):
        for kind in kinds_of(group, one) if one is not None else ():
            kinds[kind] = kinds.get(kind, 0) + sign
    report, order = member.report, group.order
    if isinstance(group.phase, Ended):
        return group._replace(members=everyone, kinds=kinds)
    if report.paused is not None and (before is None or before.report.paused != report.paused):
        order = order._replace(paused=report.paused)
    if report.rank == group.own_rank and report.state == "left" and group.own is not None:
        order = order._replace(starter=group.own._replace(left=True))
    progressed = group.progressed or (report.progressed and report.epoch == group.epoch)
    return group._replace(members=everyone, kinds=kinds, order=order, progressed=progressed)


def with_places(group: Coordinator, places: tuple[int, ...]) -> Coordinator:
    """The coordinator that knows who works in the epoch; where nobody knows, each member may."""
    placed = frozenset(places or range(group.size))
    if (places, placed) == (group.places, group.placed):
        return group
    after = group._replace(places=places, placed=placed, saved=None)
    return after._replace(kinds=count_kinds(after))


# --- the lease --------------------------------------------------------------------------------------------------------


def take_lease(group: Coordinator, event: LeaseTaken) -> Coordinator:
    """This coordinator alone may start an epoch from now on.  The holder before has stopped its command, and so have
    those before it that have held the lease since the last epoch began; nobody waits for these members any longer."""
    if group.lease_state == "held":
        return group
    group, before = group._replace(lease_state="held", lease_until=None), event.before
    if before is None:
        return group
    own = "" if group.own is None else group.own.life
    ended = [one for one in (*before.former, (before.rank, before.life)) if one[1] != own]
    group = end_of_starters(group, [life for _, life in ended])
    for rank, life in reversed(ended):  # the last one first
        if rank != group.own_rank and rank not in group.members and 0 <= rank < group.size:
            group = _without(group, event.now, rank, life, before)
    return group


def _without(group: Coordinator, now: float, rank: int, life: str, before: Place) -> Coordinator:
    """The coordinator without this process of a member: of that member only a new process can take part."""
    node, epoch = before.node if life == before.life else "its node", before.epoch
    state: ReportedState = "running" if epoch else "ready"
    last = MemberReport(rank, life, 0, node, before.boot, epoch, state, ran=epoch, places=before.places)
    gone = MemberLost(now, rank, life, "its lease in the shared folder has ended", certain=True)
    group = take_report(group, now, last, None)
    group = put_member(group, group.members[rank]._replace(gone=gone))
    return without_dead(group, rank)._replace(ceded=group.ceded | {rank})
