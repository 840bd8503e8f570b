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
    Coordinator,
    Cure,
    Draining,
    Effects,
    Ended,
    Event,
    Gathering,
    MemberRefused,
    NodeNote,
    Outcome,
    Reported,
    ReportReceived,
    Steady,
    absent_ranks,
    count_kinds,
    fence_latecomer,
    fence_predecessor,
    fence_unknown,
    highest_counts,
    kind_of,
    note_stranger,
    put_member,
    take_report,
)
from ftrun.core.group.messages import Counts, GroupEnd, GroupOrder, Pulse, Report
from ftrun.core.group.root_cause import MemberLost, MemberState, Suspect, first, root_cause
from ftrun.core.machine.values import CAUSES
from ftrun.core.rules import exit_codes
from ftrun.core.text import durations, sentences

NAMED: Final = 10  # ranks in one line
AT_ONCE: Final = frozenset(v.code for v in (exit_codes.USER_FAULT_LIMIT, exit_codes.NODE_FAULT, exit_codes.INTERNAL))
NONE: Final[Counts] = (0, 0, 0)


def decide(coordinator: Coordinator, event: Event) -> Outcome:
    after, effects = coordinator, Effects()
    if isinstance(event, Reported):
        after, effects = _take_report(coordinator, event.now, event.report)
    elif isinstance(event, MemberLost):
        after, effects = _note_loss(coordinator, event)
    elif coordinator.deadline is not None and event.now >= coordinator.deadline:
        after = _after_deadline(coordinator, event.now)
    if after is coordinator or isinstance(coordinator.phase, Ended):
        return after, effects
    end = _immediate_end(after, event.report) if isinstance(event, Reported) else None
    if end is not None:
        after, more = _end(after, end)
    else:
        after, more = _assess(after, event.now, event.pulses if isinstance(event, Reported) else {})
    orders = (
        () if after.order is coordinator.order or after.order == coordinator.order else (ReportReceived(after.order),)
    )
    return after, (*effects, *more, *orders)


# --- reports --------------------------------------------------------------------------------------------------------


def _take_report(coordinator: Coordinator, now: float, report: Report) -> Outcome:
    before = coordinator.members.get(report.rank)
    if not 0 <= report.rank < coordinator.size:
        why = f"member {report.rank} does not belong to a group of {coordinator.size}"
        return coordinator, (MemberRefused(report.rank, report.life, why),)
    if before is None:
        return take_report(fence_latecomer(coordinator, now, report), now, report, None), ()
    if before.report.life != report.life:
        if before.gone is None and before.report.state != "left":
            why = f"member {report.rank} is there already, on {before.report.node}"
            return note_stranger(coordinator, now, report), (MemberRefused(report.rank, report.life, why),)
        return take_report(fence_predecessor(coordinator, now, before, report), now, report, None), _return_note(
            coordinator, report
        )
    if report.seq < before.report.seq or before.report.state == "left":
        return coordinator, ()
    if report.seq == before.report.seq and before.gone is None:
        return coordinator, ()  # a repeated report, as almost every message is
    return take_report(coordinator, now, report, before), _return_note(coordinator, report) if before.gone else ()


def _note_loss(coordinator: Coordinator, event: MemberLost) -> Outcome:
    before = coordinator.members.get(event.rank)
    if before is None or before.report.life != event.life or before.gone is not None or before.report.state == "left":
        return coordinator, ()
    after = put_member(coordinator, before._replace(gone=event))
    if isinstance(coordinator.phase, Ended) or after.kinds["gone"] > NAMED:
        return after, ()
    return after, (NodeNote(f"{before.name} is lost: {event.why}"),)


def _return_note(coordinator: Coordinator, report: Report) -> Effects:
    return () if isinstance(coordinator.phase, Ended) else (NodeNote(f"member {report.rank} ({report.node}) is back"),)


def _after_deadline(coordinator: Coordinator, now: float) -> Coordinator:
    """A new value, so that `decide` assesses it again."""
    after = coordinator._replace(fences={rank: until for rank, until in coordinator.fences.items() if until > now})
    if after.unheard is not None and now >= after.unheard:
        after = after._replace(unheard=None, missed=True)
    return after._replace(kinds=count_kinds(after))


# --- transitions ----------------------------------------------------------------------------------------------------


def _assess(coordinator: Coordinator, now: float, pulses: Mapping[int, Pulse]) -> Outcome:
    if coordinator.kinds.get("done") == coordinator.size:
        return _end(coordinator, GroupEnd(0, exit_codes.SUCCEEDED, "all members have succeeded"))
    match coordinator.phase:
        case Gathering():
            return _while_gathering(coordinator, coordinator.phase, now, pulses)
        case Steady():
            return _while_steady(coordinator, coordinator.phase, now, pulses)
        case Draining():
            return _while_draining(coordinator, coordinator.phase, now, pulses)
    return coordinator, ()


def _while_gathering(coordinator: Coordinator, phase: Gathering, now: float, pulses: Mapping[int, Pulse]) -> Outcome:
    n = coordinator.kinds.get
    here = len(coordinator.members) == coordinator.size and not n("gone")
    at_work = n("running", 0) + n("done", 0)
    bad = n("fallen", 0) + n("ending", 0)
    if coordinator.epoch:
        bad += n("busy", 0) + n("gone", 0) + coordinator.missed
        if (
            bad
            or (at_work and n("ready", 0) + n("behind", 0))
            or (here and at_work + n("leaving", 0) < coordinator.size)
        ):
            return _begin_draining(fence_unknown(coordinator, now), now, pulses)
        if here:
            return _adopt_epoch(coordinator)
    elif bad:
        return _begin_draining(coordinator, now, pulses)
    elif n("ready") == coordinator.size:
        return _start_epoch(coordinator, Cure("first", ""), now)
    if phase.deadline is not None and now >= phase.deadline:
        missing = absent_ranks(coordinator)
        if missing:
            return _end(
                coordinator, _hang_limit(f"{_names(missing)} did not join within {durations.seconds(coordinator.wait)}")
            )
        return _end_not_ready(coordinator, now - coordinator.started)
    if phase.hint is not None and now >= phase.hint:
        missing = absent_ranks(coordinator)
        order = coordinator.order._replace(why=f"waiting for {_names(missing)}" if missing else "")
        return coordinator._replace(order=order, phase=phase._replace(hint=now + 3 * HINT)), ()
    return coordinator, ()


def _adopt_epoch(coordinator: Coordinator) -> Outcome:
    """All members run the epoch: adopt the state from before this coordinator started."""
    counts = highest_counts(coordinator)
    progressed = any(m.report.progressed for m in coordinator.members.values() if m.report.epoch == coordinator.epoch)
    order = GroupOrder(coordinator.epoch, "run", counts=counts, paused=coordinator.order.paused)
    after = coordinator._replace(phase=Steady(), order=order, counts=counts, progressed=progressed, unheard=None)
    return _with_shared_state(after), (NodeNote(f"all {coordinator.size} members are at epoch {coordinator.epoch}"),)


def _while_steady(coordinator: Coordinator, phase: Steady, now: float, pulses: Mapping[int, Pulse]) -> Outcome:
    n = coordinator.kinds.get
    going = n("running", 0) + n("done", 0) + n("behind", 0) + n("leaving", 0)
    if going < coordinator.size:
        return _begin_draining(coordinator, now, pulses)
    if phase.deadline is not None and not n("behind"):
        coordinator = coordinator._replace(phase=Steady())
    elif phase.deadline is not None and now >= phase.deadline:
        slow = [rank for rank, m in coordinator.members.items() if kind_of(m, coordinator.epoch, False) == "behind"]
        return _end(
            coordinator,
            _hang_limit(f"{_names(slow, coordinator)} did not start within {durations.seconds(coordinator.wait)}"),
        )
    return _with_shared_state(coordinator), ()


def _with_shared_state(coordinator: Coordinator) -> Coordinator:
    still = coordinator.kinds.get("still") == coordinator.size
    if (coordinator.progressed, still) == (coordinator.order.progressed, coordinator.order.still):
        return coordinator
    return coordinator._replace(order=coordinator.order._replace(progressed=coordinator.progressed, still=still))


def _begin_draining(coordinator: Coordinator, now: float, pulses: Mapping[int, Pulse]) -> Outcome:
    who = first(coordinator.members.values(), coordinator.epoch)
    why = _reason(coordinator, who)
    phase = Draining(now, now + _drain_time(coordinator), pulses)
    counts, before = coordinator.counts or highest_counts(coordinator), coordinator.order
    order = GroupOrder(
        coordinator.epoch, "stop", why, node=who and who.report.node, counts=counts, paused=before.paused
    )
    order = order._replace(progressed=coordinator.progressed)
    after, effects = _while_draining(coordinator._replace(phase=phase, order=order), phase, now, pulses)
    return after, (NodeNote(f"epoch {coordinator.epoch} is over: {why}"), *effects)


def _while_draining(coordinator: Coordinator, phase: Draining, now: float, pulses: Mapping[int, Pulse]) -> Outcome:
    n = coordinator.kinds.get
    missing = n("gone", 0) + coordinator.missed * (coordinator.size - len(coordinator.members))
    lost, loss, cure, order = phase.lost, phase.loss, phase.cure, coordinator.order
    if missing and lost is None:
        lost, loss = now, first((m for m in coordinator.members.values() if m.gone is not None), coordinator.epoch)
    if cure is None and not (n("running") or n("behind") or n("fallen")):  # all have answered
        known = (*coordinator.members.values(), loss) if loss else coordinator.members.values()
        who = _new_rank_zero(coordinator) or first(known, coordinator.epoch)
        if who is not None and who.report.state == "ending" and who.report.end and not who.report.end.cut:
            return _end(coordinator, who.report.end._replace(node=who.report.end.node or who.report.node))
        cure = _cure(coordinator, who, phase.pulses or pulses)
        node, rank, step = cure.suspect or (order.node, None, None)
        order = order._replace(cause=cure.cause, why=cure.why, node=node, rank=rank, step=step)
    if cure is not None and n("ready") == coordinator.size:
        return _start_epoch(coordinator, cure, now)
    if missing and lost is not None:
        until = lost + coordinator.wait
    else:
        until = (phase.since if lost is None else max(phase.since, lost)) + _drain_time(coordinator)
    coordinator = coordinator._replace(
        phase=Draining(phase.since, until, phase.pulses or pulses, cure, lost, loss), order=order
    )
    if now < until:
        return coordinator, ()
    if not missing:
        return _end_not_ready(coordinator, now - phase.since)
    ranks = absent_ranks(coordinator)
    be, was = ("is", "was") if len(ranks) == 1 else ("are", "were")
    why = f"{_names(ranks, coordinator)} {be} lost and {was} not back within {durations.seconds(coordinator.wait)}"
    return _end(coordinator, _hang_limit(why, _only_node(coordinator, ranks)))


def _new_rank_zero(coordinator: Coordinator) -> MemberState | None:
    """Rank 0, if it is new since the epoch began: its loss is the cause of what the other members report."""
    member = coordinator.members.get(0)
    return member if coordinator.heard and member is not None and member.report.ran < coordinator.epoch else None


def _drain_time(coordinator: Coordinator) -> float:
    """How long draining may take: long enough for a fence, and for a device to heal."""
    return coordinator.lease + LATE + coordinator.drain + coordinator.heal


def _reason(coordinator: Coordinator, who: MemberState | None) -> str:
    if who is None:
        at_work = ("running", "done")
        odd = next(
            (m for _, m in sorted(coordinator.members.items()) if kind_of(m, coordinator.epoch, False) not in at_work),
            None,
        )
        return f"{odd.name} does not run its command" if odd else "a member is missing"
    if who.report.failure is not None and who.at is not None and who.report.epoch == coordinator.epoch:
        return f"{who.name}: {sentences.short(who.report.failure.why, sentences.REASON)}"
    if who.gone is not None:
        return f"{who.name} is lost: {who.gone.why}"
    if who is _new_rank_zero(coordinator):
        return f"{who.name} was lost, and has come back"
    if who.report.state == "left":
        return f"{who.name} has left"
    return f"{who.name}: the command ended"


def _cure(coordinator: Coordinator, who: MemberState | None, pulses: Mapping[int, Pulse]) -> Cure:
    why = coordinator.order.why if who is None else _reason(coordinator, who)
    if who is None:
        return Cure("peer", why)
    if who.report.failure is None or who.report.epoch != coordinator.epoch:
        return Cure("peer", why, Suspect(who.report.node))
    cause = who.report.failure.cause
    counts = who.report.counts if cause in CAUSES else None
    return Cure(cause, why, root_cause(who, coordinator.members, pulses), counts)


def _start_epoch(coordinator: Coordinator, cure: Cure, now: float) -> Outcome:
    """The barrier is passed, as nothing of an earlier epoch runs anywhere: order the next epoch."""
    epoch = coordinator.epoch + 1
    counts = cure.counts or coordinator.counts or highest_counts(coordinator)
    if coordinator.progressed:
        hang, fault, failure = (int(cure.cause == cause) for cause in CAUSES)
        counts = (hang, fault, failure)
    node, rank, step = cure.suspect or (None, None, None)
    paused = (
        coordinator.order.paused if coordinator.order.paused == float("inf") else None
    )  # a pause with an end runs from another moment on each member
    order = GroupOrder(epoch, "run", cure.why, cure.cause, node, rank, step, counts, paused=paused)
    after = coordinator._replace(
        phase=Steady(now + coordinator.wait), order=order, counts=counts, progressed=False, unheard=None, missed=False
    )._replace(heard=False)
    return after._replace(kinds=count_kinds(after)), (NodeNote(f"all {coordinator.size} members start epoch {epoch}"),)


# --- the end --------------------------------------------------------------------------------------------------------


def _immediate_end(coordinator: Coordinator, report: Report) -> GroupEnd | None:
    """A verdict that does not depend on other members: one about a device or ftrun itself; that of a member that has
    left with one, which must hold for all since the member cannot return; and any verdict with which rank 0 leaves.  A
    member that leaves since it has lost contact with rank 0 counts as lost."""
    member = coordinator.members[report.rank]
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
    if own is not None and not coordinator.kinds.get("running") and not coordinator.kinds.get("fallen"):
        return own
    return _hang_limit(f"{member.name} has left, and without it the group has no rank 0", report.node)._replace(
        asked=True
    )


def _end_not_ready(coordinator: Coordinator, age: float) -> Outcome:
    late = [
        r for r, m in coordinator.members.items() if kind_of(m, coordinator.epoch, r in coordinator.fences) != "ready"
    ]
    why = f"{_names(late, coordinator)} {'was' if len(late) == 1 else 'were'} not ready within {durations.seconds(age)}"
    return _end(coordinator, _hang_limit(why, _only_node(coordinator, late)))


def _hang_limit(why: str, node: str | None = None) -> GroupEnd:
    return GroupEnd(exit_codes.HANG_LIMIT.code, exit_codes.HANG_LIMIT.name, why, node)


def _end(coordinator: Coordinator, end: GroupEnd) -> Outcome:
    order = GroupOrder(coordinator.epoch, "end", end.why, node=end.node, counts=coordinator.counts or NONE, end=end)
    return coordinator._replace(phase=Ended(), order=order), (
        NodeNote(f"all members end with {end.code} ({end.verdict}): {end.why}"),
    )


def _only_node(coordinator: Coordinator, ranks: list[int]) -> str | None:
    member = coordinator.members.get(ranks[0]) if len(ranks) == 1 else None
    return member and member.report.node


def _names(ranks: list[int], coordinator: Coordinator | None = None) -> str:
    """`member 3 (node-c)`, `members 1, 2 and 40 more`."""
    if len(ranks) == 1:
        member = coordinator.members.get(ranks[0]) if coordinator else None
        return member.name if member else f"member {ranks[0]}"
    named = ", ".join(str(r) for r in sorted(ranks)[:NAMED])
    return f"members {named}" + (f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else "")
