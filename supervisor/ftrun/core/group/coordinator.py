"""The coordinator of a group: `decide(coordinator, event) -> (coordinator, effects)`.

This file owns every transition.  It is level-triggered: only the last report of each member matters, so that a lost,
late or repeated message does no harm, and a new coordinator learns the whole state again.

An epoch is one start of the command on all members.  The start of the next one is ordered only when each member is
`ready` *at the epoch before*: it has reported that its command of that epoch, and of any earlier one, is dead and will
not start.  A member that gets `stop` for an epoch that it never ran adopts its number and reports that.

While the cause of a `stop` is None, it is open which failure came first, and members that are `ending` wait.  With a
cause it is decided that all members restart, including those that are `ending`.
"""

from collections.abc import Mapping
from typing import Final

from ftrun.core.group.membership import (
    HINT,
    LATE,
    NONE,
    Coordinator,
    Draining,
    Effects,
    Ended,
    Event,
    Gathering,
    GroupRestart,
    NodeNote,
    Outcome,
    RefuseMember,
    Reported,
    SendOrder,
    Steady,
    absent_ranks,
    count_kinds,
    fence_latecomer,
    fence_predecessor,
    fence_unknown,
    highest_counts,
    kind_of,
    note_waiting,
    put_member,
    take_report,
)
from ftrun.core.group.messages import GroupEnd, GroupOrder, Pulse, Report
from ftrun.core.group.root_cause import MemberLost, MemberState, Suspect, first, root_cause
from ftrun.core.group.world import agree
from ftrun.core.machine.values import CAUSES
from ftrun.core.rules import exit_codes
from ftrun.core.text import durations, sentences

NAMED: Final = 10  # ranks in one line
AT_ONCE: Final = frozenset(verdict.code for verdict in exit_codes.TABLE if verdict.ends_group)


def decide(group: Coordinator, event: Event) -> Outcome:
    after, effects = group, Effects()
    if isinstance(event, Reported):
        after, effects = _take_report(group, event.now, event.report)
    elif isinstance(event, MemberLost):
        after, effects = _note_loss(group, event)
    elif group.deadline is not None and event.now >= group.deadline:
        after = _after_deadline(group, event.now)
    if after is group or isinstance(group.phase, Ended):
        return after, effects
    end = _immediate_end(after, event.report) if isinstance(event, Reported) else None
    if end is not None:
        after, more = _end(after, end)
    else:
        after, more = _assess(after, event.now, event.pulses if isinstance(event, Reported) else {})
    orders = () if after.order == group.order else (SendOrder(after.order),)
    return after, (*effects, *more, *orders)


# --- reports --------------------------------------------------------------------------------------------------------


def _take_report(group: Coordinator, now: float, report: Report) -> Outcome:
    before = group.members.get(report.rank)
    if not 0 <= report.rank < group.size:
        why = f"member {report.rank} does not belong to a group of {group.size}"
        return group, (RefuseMember(report.rank, report.life, why),)
    if before is None:
        return take_report(fence_latecomer(group, now, report), now, report, None), ()
    if before.report.life != report.life:
        if before.gone is None and before.report.state != "left":
            why = f"member {report.rank} is there already, on {before.report.node}"
            return note_waiting(group, now, report), (RefuseMember(report.rank, report.life, why),)
        after = take_report(fence_predecessor(group, now, before, report), now, report, None)
        return after, _return_note(group, report)
    if report.seq < before.report.seq or before.report.state == "left":
        return group, ()
    if report.seq == before.report.seq and before.gone is None:
        return group, ()  # a repeated report, as almost every message is
    return take_report(group, now, report, before), _return_note(group, report) if before.gone else ()


def _note_loss(group: Coordinator, event: MemberLost) -> Outcome:
    before = group.members.get(event.rank)
    if before is None or before.report.life != event.life or before.gone is not None or before.report.state == "left":
        return group, ()
    after = put_member(group, before._replace(gone=event))
    if isinstance(group.phase, Ended) or after.kinds["gone"] > NAMED:
        return after, ()
    return after, (NodeNote(f"{before.name} is lost: {event.why}"),)


def _return_note(group: Coordinator, report: Report) -> Effects:
    return () if isinstance(group.phase, Ended) else (NodeNote(f"member {report.rank} ({report.node}) is back"),)


def _after_deadline(group: Coordinator, now: float) -> Coordinator:
    """A new value, so that `decide` assesses it again."""
    after = group._replace(fences={rank: until for rank, until in group.fences.items() if until > now})
    if after.report_deadline is not None and now >= after.report_deadline:
        after = after._replace(report_deadline=None, reports_missing=True)
    return after._replace(kinds=count_kinds(after))


# --- transitions ----------------------------------------------------------------------------------------------------


def _assess(group: Coordinator, now: float, pulses: Mapping[int, Pulse]) -> Outcome:
    if group.kinds.get("done") == group.size:
        return _end(group, GroupEnd(0, exit_codes.SUCCEEDED, "all members have succeeded"))
    match group.phase:
        case Gathering():
            return _while_gathering(group, group.phase, now, pulses)
        case Steady():
            return _while_steady(group, group.phase, now, pulses)
        case Draining():
            return _while_draining(group, group.phase, now, pulses)
    return group, ()


def _while_gathering(group: Coordinator, phase: Gathering, now: float, pulses: Mapping[int, Pulse]) -> Outcome:
    n = group.kinds.get
    here = len(group.members) == group.size and not n("gone")
    at_work = n("running", 0) + n("done", 0)
    bad = n("fallen", 0) + n("ending", 0)
    if group.epoch:
        bad += n("busy", 0) + n("gone", 0) + group.reports_missing
        if bad or (at_work and n("ready", 0) + n("behind", 0)) or (here and at_work + n("leaving", 0) < group.size):
            return _begin_draining(fence_unknown(group, now), now, pulses)
        if here:
            return _adopt_epoch(group)
    elif bad:
        return _begin_draining(group, now, pulses)
    elif n("ready") == group.size:
        return _start_epoch(group, GroupRestart("first", ""), now)
    if phase.deadline is not None and now >= phase.deadline:
        missing = absent_ranks(group)
        if missing:
            return _end(group, _hang_limit(f"{_names(missing)} did not join within {durations.seconds(group.wait)}"))
        return _end_not_ready(group, now - group.started)
    if phase.hint is not None and now >= phase.hint:
        missing = absent_ranks(group)
        order = group.order._replace(why=f"waiting for {_names(missing)}" if missing else "")
        return group._replace(order=order, phase=phase._replace(hint=now + 3 * HINT)), ()
    return group, ()


def _adopt_epoch(group: Coordinator) -> Outcome:
    """All members run the epoch: adopt the state from before this coordinator started."""
    counts = highest_counts(group)
    progressed = any(m.report.progressed for m in group.members.values() if m.report.epoch == group.epoch)
    order = GroupOrder(group.epoch, "run", counts=counts, paused=group.order.paused)
    after = group._replace(phase=Steady(), order=order, counts=counts, progressed=progressed, report_deadline=None)
    return _with_shared_state(after), (NodeNote(f"all {group.size} members are at epoch {group.epoch}"),)


def _while_steady(group: Coordinator, phase: Steady, now: float, pulses: Mapping[int, Pulse]) -> Outcome:
    n = group.kinds.get
    going = n("running", 0) + n("done", 0) + n("behind", 0) + n("leaving", 0)
    if going < group.size:
        return _begin_draining(group, now, pulses)
    if phase.deadline is not None and not n("behind"):
        group = group._replace(phase=Steady())
    elif phase.deadline is not None and now >= phase.deadline:
        slow = [rank for rank, m in group.members.items() if kind_of(m, group.epoch, False) == "behind"]
        return _end(group, _hang_limit(f"{_names(slow, group)} did not start within {durations.seconds(group.wait)}"))
    return _with_shared_state(group), ()


def _with_shared_state(group: Coordinator) -> Coordinator:
    unchanged = group.kinds.get("devices-unchanged") == group.size
    if (group.progressed, unchanged) == (group.order.progressed, group.order.devices_unchanged):
        return group
    return group._replace(order=group.order._replace(progressed=group.progressed, devices_unchanged=unchanged))


def _begin_draining(group: Coordinator, now: float, pulses: Mapping[int, Pulse]) -> Outcome:
    who = first(group.members.values(), group.epoch)
    why = _reason(group, who)
    phase = Draining(now, now + _drain_time(group), pulses)
    counts, before = group.counts or highest_counts(group), group.order
    order = GroupOrder(group.epoch, "stop", why, node=who and who.report.node, counts=counts, paused=before.paused)
    order = order._replace(progressed=group.progressed)
    after, effects = _while_draining(group._replace(phase=phase, order=order), phase, now, pulses)
    return after, (NodeNote(f"epoch {group.epoch} is over: {why}"), *effects)


def _while_draining(group: Coordinator, phase: Draining, now: float, pulses: Mapping[int, Pulse]) -> Outcome:
    n = group.kinds.get
    missing = n("gone", 0) + group.reports_missing * (group.size - len(group.members))
    lost_since, lost_member, restart, order = phase.lost_since, phase.lost_member, phase.restart, group.order
    if missing and lost_since is None:
        lost_since = now
        lost_member = first((m for m in group.members.values() if m.gone is not None), group.epoch)
    if restart is None and not (n("running") or n("behind") or n("fallen")):  # all have answered
        known = (*group.members.values(), lost_member) if lost_member else group.members.values()
        who = _new_rank_zero(group) or first(known, group.epoch)
        if who is not None and who.report.state == "ending" and who.report.end and not who.report.end.cut:
            return _end(group, who.report.end._replace(node=who.report.end.node or who.report.node))
        restart = _restart(group, who, phase.pulses or pulses)
        node, rank, step = restart.suspect or (order.node, None, None)
        order = order._replace(cause=restart.cause, why=restart.why, node=node, rank=rank, step=step)
    if restart is not None and n("ready") == group.size:
        return _start_epoch(group, restart, now)
    if missing and lost_since is not None:
        until = lost_since + group.wait
    else:
        until = (phase.since if lost_since is None else max(phase.since, lost_since)) + _drain_time(group)
    group = group._replace(
        phase=Draining(phase.since, until, phase.pulses or pulses, restart, lost_since, lost_member), order=order
    )
    if now < until:
        return group, ()
    if not missing:
        return _end_not_ready(group, now - phase.since)
    ranks = absent_ranks(group)
    be, was = ("is", "was") if len(ranks) == 1 else ("are", "were")
    why = f"{_names(ranks, group)} {be} lost and {was} not back within {durations.seconds(group.wait)}"
    return _end(group, _hang_limit(why, _only_node(group, ranks)))


def _new_rank_zero(group: Coordinator) -> MemberState | None:
    """Rank 0, if it is new since the epoch began: its loss is the cause of what the other members report."""
    member = group.members.get(0)
    return member if group.epoch_reported and member is not None and member.report.ran < group.epoch else None


def _drain_time(group: Coordinator) -> float:
    """How long draining may take: long enough for a fence, and for a device to heal."""
    return group.lease + LATE + group.drain + group.heal


def _reason(group: Coordinator, who: MemberState | None) -> str:
    if who is None:
        at_work = ("running", "done")
        odd = next((m for _, m in sorted(group.members.items()) if kind_of(m, group.epoch, False) not in at_work), None)
        return f"{odd.name} does not run its command" if odd else "a member is missing"
    if who.report.failure is not None and who.at is not None and who.report.epoch == group.epoch:
        return f"{who.name}: {sentences.short(who.report.failure.why, sentences.REASON)}"
    if who.gone is not None:
        return f"{who.name} is lost: {who.gone.why}"
    if who is _new_rank_zero(group):
        return f"{who.name} was lost, and has come back"
    if who.report.state == "left":
        return f"{who.name} has left"
    return f"{who.name}: the command ended"


def _restart(group: Coordinator, who: MemberState | None, pulses: Mapping[int, Pulse]) -> GroupRestart:
    why = group.order.why if who is None else _reason(group, who)
    if who is None:
        return GroupRestart("peer", why)
    if who.report.failure is None or who.report.epoch != group.epoch:
        return GroupRestart("peer", why, Suspect(who.report.node))
    cause = who.report.failure.cause
    counts = who.report.counts if cause in CAUSES else None
    return GroupRestart(cause, why, root_cause(who, group.members, pulses), counts)


def _start_epoch(group: Coordinator, restart: GroupRestart, now: float) -> Outcome:
    """The barrier is passed, as nothing of an earlier epoch runs anywhere: order the next epoch."""
    epoch = group.epoch + 1
    world = agree([(member.name, member.report.ranks) for _, member in sorted(group.members.items())])
    if isinstance(world, str):
        return _end(group, GroupEnd(exit_codes.USAGE.code, exit_codes.USAGE.name, world))
    counts = restart.counts or group.counts or highest_counts(group)
    if group.progressed:
        hang, fault, failure = (int(restart.cause == cause) for cause in CAUSES)
        counts = (hang, fault, failure)
    node, rank, step = restart.suspect or (None, None, None)
    paused = group.order.paused
    if paused != float("inf"):
        paused = None  # a pause with an end runs from another moment on each member
    order = GroupOrder(epoch, "run", restart.why, restart.cause, node, rank, step, counts, paused=paused, world=world)
    after = group._replace(
        phase=Steady(now + group.wait),
        order=order,
        counts=counts,
        progressed=False,
        report_deadline=None,
        reports_missing=False,
        epoch_reported=False,
    )
    return after._replace(kinds=count_kinds(after)), (NodeNote(f"all {group.size} members start epoch {epoch}"),)


# --- the end --------------------------------------------------------------------------------------------------------


def _immediate_end(group: Coordinator, report: Report) -> GroupEnd | None:
    """A verdict that does not depend on other members: one about a device or ftrun itself; that of a member that has
    left with one, which must hold for all since the member cannot return; and any verdict with which rank 0 leaves.  A
    member that leaves since it has lost contact with rank 0 counts as lost."""
    member = group.members[report.rank]
    own = report.end if report.end is not None and not (report.end.asked or report.end.cut) else None
    if own is not None:
        own = own._replace(node=own.node or report.node) if own.code else own
    if own is not None and report.state in ("ending", "left") and own.code in AT_ONCE:
        return own
    if report.state != "left":
        return None
    if own is not None and own.code:
        return own
    if report.rank != 0:
        return None
    if own is not None and not group.kinds.get("running") and not group.kinds.get("fallen"):
        return own
    return _hang_limit(f"{member.name} has left, and without it the group has no rank 0", report.node)._replace(
        asked=True
    )


def _end_not_ready(group: Coordinator, age: float) -> Outcome:
    late = [r for r, m in group.members.items() if kind_of(m, group.epoch, r in group.fences) != "ready"]
    why = f"{_names(late, group)} {'was' if len(late) == 1 else 'were'} not ready within {durations.seconds(age)}"
    return _end(group, _hang_limit(why, _only_node(group, late)))


def _hang_limit(why: str, node: str | None = None) -> GroupEnd:
    return GroupEnd(exit_codes.HANG_LIMIT.code, exit_codes.HANG_LIMIT.name, why, node)


def _end(group: Coordinator, end: GroupEnd) -> Outcome:
    order = GroupOrder(group.epoch, "end", end.why, node=end.node, counts=group.counts or NONE, end=end)
    return group._replace(phase=Ended(), order=order), (
        NodeNote(f"all members end with {end.code} ({end.verdict}): {end.why}"),
    )


def _only_node(group: Coordinator, ranks: list[int]) -> str | None:
    member = group.members.get(ranks[0]) if len(ranks) == 1 else None
    return member and member.report.node


def _names(ranks: list[int], group: Coordinator | None = None) -> str:
    """`member 3 (node-c)`, `members 1, 2 and 40 more`."""
    if len(ranks) == 1:
        member = group.members.get(ranks[0]) if group else None
        return member.name if member else f"member {ranks[0]}"
    named = ", ".join(str(r) for r in sorted(ranks)[:NAMED])
    return f"members {named}" + (f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else "")
