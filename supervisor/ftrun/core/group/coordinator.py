"""The coordinator of a group: `decide(coordinator, event) -> (coordinator, effects)`.

The transitions between phases are here, but for the end of a group (ending.py) and what a new coordinator learns from
reports (reports.py).  The function is level-triggered: only the last report of each member matters, so that a lost,
late or repeated message does no harm, and a new coordinator learns the whole state again.

An epoch is one start of the command on all members.  The start of the next one is ordered only when each member is
`ready` *at the epoch before*: it has reported that its command of that epoch, and of any earlier one, is dead and will
not start.  A member that gets `stop` for an epoch that it never ran adopts its number and reports that.  Where a group
may go on with fewer members, or has spares, an epoch starts without a member only once that one's command is certainly
dead (fences.py).  Members without a place wait, and count as spares; what happens to them concerns nobody else.

While the cause of a `stop` is None, it is open which failure came first, and members that are `ending` wait.  With a
cause it is decided that all members restart, including those that are `ending`.
"""

from collections.abc import Mapping

from ftrun.core.group import ending, fences, group_rounds
from ftrun.core.group.ending import NAMED, REPLACEABLE, end_group, member_names
from ftrun.core.group.loss_waits import can_start, loss_wait
from ftrun.core.group.losses import Losses, NodeLost, NodeNote
from ftrun.core.group.membership import (
    HINT,
    Coordinator,
    Draining,
    Ended,
    FolderProved,
    Gathering,
    GroupEffects,
    GroupEvent,
    GroupOutcome,
    GroupRestart,
    JoiningHindered,
    LeaseForeign,
    LeaseTaken,
    LifeEnded,
    RefuseMember,
    Reported,
    SendOrder,
    StarterDied,
    Steady,
    absent_ranks,
    count_kinds,
    highest_counts,
    kind_of,
)
from ftrun.core.group.messages import GroupEnd, GroupOrder, MemberReport, Pulse
from ftrun.core.group.places import agree, next_members, pairs
from ftrun.core.group.reports import put_member, take_lease, take_report, with_places
from ftrun.core.group.root_cause import FirstSuspect, MemberLost, MemberState, first, root_cause
from ftrun.core.machine.values import CAUSES
from ftrun.core.rules import exit_codes
from ftrun.core.text import sentences


def decide(group: Coordinator, event: GroupEvent) -> GroupOutcome:
    after, effects = group, GroupEffects()
    if isinstance(event, Reported):
        after, effects = _take_report(group, event.now, event.report)
    elif isinstance(event, MemberLost):
        after, effects = _note_loss(group, event)
    elif isinstance(event, StarterDied):
        after = fences.end_of_starters(group, [event.life])
    elif isinstance(event, LeaseTaken):
        after = take_lease(group, event)
    elif isinstance(event, FolderProved):
        after = group._replace(folder_unproved=False) if group.folder_unproved else group
    elif isinstance(event, LeaseForeign):
        return _without_lease(group, event)
    elif isinstance(event, LifeEnded):
        after = fences.end_of_life(group, event)
    elif isinstance(event, JoiningHindered):
        if group.epoch or not isinstance(group.phase, Gathering):
            return group, ()
        after = group._replace(obstacle=event.what)
        if not event.gave_up or not (missing := absent_ranks(group)):
            return after, ()
        after, effects = ending.end_stranger(after, missing)
        return after, (*effects, SendOrder(after.order))
    elif group.deadline is not None and event.now >= group.deadline:
        after = _after_deadline(group, event.now)
    if after is group or isinstance(group.phase, Ended):
        return after, effects
    end = ending.immediate_end(after, event.report) if isinstance(event, Reported) else None
    if end is not None:
        after, more = end_group(after, end)
    else:
        after, more = _assess(after, event.now, event.pulses if isinstance(event, Reported) else {})
    orders = () if after.order == group.order else (SendOrder(after.order),)
    return after, (*effects, *more, *_lost(group, after, event), *orders)


# --- reports --------------------------------------------------------------------------------------------------------


def _take_report(group: Coordinator, now: float, report: MemberReport) -> GroupOutcome:
    before = group.members.get(report.rank)
    if not 0 <= report.rank < group.size:
        why = f"member {report.rank} does not belong to a group of {group.size}"
        return group, (RefuseMember(report.rank, report.life, why),)
    if before is None:
        return take_report(fences.fence_latecomer(group, now, report), now, report, None), ()
    if before.report.life != report.life:
        # A process that was refused while the group was at work has no part in its verdict.
        refused = isinstance(group.phase, Ended) and (report.rank, report.life) in group.waiting_processes
        if refused or (before.gone is None and before.report.state != "left"):
            why = f"member {report.rank} is there already, on {before.report.node}"
            return fences.note_waiting(group, now, report), (RefuseMember(report.rank, report.life, why),)
        after = take_report(fences.fence_predecessor(group, now, before, report), now, report, None)
        return after, _return_note(group, report)
    if report.seq < before.report.seq or before.report.state == "left":
        return group, ()
    if report.seq == before.report.seq and before.gone is None:
        return group, ()  # a repeated report, as almost every message is
    return take_report(group, now, report, before), _return_note(group, report) if before.gone else ()


def _without_lease(group: Coordinator, event: LeaseForeign) -> GroupOutcome:
    """Another coordinator may begin the next epoch, so the one that runs ends: who is in contact with this one must
    not work on meanwhile.  Where all members were new, the lease is that of a schedule before."""
    if group.all_new and group.lease_state == "none":
        return group, ()
    after = group._replace(lease_state="foreign", lease_until=event.until, lease_holder=event.holder)
    if group.lease_state == "foreign" or not group.epoch or not isinstance(group.phase, Gathering | Steady):
        return after, ()
    after, effects = _begin_draining(after, event.now, {}, "the lease in the shared folder is not renewed")
    return after, (*effects, SendOrder(after.order))


def _note_loss(group: Coordinator, event: MemberLost) -> GroupOutcome:
    before = group.members.get(event.rank)
    if before is None or before.report.life != event.life or before.gone is not None or before.report.state == "left":
        return group, ()
    after = put_member(group, before._replace(gone=event))
    return (fences.without_dead(after, event.rank) if event.certain else after), ()


def _lost(group: Coordinator, after: Coordinator, event: GroupEvent) -> GroupEffects:
    """The record of the member that this event takes from a group that has not ended."""
    if not isinstance(event, MemberLost | Reported) or isinstance(after.phase, Ended):
        return ()
    rank = event.rank if isinstance(event, MemberLost) else event.report.rank
    before, member = group.members.get(rank), after.members.get(rank)
    if member is None or kind_of(member, after.epoch, False) != "gone" or after.kinds.get("gone", 0) > NAMED:
        return ()
    if before is not None and kind_of(before, group.epoch, False) == "gone":
        return ()
    return (NodeLost(rank, member.report.node, _loss_text(member), loss_wait(after, event.now)),)


def _loss_text(member: MemberState) -> str:
    if member.gone is not None:
        return f"{member.name} is lost: {member.gone.why}"
    own = member.report.end
    why = sentences.reason(own.why) if own is not None and (own.code or own.asked) else ""
    return f"{member.name} has left" + (f": {why}" if why else "")


def _return_note(group: Coordinator, report: MemberReport) -> GroupEffects:
    return () if isinstance(group.phase, Ended) else (NodeNote(f"member {report.rank} ({report.node}) is back"),)


def _after_deadline(group: Coordinator, now: float) -> Coordinator:
    """The coordinator after its deadline, as a new value, so that `decide` assesses it again."""
    after = group._replace(fences={rank: until for rank, until in group.fences.items() if until > now})
    if after.report_deadline is not None and now >= after.report_deadline:
        after = after._replace(report_deadline=None, reports_missing=True)
    return after._replace(kinds=count_kinds(after))


# --- transitions ----------------------------------------------------------------------------------------------------


def _assess(group: Coordinator, now: float, pulses: Mapping[int, Pulse]) -> GroupOutcome:
    if group.epoch and group.kinds.get("done") == len(group.placed):
        return end_group(group, GroupEnd(0, exit_codes.SUCCEEDED, "all members have succeeded"))
    match group.phase:
        case Gathering():
            return _while_gathering(group, group.phase, now, pulses)
        case Steady():
            return _while_steady(group, group.phase, now, pulses)
        case Draining():
            return _while_draining(group, group.phase, now, pulses)
    return group, ()


def _while_gathering(group: Coordinator, phase: Gathering, now: float, pulses: Mapping[int, Pulse]) -> GroupOutcome:
    n, foreign = group.kinds.get, group.lease_state == "foreign"
    here = not group.unseen and not n("gone")
    at_work = n("running", 0) + n("done", 0)
    bad = n("fallen", 0) + n("ending", 0)
    if group.epoch:
        bad += n("busy", 0) + n("gone", 0) + group.reports_missing
        everyone = at_work + n("leaving", 0) == len(group.placed)
        if not bad and n("behind", 0) + n("ready", 0) and group_rounds.can_admit(group):
            return _resume(fences.fence_unknown(group, now), now, pulses) if here else (group, ())
        if bad or (at_work and n("ready", 0) + n("behind", 0)) or (here and not everyone):
            return _begin_draining(fences.fence_unknown(group, now), now, pulses)
        if here:
            return _resume(group, now, pulses)
    elif bad:
        return _begin_draining(group, now, pulses)
    elif n("ready") == group.size:  # an earlier lease says nothing about ready members
        group = group._replace(all_new=True, lease_state="none" if foreign else group.lease_state)
        return _start_epoch(group, GroupRestart("first", ""), now)
    waited = now >= group.started + group.wait
    enough = n("ready", 0) >= (group.shape.fewest if waited else group.shape.most)
    if not group.epoch and enough and fences.may_begin(group) and not (foreign and group.lease_until is None):
        # Missing members may run an epoch of which no present member knows, until their leases are over.
        until = max((fences.over_at(group, rank) for rank in absent_ranks(group)), default=now)
        if foreign:
            until = max(until, (group.lease_until or now) + HINT)
        if until <= now:
            return _start_epoch(group, GroupRestart("first", ""), now)
        phase = phase._replace(deadline=until)
        group = group._replace(phase=phase)
    elif phase.deadline is not None and now >= phase.deadline:
        missing = absent_ranks(group)
        return ending.end_not_joined(group, missing) if missing else ending.end_not_ready(group, now - group.started)
    if phase.hint is not None and now >= phase.hint:
        missing = absent_ranks(group)
        obstacle = f"; {group.obstacle}" if group.obstacle else ""
        order = group.order._replace(why=f"waiting for {member_names(missing)}{obstacle}" if missing else "")
        return group._replace(order=order, phase=phase._replace(hint=now + 3 * HINT)), ()
    return group, ()


def _adopt_epoch(group: Coordinator) -> GroupOutcome:
    """All members run the epoch: adopt the state from before this coordinator started."""
    counts, before = highest_counts(group), group.order
    progressed = any(m.report.progressed for m in group.working if m.report.epoch == group.epoch)
    order = GroupOrder(group.epoch, "run", counts=counts, paused=before.paused, places=before.places)
    order = order._replace(round=group_rounds.adopted(group))
    after = group._replace(phase=Steady(), order=order, counts=counts, progressed=progressed, report_deadline=None)
    return _with_shared_state(after), (NodeNote(f"{_all(group)} are at epoch {group.epoch}"),)


def _resume(group: Coordinator, now: float, pulses: Mapping[int, Pulse]) -> GroupOutcome:
    """Adopt the epoch, and do at once what the reports mean for it, since none of them may come again."""
    group, effects = _adopt_epoch(group)
    assert isinstance(group.phase, Steady)
    group, more = _while_steady(group, group.phase, now, pulses)
    return group, (*effects, *more)


def _while_steady(group: Coordinator, phase: Steady, now: float, pulses: Mapping[int, Pulse]) -> GroupOutcome:
    n = group.kinds.get
    going = n("running", 0) + n("done", 0) + n("behind", 0) + n("leaving", 0)
    if group.base != (group.epoch, group.placed) and group.others_run and not group.epoch_reported:
        group = group._replace(base=(group.epoch, group.placed))
    recovery = group_rounds.follow(group, phase, now)
    group = recovery.group
    if recovery.goes_on:
        return group, recovery.effects
    if going < len(group.placed) or recovery.drain is not None:
        return _begin_draining(group, now, pulses, losses=phase.losses, otherwise=recovery.drain)
    if (order := group.order.round) is not None and isinstance(group.phase, Steady):
        group = group._replace(phase=group.phase._replace(deadline=None))
        if order.rung is not None or order.what != "work":
            return _with_shared_state(group), recovery.effects
    elif phase.deadline is not None and not n("behind"):
        group = group._replace(phase=Steady())
    elif phase.deadline is not None and now >= phase.deadline:
        slow = [m.report.rank for m in group.working if kind_of(m, group.epoch, False) == "behind"]
        slow = [rank for rank in slow if rank != group.own_rank] or slow  # the member of this coordinator starts last
        return ending.end_not_started(group, slow)
    group = _with_shared_state(group)
    if group.shape.scale_out:
        group, why = _scale_out(group)
        if why:
            return _begin_draining(group, now, pulses, why)
    return group, ()


def _with_shared_state(group: Coordinator) -> Coordinator:
    unchanged, waited = (group.kinds.get(kind) == len(group.placed) for kind in ("devices-unchanged", "devices-waited"))
    order = group.order._replace(progressed=group.progressed, devices_unchanged=unchanged, devices_waited=waited)
    return group if order == group.order else group._replace(order=order)


def _scale_out(group: Coordinator) -> tuple[Coordinator, str]:
    """Why this epoch ends for the next one to have more members or devices; empty: it does not.  Each member that has
    reported checkpoints needs a newer one than when that became possible: a checkpoint may have a part of each."""
    back = sorted(m.report.rank for r, m in group.members.items() if r not in group.placed and _is_ready(group, m))
    back = back[: max(0, group.shape.most - len(group.placed))]
    regains = [member for member in group.working if member.report.regains]
    if not (back or regains):
        return group if group.saved is None else group._replace(saved=None), ""
    now = {m.report.rank: m.report.checkpoint for m in group.working}
    if group.saved is None:
        return group._replace(saved=now), ""
    newer = [number != group.saved.get(rank) for rank, number in now.items() if number is not None]
    if not newer or not all(newer):
        return group, ""
    why = [f"{sentences.devices(m.report.regains)} of {m.name} can be used again" for m in regains[:NAMED]]
    why += [f"{member_names(back, group)} can work again: {len(group.placed) + len(back)} members go on"] * bool(back)
    return group, f"a checkpoint is saved, and {', '.join(why)}"


def _is_ready(group: Coordinator, member: MemberState) -> bool:
    return kind_of(member, group.epoch, member.report.rank in group.fences) == "ready"


def _begin_draining(
    group: Coordinator,
    now: float,
    pulses: Mapping[int, Pulse],
    why: str = "",
    losses: Losses | None = None,
    otherwise: str | None = None,
) -> GroupOutcome:
    """`losses`: of members that are waited for already; `otherwise`: why, if no member has failed."""
    who = first(group.working, group.epoch)
    why = why or (otherwise if who is None and otherwise is not None else _reason(group, who))
    phase = Draining(now, now + fences.drain_time(group), pulses, losses=losses or Losses())
    counts, before = group.counts or highest_counts(group), group.order
    paused = None if before.paused and now >= group.paused_until else before.paused  # for a new container
    order = GroupOrder(group.epoch, "stop", why, node=who and who.report.node, counts=counts, paused=paused)
    order = order._replace(progressed=group.progressed, places=before.places, starter=before.starter)
    order = order._replace(member=who and who.report.rank)
    after, effects = _while_draining(group._replace(phase=phase, order=order), phase, now, pulses)
    return after, (NodeNote(f"epoch {group.epoch} is over: {why}"), *effects)


def _while_draining(group: Coordinator, phase: Draining, now: float, pulses: Mapping[int, Pulse]) -> GroupOutcome:
    n = group.kinds.get
    missing = n("gone", 0) + group.reports_missing * group.unseen
    absent = absent_ranks(group) if missing else []
    losses, lost_member = phase.losses.following(absent, now), phase.lost_member
    restart, order = phase.restart, group.order
    if missing and phase.losses.first is None:
        lost_member = first((m for m in group.working if m.gone is not None), group.epoch)
    if restart is None and not (n("running") or n("behind") or n("fallen")):  # all have answered
        known = (*group.working, lost_member) if lost_member else group.working
        who = _new_rank_zero(group) or first(known, group.epoch)
        end = who.report.end if who is not None and who.report.state == "ending" else None
        if who is not None and end is not None and _ends_all(group, end):
            return end_group(group, end._replace(node=end.node or who.report.node))
        restart = _restart(group, who, phase.pulses or pulses)
        node, rank, step, member = restart.suspect or (order.node, None, None, order.member)
        why = restart.why + _starter_text(group, absent, now)
        order = order._replace(cause=restart.cause, why=why, node=node, rank=rank, step=step, member=member)
    patience = losses.until(group.wait)
    waited = (patience is not None and now >= patience) or (bool(absent) and group.ceded.issuperset(absent))
    over = max((fences.over_at(group, rank) for rank in absent), default=now)
    over = max(over, fences.starters_over_at(group, absent))
    startable = restart is not None and over <= now and can_start(group, len(absent), waited)
    if startable and restart is not None and fences.may_decide(group) and group.lease_state != "foreign":
        return _start_epoch(group, restart, now)
    until = max(phase.since, losses.newest if losses.newest is not None else phase.since) + fences.drain_time(group)
    until = max((until, *group.fences.values(), over if group.starters else until))
    if patience is not None and missing:
        enough = n("ready", 0) + n("spare", 0) >= group.shape.fewest
        stopping = n("ready", 0) + len(absent) < len(group.placed)
        until = max(patience, (max(over, until) if stopping else over) if enough else now)
    if group.lease_state == "foreign" and group.lease_until is not None:
        until = max(until, group.lease_until + HINT)
    due = over if now < over < until else until
    group = group._replace(
        phase=Draining(phase.since, due, phase.pulses or pulses, restart, losses, lost_member), order=order
    )
    if now < until:
        return group, ()
    return ending.end_missing(group, absent, losses, now) if missing else ending.end_not_ready(group, now - phase.since)


def _starter_text(group: Coordinator, absent: list[int], now: float) -> str:
    """For whom the start waits, and why (`loss_wait`: for how long), where an earlier member 0 may be at work."""
    left = fences.starters_over_at(group, absent) - now
    if not group.starters or left <= 0:
        return ""
    nodes = ", ".join(sorted({starter.node for starter, _ in group.starters.values()})[:NAMED])
    return (
        f"; the earlier member 0 (on {nodes}) may still be at work, so nothing starts until its lease is over or it is"
        " certainly dead"
    )


def _ends_all(group: Coordinator, end: GroupEnd) -> bool:
    """Whether this verdict of one member ends the others too."""
    return not end.cut and not (group.shape.goes_on and end.code in REPLACEABLE)


def _new_rank_zero(group: Coordinator) -> MemberState | None:
    """The member of this coordinator, if it is new since the epoch began: its loss is the cause of what the other
    members report."""
    member = group.members.get(group.own_rank) if group.own_rank in group.placed else None
    return member if group.epoch_reported and member is not None and member.report.ran < group.epoch else None


def _reason(group: Coordinator, who: MemberState | None) -> str:
    if who is None:
        at_work = ("running", "done")
        # The member of this coordinator starts last: where others have not started, it is not the one.
        last = -1 if group.others_run else group.own_rank
        known = sorted(group.working, key=lambda m: (m.report.rank == last, m.report.rank))
        odd = next((m for m in known if kind_of(m, group.epoch, False) not in at_work), None)
        return f"{odd.name} does not run its command" if odd else "a member is missing"
    if who.report.failure is not None and who.at is not None and who.report.epoch == group.epoch:
        return f"{who.name}: {sentences.reason(who.report.failure.why)}"
    if who.gone is not None:
        return _loss_text(who)
    if who is _new_rank_zero(group):
        return f"{who.name} was lost, and has come back"
    if who.report.state == "left":
        return _loss_text(who)
    if who.report.end is not None:
        return f"{who.name}: {sentences.reason(who.report.end.why)}"
    asked = next((m.name for m in group.working if kind_of(m, group.epoch, False) == "leaving"), None)
    return f"{who.name}: the command ended" + (f", after {asked} was asked from outside to stop" if asked else "")


def _restart(group: Coordinator, who: MemberState | None, pulses: Mapping[int, Pulse]) -> GroupRestart:
    why = group.order.why if who is None else _reason(group, who)
    if who is None:
        return GroupRestart("peer", why)
    leaves = who.report.end is not None and not _ends_all(group, who.report.end)
    if who.report.failure is None or who.report.epoch != group.epoch or leaves:
        return GroupRestart("peer", why, FirstSuspect(who.report.node, member=who.report.rank))
    cause = who.report.failure.cause
    counts = who.report.counts if cause in CAUSES else None
    return GroupRestart(cause, why, root_cause(who, group.members, pulses), counts)


def _start_epoch(group: Coordinator, restart: GroupRestart, now: float) -> GroupOutcome:
    """The barrier is passed, as nothing of an earlier epoch runs anywhere: order the next epoch."""
    epoch = group.epoch + 1
    able = {rank for rank, member in group.members.items() if _is_ready(group, member)}
    before = group.places or (range(group.size) if group.shape.is_fixed else sorted(group.placed & able))
    places = next_members(before, able, group.shape.most)
    members = [group.members[rank] for rank in places]
    world = agree([(member.name, member.report.ranks) for member in members])
    if isinstance(world, str):
        return end_group(group, GroupEnd(exit_codes.USAGE.code, exit_codes.USAGE.name, world))
    counts = restart.counts or group.counts or highest_counts(group)
    if group.progressed:
        hang, fault, failure = (int(restart.cause == cause) for cause in CAUSES)
        counts = (hang, fault, failure)
    node, rank, step, member = restart.suspect or (None, None, None, None)
    paused = group.order.paused
    if paused != float("inf"):
        paused = None  # a pause with an end runs from another moment on each member
    order = GroupOrder(epoch, "run", restart.why, restart.cause, node, rank, step, counts, paused=paused, world=world)
    after = group._replace(
        phase=Steady(now + group.wait),
        order=order._replace(places=pairs(places), master=members[0].report.address, starter=group.own, member=member),
        counts=counts,
        progressed=False,
        report_deadline=None,
        reports_missing=False,
        epoch_reported=False,
        starters={},
        lives={},
        dead=frozenset(),
        ceded=frozenset(),
    )
    after = with_places(after, places)
    return after._replace(kinds=count_kinds(after)), (NodeNote(f"{_all(after)} start epoch {epoch}"),)


def _all(group: Coordinator) -> str:
    """The members that work, as the subject of a sentence."""
    size, working = group.size, len(group.placed)
    return f"all {size} members" if working == size else f"{working} of {size} members"
