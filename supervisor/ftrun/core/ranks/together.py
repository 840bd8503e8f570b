"""The rounds of one member's ranks where the ranks of a whole group recover together, pure.

Faults are noticed here, and ranks are fenced, ended and started here, as on a single node (core/ranks/rounds).  What
the members decide together comes as the `GroupRound` of an order: that all leave a round, and when all begin the next
one.  That happens only when every rank of every member waits, so no two rounds are ever at work at once."""

from typing import Final

from ftrun.core.ranks import rounds as alone
from ftrun.core.ranks.rounds import RoundOutcome
from ftrun.core.ranks.shared import GroupRound, NodeRounds, Progress, Rung
from ftrun.core.ranks.table import (
    Act,
    GroupOrdered,
    Happened,
    RankMember,
    RecordRecovered,
    RecordRecovering,
    Restore,
    Rounds,
    Rules,
)

ORDER: Final = ("work", "leave", "close")


def step(rounds: Rounds, happened: Happened, now: float, rules: Rules) -> RoundOutcome:
    if not isinstance(happened, GroupOrdered):
        return alone.step(rounds, happened, now, rules)
    order, before = happened.round, rounds.adopted
    if not rounds.members or order == before or (before is not None and _place(order) < _place(before)):
        return rounds, ()
    if any(member.state == "new" for member in rounds.members):
        return rounds, ()  # it was not made with a report of these processes
    acts: tuple[Act, ...] = ()
    if rounds.stage == "closed":
        rounds, acts = alone.open_rounds(rounds, now, rules)
    match order.what:
        case "work":
            rounds, more = _work(rounds, order, now)
        case "leave":
            rounds, more = _leave(rounds, order, now, rules)
        case "close":
            rounds, more = rounds._replace(adopted=order), ()
            if rounds.lacks_culprit:
                rounds, more = alone.give_up_without_culprit(rounds, order.why)
            elif rounds.stage == "meeting" and rounds.own:
                rounds, more = alone.give_up(rounds, order.why)
    return rounds, (*acts, *more)


def _place(order: GroupRound) -> tuple[int, int]:
    return order.number, ORDER.index(order.what)


def _work(rounds: Rounds, order: GroupRound, now: float) -> RoundOutcome:
    if order.number == rounds.number:
        begun = rounds.proving
        if begun is not None and begun.number == order.number and begun.port != order.port:
            return rounds, ()  # another round of this number: the report says which one works here, and all leave it
        rounds = rounds._replace(adopted=order)
        if rounds.stage != "proving" or order.rung is not None:
            return rounds, ()
        assert rounds.rung is not None
        before = rounds.proving or order
        proved = RecordRecovered(rounds.rung, order.number, before.ranks, rounds.restored)
        return rounds._replace(stage="working", rung=None, replacing=frozenset(), first_cause=""), (proved,)
    if order.number != rounds.number + 1 or rounds.stage != "meeting" or not _all_wait(rounds):
        return rounds, ()
    reason, master = order.rung or "retry", (order.address, order.port)
    known, plan = _recorded(rounds), _restores(rounds, order)
    rounds, acts = alone.begin_with_loans(rounds, plan, order.number, reason, master)
    if order.rung is not None and known != (order.rung, order.ranks):  # a fault of a member whose report came late
        acts = (RecordRecovering(order.rung, order.number, order.ranks, order.why), *acts)
    rounds = rounds._replace(stage="proving", began=now, restored=order.step)
    return rounds._replace(rung=reason, adopted=order, proving=order, own=False), acts


def _leave(rounds: Rounds, order: GroupRound, now: float, rules: Rules) -> RoundOutcome:
    if order.number < rounds.number or any(member.state == "exited" for member in rounds.members):
        return rounds, ()  # without this member, which its report says
    if order.number > rounds.number:
        if order.number != rounds.number + 1 or rounds.stage != "meeting" or not _all_wait(rounds):
            return rounds, ()
        rounds = rounds._replace(number=order.number)  # that round has ended before it reached this member
    known, rounds = _recorded(rounds), rounds._replace(adopted=order)
    rung = order.rung or "retry"
    written = RecordRecovering(rung, order.number + 1, order.ranks, order.why)
    if rounds.stage != "meeting":
        rounds = rounds._replace(own=False, cause="failure", status=None)
        return alone.end_round(rounds, frozenset(), written, now, rules)
    rounds = rounds._replace(rung=rung)
    return rounds, (() if known == (order.rung, order.ranks) else (written,))


def _recorded(rounds: Rounds) -> tuple[Rung | None, tuple[int, ...]]:
    """The rung and the ranks in the last record of the recovery that is under way."""
    last = rounds.adopted
    if last is not None and _place(last) == (rounds.number, ORDER.index("leave")):
        return last.rung, last.ranks
    return rounds.rung, alone.numbers(rounds, rounds.replacing)


def _all_wait(rounds: Rounds) -> bool:
    return all(member.state == "waiting" for member in rounds.members)


def _restores(rounds: Rounds, order: GroupRound) -> dict[int, Restore]:
    """For each local rank the snapshot of the round's step: its own snapshot, or one of another rank of this node."""
    if order.step is None:
        return {}
    plan = {one.local_rank: alone.source(one, rounds.members, order.step) for one in rounds.members}
    return {local_rank: found for local_rank, found in plan.items() if found is not None}


def joined(members: tuple[RankMember, ...], order: GroupRound, now: float, rules: Rules) -> Rounds:
    """The ranks of an ftrun that is new: all of them start for the next round."""
    due = now + max(rules.timeout, alone.SLOWER * order.slowest)
    members = tuple(member._replace(state="starting", due=due) for member in members)
    why, number = order.why, order.number
    return Rounds(members, "meeting", number, order.rung, why=why, since=now, adopted=order, shared=True)


# --- what the other members know of them ------------------------------------------------------------------------------


def node_rounds(rounds: Rounds, rules: Rules) -> NodeRounds:
    """The state of the ranks here, for the report of this member."""
    known = NodeRounds(rungs=tuple(sorted(rules.rungs)))
    if not rounds.members:
        return known._replace(number=rounds.number, adopted=rounds.adopted)
    limit = 2 * rules.timeout + max(rules.timeout, alone.SLOWER * rounds.slowest_hello)
    known = known._replace(
        progress=_progress(rounds),
        number=rounds.number,
        adopted=rounds.adopted,
        ended=any(member.state == "exited" for member in rounds.members),
        limit=limit,
        slowest=rounds.slowest_hello,
        lacks_culprit=rounds.lacks_culprit,
    )
    if rounds.stage == "meeting" and rounds.own:
        replaced = alone.numbers(rounds, rounds.replacing)
        # The rung of the fault here, and never the rung that was ordered: the next order follows from this report.
        known = known._replace(rung="rank" if replaced else "retry", ranks=replaced, why=rounds.why)
    if known.progress == "waiting":
        known = known._replace(steps=_steps(rounds))
    return known


def _progress(rounds: Rounds) -> Progress:
    match rounds.stage:
        case "closed":
            return "closed" if any(member.state == "new" for member in rounds.members) else "ready"
        case "meeting":
            return "waiting" if _all_wait(rounds) else "leaving"
        case "proving" if alone.all_moved(rounds):
            return "proved"
    return "working"


def _steps(rounds: Rounds) -> tuple[int, ...]:
    """The steps of which every rank of this node can have a snapshot."""
    members = rounds.members
    held = sorted({one.step for member in members for one in member.held}, reverse=True)
    return tuple(step for step in held if all(alone.source(member, members, step) for member in members))
