"""The coordinator of a group: `decide(fleet, event) -> (fleet, effects)`.

This file owns every transition.  It is level-triggered: what matters is what each member said last, so that a message
that is lost, late or repeated does no harm, and a coordinator that has forgotten everything learns it again.

An epoch is one start of the command on all members.  The start of the next one is ordered only when each member is
`ready` *at the epoch before*: it has said that its command of that epoch, and of any earlier one, is dead and will not
start.  A member that is told `stop` of an epoch that it never ran takes its number over, and says so.

While the cause of a `stop` is None it is open whose trouble came first: who is `ending` waits.  With a cause it is
settled that all start again, also who is `ending`.
"""

from collections.abc import Mapping
from typing import Final

from ftrun.core import durations, exitcode, words
from ftrun.core.culprit import Gone, Member, Suspect, culprit, first
from ftrun.core.group import Counts, End, Order, Pulse, Report
from ftrun.core.members import (
    HINT,
    LATE,
    Cure,
    Draining,
    Effect,
    Effects,
    Event,
    Fleet,
    Gathering,
    Lost,
    Noted,
    Outcome,
    Over,
    Phase,
    Refused,
    Reported,
    Steady,
    Ticked,
    Told,
    absent,
    count,
    fenced,
    gather,
    kind_of,
    most,
    put,
    stranger,
    suspicious,
    taken,
    wary,
)
from ftrun.core.values import CAUSES

__all__ = [
    "Draining", "Effect", "Effects", "Event", "Fleet", "Gathering", "Gone", "Lost", "Noted", "Outcome", "Over", "Phase",
    "Refused", "Reported", "Steady", "Ticked", "Told", "decide", "gather",
]  # fmt: skip

NAMED: Final = 10  # ranks in one line
AT_ONCE: Final = frozenset(v.code for v in (exitcode.USER_FAULT_LIMIT, exitcode.NODE_FAULT, exitcode.INTERNAL))
NONE: Final[Counts] = (0, 0, 0)


def decide(fleet: Fleet, event: Event) -> Outcome:
    after, effects = fleet, Effects()
    if isinstance(event, Reported):
        after, effects = _heard(fleet, event.now, event.report)
    elif isinstance(event, Gone):
        after, effects = _gone(fleet, event)
    elif fleet.deadline is not None and event.now >= fleet.deadline:
        after = _elapsed(fleet, event.now)
    if after is fleet or isinstance(fleet.phase, Over):
        return after, effects
    end = _final(after, event.report) if isinstance(event, Reported) else None
    if end is not None:
        after, more = _end(after, end)
    else:
        after, more = _judge(after, event.now, event.pulses if isinstance(event, Reported) else {})
    told = () if after.order is fleet.order or after.order == fleet.order else (Told(after.order),)
    return after, (*effects, *more, *told)


# --- who says what --------------------------------------------------------------------------------------------------


def _heard(fleet: Fleet, now: float, report: Report) -> Outcome:
    before = fleet.members.get(report.rank)
    if not 0 <= report.rank < fleet.size:
        why = f"member {report.rank} does not belong to a group of {fleet.size}"
        return fleet, (Refused(report.rank, report.life, why),)
    if before is None:
        return taken(wary(fleet, now, report), now, report, None), ()
    if before.report.life != report.life:
        if before.gone is None and before.report.state != "left":
            why = f"member {report.rank} is there already, on {before.report.node}"
            return stranger(fleet, now, report), (Refused(report.rank, report.life, why),)
        return taken(fenced(fleet, now, before, report), now, report, None), _back(fleet, report)
    if report.seq < before.report.seq or before.report.state == "left":
        return fleet, ()
    if report.seq == before.report.seq and before.gone is None:
        return fleet, ()  # what almost every message is
    return taken(fleet, now, report, before), _back(fleet, report) if before.gone else ()


def _gone(fleet: Fleet, event: Gone) -> Outcome:
    before = fleet.members.get(event.rank)
    if before is None or before.report.life != event.life or before.gone is not None or before.report.state == "left":
        return fleet, ()
    after = put(fleet, before._replace(gone=event))
    if isinstance(fleet.phase, Over) or after.kinds["gone"] > NAMED:
        return after, ()
    return after, (Noted(f"{before.name} is lost: {event.why}"),)


def _back(fleet: Fleet, report: Report) -> Effects:
    return () if isinstance(fleet.phase, Over) else (Noted(f"member {report.rank} ({report.node}) is back"),)


def _elapsed(fleet: Fleet, now: float) -> Fleet:
    """A copy, so that it is judged again."""
    after = fleet._replace(fences={rank: until for rank, until in fleet.fences.items() if until > now})
    if after.unheard is not None and now >= after.unheard:
        after = after._replace(unheard=None, missed=True)
    return after._replace(kinds=count(after))


# --- what follows ---------------------------------------------------------------------------------------------------


def _judge(fleet: Fleet, now: float, pulses: Mapping[int, Pulse]) -> Outcome:
    if fleet.kinds.get("done") == fleet.size:
        return _end(fleet, End(0, exitcode.SUCCEEDED, "all members have ended well"))
    match fleet.phase:
        case Gathering():
            return _gathering(fleet, fleet.phase, now, pulses)
        case Steady():
            return _steady(fleet, fleet.phase, now, pulses)
        case Draining() | Lost():
            return _draining(fleet, fleet.phase, now, pulses)
    return fleet, ()


def _gathering(fleet: Fleet, phase: Gathering, now: float, pulses: Mapping[int, Pulse]) -> Outcome:
    n = fleet.kinds.get
    here = len(fleet.members) == fleet.size and not n("gone")
    at_work = n("running", 0) + n("done", 0)
    bad = n("fallen", 0) + n("ending", 0)
    if fleet.epoch:
        bad += n("busy", 0) + n("gone", 0) + fleet.missed
        if bad or (at_work and n("ready", 0) + n("behind", 0)) or (here and at_work + n("leaving", 0) < fleet.size):
            return _drain(suspicious(fleet, now), now, pulses)
        if here:
            return _learned(fleet)
    elif bad:
        return _drain(fleet, now, pulses)
    elif n("ready") == fleet.size:
        return _go(fleet, Cure("first", ""), now)
    if phase.deadline is not None and now >= phase.deadline:
        missing = absent(fleet)
        if missing:
            return _end(fleet, _limit(f"{_ranks(missing)} did not join within {durations.seconds(fleet.wait)}"))
        return _late(fleet, now - fleet.started)
    if phase.hint is not None and now >= phase.hint:
        missing = absent(fleet)
        order = fleet.order._replace(why=f"waiting for {_ranks(missing)}" if missing else "")
        return fleet._replace(order=order, phase=phase._replace(hint=now + 3 * HINT)), ()
    return fleet, ()


def _learned(fleet: Fleet) -> Outcome:
    """All are at work: so it is, and was before this coordinator."""
    counts = most(fleet)
    progressed = any(m.report.progressed for m in fleet.members.values() if m.report.epoch == fleet.epoch)
    order = Order(fleet.epoch, "run", counts=counts, paused=fleet.order.paused)
    after = fleet._replace(phase=Steady(), order=order, counts=counts, progressed=progressed, unheard=None)
    return _shown(after), (Noted(f"all {fleet.size} are at epoch {fleet.epoch}"),)


def _steady(fleet: Fleet, phase: Steady, now: float, pulses: Mapping[int, Pulse]) -> Outcome:
    n = fleet.kinds.get
    going = n("running", 0) + n("done", 0) + n("behind", 0) + n("leaving", 0)
    if going < fleet.size:
        return _drain(fleet, now, pulses)
    if phase.deadline is not None and not n("behind"):
        fleet = fleet._replace(phase=Steady())
    elif phase.deadline is not None and now >= phase.deadline:
        slow = [rank for rank, m in fleet.members.items() if kind_of(m, fleet.epoch, False) == "behind"]
        return _end(fleet, _limit(f"{_ranks(slow, fleet)} did not start within {durations.seconds(fleet.wait)}"))
    return _shown(fleet), ()


def _shown(fleet: Fleet) -> Fleet:
    still = fleet.kinds.get("still") == fleet.size
    if (fleet.progressed, still) == (fleet.order.progressed, fleet.order.still):
        return fleet
    return fleet._replace(order=fleet.order._replace(progressed=fleet.progressed, still=still))


def _drain(fleet: Fleet, now: float, pulses: Mapping[int, Pulse]) -> Outcome:
    who = first(fleet.members.values(), fleet.epoch)
    why = _why(fleet, who)
    phase = Draining(now, now + _patience(fleet), pulses)
    order = Order(
        fleet.epoch, "stop", why, None, who and who.report.node, counts=fleet.counts or most(fleet),
        progressed=fleet.progressed, paused=fleet.order.paused,
    )  # fmt: skip
    after, effects = _draining(fleet._replace(phase=phase, order=order), phase, now, pulses)
    return after, (Noted(f"epoch {fleet.epoch} is over: {why}"), *effects)


def _draining(fleet: Fleet, phase: Draining | Lost, now: float, pulses: Mapping[int, Pulse]) -> Outcome:
    n = fleet.kinds.get
    missing = n("gone", 0) + fleet.missed * (fleet.size - len(fleet.members))
    lost, loss, cure, order = phase.lost, phase.loss, phase.cure, fleet.order
    if missing and lost is None:
        lost, loss = now, first((m for m in fleet.members.values() if m.gone is not None), fleet.epoch)
    if cure is None and not (n("running") or n("behind") or n("fallen")):  # all have answered
        known = (*fleet.members.values(), loss) if loss else fleet.members.values()
        who = _new_here(fleet) or first(known, fleet.epoch)
        if who is not None and who.report.state == "ending" and who.report.end and not who.report.end.cut:
            return _end(fleet, who.report.end._replace(node=who.report.end.node or who.report.node))
        cure = _cure(fleet, who, phase.pulses or pulses)
        node, rank, step = cure.suspect or (order.node, None, None)
        order = order._replace(cause=cure.cause, why=cure.why, node=node, rank=rank, step=step)
    if cure is not None and n("ready") == fleet.size:
        return _go(fleet, cure, now)
    if missing and lost is not None:
        until = lost + fleet.wait
        after: Draining | Lost = Lost(phase.since, until, phase.pulses or pulses, cure, lost, loss)
    else:
        until = (phase.since if lost is None else max(phase.since, lost)) + _patience(fleet)
        after = Draining(phase.since, until, phase.pulses or pulses, cure, lost, loss)
    fleet = fleet._replace(phase=after, order=order)
    if now < after.deadline:
        return fleet, ()
    if not missing:
        return _late(fleet, now - phase.since)
    ranks = absent(fleet)
    be, was = ("is", "was") if len(ranks) == 1 else ("are", "were")
    why = f"{_ranks(ranks, fleet)} {be} lost and {was} not back within {durations.seconds(fleet.wait)}"
    return _end(fleet, _limit(why, _node(fleet, ranks)))


def _new_here(fleet: Fleet) -> Member | None:
    """Rank 0, where it is new since the epoch began: that it was lost is what the others met, and is no trouble of
    theirs."""
    member = fleet.members.get(0)
    return member if fleet.heard and member is not None and member.report.ran < fleet.epoch else None


def _patience(fleet: Fleet) -> float:
    """Long enough for what a fence waits for, and for a device to heal."""
    return fleet.lease + LATE + fleet.drain + fleet.heal


def _why(fleet: Fleet, who: Member | None) -> str:
    if who is None:
        at_work = ("running", "done")
        odd = next((m for _, m in sorted(fleet.members.items()) if kind_of(m, fleet.epoch, False) not in at_work), None)
        return f"{odd.name} does not run the command of it" if odd else "a member is missing"
    if who.report.trouble is not None and who.at is not None and who.report.epoch == fleet.epoch:
        return f"{who.name}: {words.short(who.report.trouble.why, words.REASON)}"
    if who.gone is not None:
        return f"{who.name} is lost: {who.gone.why}"
    if who is _new_here(fleet):
        return f"{who.name} was lost, and has come back"
    if who.report.state == "left":
        return f"{who.name} has left"
    return f"{who.name}: the command ended"


def _cure(fleet: Fleet, who: Member | None, pulses: Mapping[int, Pulse]) -> Cure:
    why = fleet.order.why if who is None else _why(fleet, who)
    if who is None:
        return Cure("peer", why)
    if who.report.trouble is None or who.report.epoch != fleet.epoch:
        return Cure("peer", why, Suspect(who.report.node))
    cause = who.report.trouble.cause
    counts = who.report.counts if cause in CAUSES else None
    return Cure(cause, why, culprit(who, fleet.members, pulses), counts)


def _go(fleet: Fleet, cure: Cure, now: float) -> Outcome:
    """The barrier: nothing of an earlier epoch runs anywhere."""
    epoch = fleet.epoch + 1
    counts = cure.counts or fleet.counts or most(fleet)
    if fleet.progressed:
        hang, fault, failure = (int(cure.cause == cause) for cause in CAUSES)
        counts = (hang, fault, failure)
    node, rank, step = cure.suspect or (None, None, None)
    paused = fleet.order.paused if fleet.order.paused == float("inf") else None  # the others count from another moment
    order = Order(epoch, "run", cure.why, cure.cause, node, rank, step, counts, paused=paused)
    after = fleet._replace(
        phase=Steady(now + fleet.wait), order=order, counts=counts, progressed=False, unheard=None, missed=False
    )._replace(heard=False)
    return after._replace(kinds=count(after)), (Noted(f"all {fleet.size} start epoch {epoch}"),)


# --- the end --------------------------------------------------------------------------------------------------------


def _final(fleet: Fleet, report: Report) -> End | None:
    """A verdict that needs no others: of a device or of ftrun itself; of one that has left with one, since it had to
    be everybody's, or could not be; and whatever rank 0 leaves with.  Who leaves because it does not hear rank 0 is
    lost, and that is all."""
    member = fleet.members[report.rank]
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
    if own is not None and not fleet.kinds.get("running") and not fleet.kinds.get("fallen"):
        return own
    return _limit(f"{member.name} has left, and without it the group has no rank 0", report.node)._replace(asked=True)


def _late(fleet: Fleet, age: float) -> Outcome:
    late = [r for r, m in fleet.members.items() if kind_of(m, fleet.epoch, r in fleet.fences) != "ready"]
    why = f"{_ranks(late, fleet)} {'was' if len(late) == 1 else 'were'} not ready within {durations.seconds(age)}"
    return _end(fleet, _limit(why, _node(fleet, late)))


def _limit(why: str, node: str | None = None) -> End:
    return End(exitcode.HANG_LIMIT.code, exitcode.HANG_LIMIT.name, why, node)


def _end(fleet: Fleet, end: End) -> Outcome:
    order = Order(fleet.epoch, "end", end.why, node=end.node, counts=fleet.counts or NONE, end=end)
    return fleet._replace(phase=Over(), order=order), (Noted(f"all end with {end.code} ({end.verdict}): {end.why}"),)


def _node(fleet: Fleet, ranks: list[int]) -> str | None:
    member = fleet.members.get(ranks[0]) if len(ranks) == 1 else None
    return member and member.report.node


def _ranks(ranks: list[int], fleet: Fleet | None = None) -> str:
    """`member 3 (node-c)`, `members 1, 2 and 40 more`."""
    if len(ranks) == 1:
        member = fleet.members.get(ranks[0]) if fleet else None
        return member.name if member else f"member {ranks[0]}"
    named = ", ".join(str(r) for r in sorted(ranks)[:NAMED])
    return f"members {named}" + (f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else "")
