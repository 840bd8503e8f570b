"""Rounds of recovery: `step(rounds, happened, now, rules) -> (rounds, acts)`, pure.

A round is one try of all ranks within an attempt.  It ends for all of them when one dies, asks for a retry, or is named
by a verdict.  Each is asked to leave it; those that cannot are ended and started again.  The next round begins only
when every rank has left the previous round, or has a new process: so no two rounds are ever at work at once.  Messages
that are late, lost, doubled or out of order change at most which rung is taken.

The finest rung comes first; a fault before the next round is proved takes the rung below.  `GiveUp` is the last act of
an attempt: what follows is the restart of the tree, as without recovery.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ftrun.core.ranks import table
from ftrun.core.ranks.shared import Rung, newness
from ftrun.core.ranks.table import Act, HeldSnapshot, RankMember, Restore, Rounds, Rules

SETTLE: Final = 0.1  # s; the kernel closes the connections of a dying process before it reports its death
SETTLE_LONG: Final = 5.0  # s; the same where a collective that fails without a death would restart all ranks
SETTLE_SHARED: Final = 1.0  # s; until the death of a rank on another node is known here
SETTLE_LOST: Final = 20.0  # s; until the loss of another container is known
SLOWER: Final = 3.0  # a process that starts beside a waiting job may need so many times the first start's time
ELSEWHERE: Final = 45.0  # s; until another node has the evidence of a hang, unless all have answered before
RoundOutcome = tuple[Rounds, tuple[Act, ...]]


def step(rounds: Rounds, happened: table.Happened, now: float, rules: Rules) -> RoundOutcome:
    if isinstance(happened, table.Blamed):
        if rounds.stage in ("working", "proving", "settling"):
            rounds = rounds._replace(cause=happened.cause, status=None)
            return _begin(rounds, happened.local_ranks, happened.suspect, happened.why, now, rules)
        if rounds.stage == "meeting" and (more := happened.local_ranks - rounds.replacing):
            return _replace_more(rounds, more, happened.why, now, rules)
        return rounds, ()
    if isinstance(happened, table.HangWithoutCulprit):
        if rounds.stage not in ("working", "proving"):
            return rounds, ()
        rounds = rounds._replace(cause=happened.cause, status=None, lacks_culprit=True, stage="settling", since=now)
        return rounds._replace(why=happened.why, settles=now + ELSEWHERE), ()
    if isinstance(happened, table.GroupOrdered):
        return rounds, ()  # of a group (together.py)
    if isinstance(happened, table.Waited):
        return _waited(rounds, happened, now, rules)
    member = rounds.member(happened.local_rank)
    if member is None:
        return rounds, ()
    match happened:
        case table.SaidHello():
            return _said_hello(rounds, member, happened, now, rules)
        case table.AskedRetry():
            return _asked_retry(rounds, member, happened, now, rules)
        case table.LeftRound():
            return _left_round(rounds, member, happened, now, rules)
        case table.SnapshotRestored(local_rank, number):
            return snapshot_restored(rounds, local_rank) if number == rounds.number else (rounds, ())
        case table.FunctionFinished(_, number):
            return _finished(rounds, member, number)
        case table.RankProcessEnded():
            return _ended(rounds, member, happened, now, rules)
        case table.RankTreeCleared():
            return _cleared(rounds, member, now, rules)


# --- what a rank reports ----------------------------------------------------------------------------------------------


def _said_hello(rounds: Rounds, member: RankMember, event: table.SaidHello, now: float, rules: Rules) -> RoundOutcome:
    member = _holding(member, event.held)
    if member.state == "starting":
        return _meet(rounds.with_member(member._replace(state="waiting", due=None)), now)
    if member.state != "new":
        return rounds, ()
    rounds = rounds.with_member(member._replace(state="working"))
    rounds = rounds._replace(slowest_hello=max(rounds.slowest_hello, event.after))
    if rounds.shared or any(member.state == "new" for member in rounds.members):
        return rounds, ()
    return open_rounds(rounds, now, rules)


def open_rounds(rounds: Rounds, now: float, rules: Rules) -> RoundOutcome:
    """All ranks can recover.  What one of them has asked for already begins."""
    rounds = rounds._replace(stage="working", began=now)
    asker = next((member.local_rank for member in rounds.members if member.state in ("leaving", "waiting")), None)
    return (rounds, ()) if asker is None else _begin(rounds, rounds.replacing, asker, rounds.why, now, rules)


def _asked_retry(rounds: Rounds, member: RankMember, event: table.AskedRetry, now: float, rules: Rules) -> RoundOutcome:
    if event.round != rounds.number or member.state != "working" or rounds.stage == "meeting":
        return rounds, ()
    rounds = rounds.with_member(member._replace(state="leaving"))
    rounds = rounds._replace(cause="failure", status=None)
    if rounds.stage == "closed":  # the retry begins as soon as the last rank has said hello
        return rounds._replace(why=event.why), ()
    if not event.collective:
        return _begin(rounds, frozenset(), member.local_rank, event.why, now, rules)
    return _settle(rounds, event.why, now, rules), ()


def _settle(rounds: Rounds, why: str, now: float, rules: Rules) -> Rounds:
    if rounds.stage == "settling":
        return rounds
    last = rounds.rung is not None or "retry" not in rules.rungs
    if rounds.shared:
        settle = SETTLE_LOST if last else SETTLE_SHARED
    else:
        settle = SETTLE_LONG if rounds.rung == "retry" else SETTLE
    return rounds._replace(stage="settling", why=why, since=now, settles=now + settle)


def _left_round(rounds: Rounds, member: RankMember, event: table.LeftRound, now: float, rules: Rules) -> RoundOutcome:
    if event.round != rounds.number or member.state not in ("working", "leaving", "finished"):
        return rounds, ()
    rounds = rounds.with_member(_holding(member._replace(state="waiting", due=None), event.held))
    one = frozenset({member.local_rank})
    why = f"the process of rank {member.rank} cannot go on: {event.problem}"
    if rounds.stage == "closed":  # as with an early retry
        replaced = rounds.replacing | one if event.problem is not None else rounds.replacing
        left = rounds.why or f"rank {member.rank} has left the round"
        return rounds._replace(replacing=replaced, why=left if event.problem is None else why), ()
    if event.problem is not None:
        if rounds.stage == "meeting":
            return _replace_more(rounds, one, why, now, rules)
        return _begin(rounds, one, None, why, now, rules)
    if rounds.stage == "meeting":
        return _meet(rounds, now)
    if rounds.stage == "settling":
        return rounds, ()
    return _begin(rounds, frozenset(), member.local_rank, f"rank {member.rank} has left the round", now, rules)


def _finished(rounds: Rounds, member: RankMember, number: int) -> RoundOutcome:
    if number != rounds.number or rounds.stage == "meeting" or member.state != "working":
        return rounds, ()  # one that was asked to leave its round comes back, also after its function returned
    rounds, released = snapshot_restored(rounds.with_member(member._replace(state="finished")), member.local_rank)
    rounds, proved = _prove(rounds)
    return rounds, (*released, *proved)


def _holding(member: RankMember, held: tuple[HeldSnapshot, ...]) -> RankMember:
    """The member with what it holds now.  A rank keeps its shard, also where a new process finds no snapshot."""
    shard = next((one.shard for one in held if one.shard), member.shard)
    return member._replace(held=held, shard=shard)


# --- what PID 1 sees --------------------------------------------------------------------------------------------------


def _ended(rounds: Rounds, member: RankMember, event: table.RankProcessEnded, now: float, rules: Rules) -> RoundOutcome:
    if member.state in ("ending", "exited"):
        return rounds, ()
    if event.status == 0:
        started = member.state == "starting"
        rounds = rounds.with_member(member._replace(state="exited", due=None))
        if rounds.is_under_way and not rounds.lacks_culprit:
            return give_up(rounds, f"{'the new process of ' if started else ''}rank {member.rank} has ended with 0")
        return _prove(rounds) if rounds.is_open else (rounds, ())
    if not rounds.is_open:
        return rounds, ()
    if all(one.state in ("finished", "exited") for one in rounds.members):
        return give_up(rounds, "all ranks had finished")
    rounds = rounds._replace(cause="failure", status=event.status)
    if rounds.stage != "meeting":
        return _begin(rounds, frozenset({member.local_rank}), None, event.why, now, rules)
    if member.state in ("starting", "waiting"):
        return give_up(rounds, f"{event.why}, while the ranks recovered")
    return _replace_more(rounds, frozenset({member.local_rank}), event.why, now, rules)


def _cleared(rounds: Rounds, member: RankMember, now: float, rules: Rules) -> RoundOutcome:
    if member.state != "ending":
        return rounds, ()
    due = now + max(rules.timeout, SLOWER * rounds.slowest_hello)
    rounds = rounds.with_member(member._replace(state="starting", due=due, held=()))
    return rounds, (table.StartRank(member.local_rank, rounds.number + 1),)


def _waited(rounds: Rounds, event: table.Waited, now: float, rules: Rules) -> RoundOutcome:
    if rounds.stage == "proving":
        return _prove(rounds._replace(moved=rounds.moved | event.moved))
    if rounds.deadline is None or now < rounds.deadline:
        return rounds, ()
    if rounds.stage == "settling" and rounds.lacks_culprit:
        if _goes_on(rounds, event.moved):
            stage: table.RoundStage = "working" if rounds.rung is None else "proving"
            return rounds._replace(stage=stage, settles=None, lacks_culprit=False), ()
        return give_up_without_culprit(rounds, "the evidence names no rank as the cause")
    if rounds.stage == "settling":
        return _begin(rounds, frozenset(), None, rounds.why, now, rules)
    late = [member for member in rounds.members if member.due is not None and now >= member.due]
    for member in late:
        if member.state == "ending":
            return give_up(rounds, f"the processes of rank {member.rank} could not be ended in time")
        if member.state == "starting":
            return give_up(rounds, f"the new process of rank {member.rank} did not report in time")
    names = ", ".join(f"rank {member.rank}" for member in late)
    why = f"{rounds.why}; {names} did not leave the step in time"
    return _replace_more(rounds, frozenset(member.local_rank for member in late), why, now, rules)


# --- from one round to the next ---------------------------------------------------------------------------------------


def _begin(
    rounds: Rounds, replaced: frozenset[int], asker: int | None, why: str, now: float, rules: Rules
) -> RoundOutcome:
    """End the round at work.  `replaced`: their processes are replaced; `asker`: the rank that asked for a retry, which
    the rung below replaces."""
    since = rounds.since if rounds.stage == "settling" else now
    first_cause = rounds.cause if rounds.rung is None else rounds.first_cause
    rounds = rounds._replace(why=why, since=since, settles=None, first_cause=first_cause)
    if rounds.rung == "rank":
        return give_up(rounds, "this was the round that had to prove the recovery")
    if not replaced and (rounds.rung == "retry" or "retry" not in rules.rungs):
        if asker is None:
            return give_up(rounds, "a retry did not help" if rounds.rung else "no retry is permitted (--recover)")
        replaced = frozenset({asker})
    if (refused := _refusal(rounds, replaced, rules)) is not None:
        return give_up(rounds, refused)
    rung: Rung = "rank" if replaced else "retry"
    written = table.RecordRecovering(rung, rounds.number + 1, numbers(rounds, replaced), why)
    return end_round(rounds._replace(own=True), replaced, written, now, rules)


def end_round(
    rounds: Rounds, replaced: frozenset[int], written: table.RecordRecovering, now: float, rules: Rules
) -> RoundOutcome:
    """All ranks leave the round, but for those of this node whose processes are replaced."""
    since, why = rounds.since if rounds.is_under_way else now, written.why
    rounds = rounds._replace(stage="meeting", rung=written.rung, replacing=replaced, moved=frozenset(), restored=None)
    rounds = rounds._replace(why=why, since=since, settles=None, lacks_culprit=False)
    acts: list[Act] = [written]
    for member in rounds.members:
        if member.local_rank not in replaced and member.state != "waiting":
            rounds = rounds.with_member(member._replace(state="leaving", due=now + rules.timeout))
            acts.append(table.FenceRank(member.local_rank, rounds.number, why))
    rounds, ends = _end(rounds, replaced, now, rules)
    rounds, more = _meet(rounds, now)
    return rounds, (*acts, *ends, *more)


def _replace_more(rounds: Rounds, more: frozenset[int], why: str, now: float, rules: Rules) -> RoundOutcome:
    """Further ranks cannot come to the next round: they are replaced as well."""
    if (refused := _refusal(rounds, more, rules)) is not None:
        return give_up(rounds, refused)
    rounds = rounds._replace(rung="rank", replacing=rounds.replacing | more, why=why, own=True)
    written = table.RecordRecovering("rank", rounds.number + 1, numbers(rounds, rounds.replacing), why)
    rounds, ends = _end(rounds, more, now, rules)
    return rounds, (written, *ends)


def _refusal(rounds: Rounds, replaced: frozenset[int], rules: Rules) -> str | None:
    """Why these ranks cannot be replaced, or (none) no other round is possible."""
    for member in rounds.members:
        if member.state == "exited":
            return f"rank {member.rank} has ended already"
        if member.local_rank in replaced:
            if "rank" not in rules.rungs:
                return "no rank may be replaced (--recover)"
            if rules.max_replaced is not None and _in_a_row(member, rules) > rules.max_replaced:
                return f"rank {member.rank} was replaced {rules.max_replaced} times in a row without progress"
    return None


def _in_a_row(member: RankMember, rules: Rules) -> int:
    """How often the process is replaced in a row without progress, with this time."""
    return member.in_a_row + 1 if member.replaced and member.mark == rules.progress else 1


def _end(rounds: Rounds, replaced: frozenset[int], now: float, rules: Rules) -> RoundOutcome:
    acts: list[Act] = []
    for member in rounds.members:
        if member.local_rank in replaced:
            row = _in_a_row(member, rules)
            member = member._replace(replaced=member.replaced + 1, in_a_row=row, mark=rules.progress)
            rounds = rounds.with_member(member._replace(state="ending", due=now + rules.timeout))
            acts.append(table.EndRank(member.local_rank))
    return rounds, tuple(acts)


def _meet(rounds: Rounds, now: float) -> RoundOutcome:
    """Begin the next round once all ranks wait for it.  In a group it begins on all nodes together (together.py)."""
    if rounds.shared or rounds.stage != "meeting" or any(member.state != "waiting" for member in rounds.members):
        return rounds, ()
    assert rounds.rung is not None
    plan, reason, number = restores(rounds.members), rounds.rung, rounds.number + 1
    step = next((one.step for one in plan.values()), None)
    rounds, acts = begin_with_loans(rounds, plan, number, reason)
    return rounds._replace(stage="proving", began=now, restored=step), acts


def _prove(rounds: Rounds) -> RoundOutcome:
    """Once each rank has moved, or has finished: the recovery has succeeded."""
    if rounds.shared or rounds.stage != "proving" or not all_moved(rounds):
        return rounds, ()
    assert rounds.rung is not None
    proved = table.RecordRecovered(rounds.rung, rounds.number, numbers(rounds, rounds.replacing), rounds.restored)
    return rounds._replace(stage="working", rung=None, replacing=frozenset(), first_cause=""), (proved,)


def _goes_on(rounds: Rounds, moved: frozenset[int]) -> bool:
    """Whether each rank has moved since a hang was declared, or is done: it was none, as where another node was
    suspended."""
    return all(
        member.state in ("finished", "exited") or (member.state == "working" and member.local_rank in moved)
        for member in rounds.members
    )


def all_moved(rounds: Rounds) -> bool:
    """Whether each rank has moved in its round, or has finished."""
    return all(member.local_rank in rounds.moved for member in rounds.members if member.state == "working")


def give_up(rounds: Rounds, why: str) -> RoundOutcome:
    """No message changes anything in this attempt any more."""
    return rounds._replace(members=(), stage="closed", rung=None, settles=None, lacks_culprit=False), (
        table.GiveUp(why),
    )


def give_up_without_culprit(rounds: Rounds, why: str) -> RoundOutcome:
    """No member of the group can name the cause of the hang for which the ranks settle."""
    first_cause = rounds.cause if rounds.rung is None else rounds.first_cause
    return give_up(rounds._replace(first_cause=first_cause), why)


def numbers(rounds: Rounds, local_ranks: frozenset[int]) -> tuple[int, ...]:
    return tuple(member.rank for member in rounds.members if member.local_rank in local_ranks)


def restores(members: Sequence[RankMember]) -> dict[int, Restore]:
    """For each local rank the snapshot of the newest step that all of them can have: its own, or one of the same shard.
    Empty: there is no such step, so the state comes from the checkpoint."""
    for number in sorted({one.step for member in members for one in member.held}, key=newness, reverse=True):
        plan = {member.local_rank: source(member, members, number) for member in members}
        found = {local_rank: source for local_rank, source in plan.items() if source is not None}
        if len(found) == len(plan):
            return found
    return {}


def source(member: RankMember, members: Iterable[RankMember], number: int) -> Restore | None:
    own = next((one for one in member.held if one.step == number), None)
    if own is not None:
        return Restore(number, member.local_rank, own.shard)
    same = (m.local_rank for m in members if member.shard and HeldSnapshot(number, member.shard) in m.held)
    other = next(same, None)
    return None if other is None else Restore(number, other, member.shard)


# --- snapshots that ranks lend to others of the same shard at the beginning of a round --------------------------------


def begin_with_loans(
    rounds: Rounds, plan: Mapping[int, Restore], number: int, reason: Rung, master: tuple[str, int] | None = None
) -> tuple[Rounds, tuple[Act, ...]]:
    """All ranks begin this round, each with the snapshot that `plan` has for its local rank.

    The rank that lends goes on with its steps, and keeps new snapshots, while a slower one still reads.  So the
    snapshot that was lent is not overwritten before every rank that borrows one has said that it has loaded it."""
    borrowers = frozenset(local_rank for local_rank, found in plan.items() if found.source != local_rank)
    lenders = frozenset(plan[local_rank].source for local_rank in borrowers)
    acts = [
        table.BeginRound(local_rank, number, plan.get(local_rank), reason, master, local_rank in lenders)
        for local_rank, *_ in rounds.members
    ]
    members = tuple(member._replace(state="working") for member in rounds.members)
    return rounds._replace(members=members, number=number, borrowers=borrowers, lenders=lenders), tuple(acts)


def snapshot_restored(rounds: Rounds, local_rank: int) -> tuple[Rounds, tuple[Act, ...]]:
    """This rank has loaded the snapshot of the rank that lends it."""
    if local_rank not in rounds.borrowers:
        return rounds, ()
    rounds = rounds._replace(borrowers=rounds.borrowers - {local_rank})
    if rounds.borrowers:
        return rounds, ()
    acts = tuple(table.ReleaseSnapshot(lender, rounds.number) for lender in sorted(rounds.lenders))
    return rounds._replace(lenders=frozenset()), acts
