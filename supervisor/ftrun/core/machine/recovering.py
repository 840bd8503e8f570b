"""Recovery below the tree: what the rounds of the ranks (core/ranks) mean for the attempt, its records and its effects.

A recovery leaves the attempt under way.  Where no rung below the tree is left, what follows is the end of the attempt,
as if its ranks could not recover.
"""

from typing import cast

from ftrun.core.machine import effects as do
from ftrun.core.machine.pause import excuse
from ftrun.core.machine.states import Job, KeepRunning
from ftrun.core.machine.stopping import AttemptEnd, Effects, Outcome, restart_or_escalate
from ftrun.core.machine.values import Attempt, Cause, Ledger, LocalRank
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.ranks import rounds, table, together
from ftrun.core.ranks.shared import GroupRound, NodeRounds
from ftrun.core.ranks.table import Rounds
from ftrun.core.rules.policy import Policy
from ftrun.core.text import sentences

CLOSED = Rounds()


class Recovery(NamedTuple):
    """What follows.  `failed`: why no rung below the tree is left; None: the attempt goes on."""

    job: Job
    attempt: Attempt
    effects: Effects
    failed: str | None = None


def first_round(processes: tuple[LocalRank, ...], job: Job, now: float, policy: Policy) -> Rounds:
    """The ranks of an attempt that begins.  They can recover once each of them has said so.  In a group that is at work
    already they join the others between two rounds."""
    if not policy.recover:
        return CLOSED
    members = tuple(table.Member(process.local_rank, process.rank) for process in processes)
    order = job.order.round if job.order is not None else None
    if order is not None and policy.membership.member in order.joining:
        return together.joined(members, order, now, _rules(job, policy))
    return Rounds(members, shared=policy.membership.group)


def node_rounds(job: Job, attempt: Attempt | None, policy: Policy) -> NodeRounds | None:
    """What the other members of the group have to know about the ranks here; None: they cannot recover."""
    if not policy.recover or policy.ranks is None:
        return None
    return together.node_rounds(CLOSED if attempt is None else attempt.rounds, _rules(job, policy))


def _rules(job: Job, policy: Policy) -> table.Rules:
    progress = _progress(job.ledger, policy)
    return table.Rules(policy.recover, policy.limits.recover_timeout, policy.max_restarts, progress)


def advance(job: Job, attempt: Attempt, happened: table.Happened, now: float, policy: Policy) -> Recovery:
    """Take this into account, and do what follows from it below the tree."""
    before, rules = attempt.rounds, _rules(job, policy)
    after, acts = (together if before.shared else rounds).step(before, happened, now, rules)
    if after.stage == "proving" != before.stage:
        attempt = excuse(attempt, max(before.since, attempt.spawned_at), now)
        attempt = attempt._replace(link=None)  # no connection is left
    attempt = attempt._replace(rounds=after)
    effects: list[do.Effect] = []
    failed: str | None = None
    for act in acts:
        match act:
            case table.Begin(rung, number, ranks, why):
                effects += _begin(rung, number, ranks, why)
            case table.StartRank(local_rank):
                member = after.member(local_rank)
                starts = attempt.replacements + (member.replaced if member else 0)
                job = job._replace(ledger=job.ledger._replace(replacements=max(job.ledger.replacements, starts)))
                effects.append(act._replace(start_cnt=job.ledger.start_cnt + starts))
            case table.FenceRank() | table.EndRank() | table.BeginRound() | table.ReleaseSnapshot():
                effects.append(act)
            case table.Prove():
                effects += _prove(act, attempt, job.ledger, now)
                retried, replaced = job.ledger.retried, job.ledger.replaced
                counts = (retried + 1, replaced) if act.rung == "retry" else (retried, replaced + 1)
                job = job._replace(ledger=job.ledger._replace(retried=counts[0], replaced=counts[1]))
            case table.GiveUp(why):
                failed = why
                effects += _give_up(before, why)
    return Recovery(job, attempt, tuple(effects), failed)


def wait(job: Job, attempt: Attempt, now: float, policy: Policy, so_far: Effects) -> Recovery:
    """Time has passed, and the heartbeats are known as of now."""
    recovery = advance(job, attempt, table.Waited(_moved_ranks(attempt)), now, policy)
    return recovery._replace(effects=so_far + recovery.effects)


def from_hang(job: Job, attempt: Attempt, why: str, culprits: object, now: float, policy: Policy) -> Recovery:
    """A hang was declared: the ranks that cause it are replaced, if the evidence names them (`culprits`)."""
    named = frozenset(culprits) if isinstance(culprits, tuple | list) else frozenset()
    blamed = frozenset(process.local_rank for process in attempt.processes if process.rank in named)
    if not blamed and attempt.rounds.shared and is_permitted(job, attempt):
        return advance(job, attempt, table.Unexplained(why), now, policy)  # another node may name its rank
    if not blamed:
        return Recovery(job, attempt, _give_up(attempt.rounds, "the evidence names no rank as the cause"), "unknown")
    if not is_permitted(job, attempt):
        return Recovery(job, attempt, (), "not permitted")
    return advance(job, attempt, table.Blamed(blamed, why), now, policy)


def follow_group(job: Job, attempt: Attempt, order: GroupRound, now: float, policy: Policy) -> Recovery:
    """What the members of the group decide together about the rounds of their ranks."""
    return advance(job, attempt, table.Ordered(order), now, policy)


def _progress(ledger: Ledger, policy: Policy) -> object:
    """How far the job has got, by the measure of `policy.progress`."""
    if policy.files or ledger.best_checkpoint is not None:
        return ledger.best_checkpoint, ledger.last_checkpoint
    return ledger.best_step


def _begin(rung: str, number: int, ranks: tuple[int, ...], why: str) -> Effects:
    fields: do.Fields = (("rung", rung), ("round", number), ("ranks", list(ranks)), ("why", why))
    what = f"replacing {_names(ranks)} alone" if ranks else "all ranks retry the step"
    return do.Persist("recovering", fields, durable=True), do.LogLine(sentences.sentence(sentences.reason(why), what))


def _prove(proved: table.Prove, attempt: Attempt, ledger: Ledger, now: float) -> Effects:
    began = attempt.rounds.began
    moved = [rank.moved_at for rank in attempt.ranks if rank.moved_at is not None and rank.moved_at > began]
    seconds = max(0.0, max(moved, default=now) - attempt.rounds.since)
    fields: do.Fields = (("rung", proved.rung), ("round", proved.number), ("ranks", list(proved.ranks)))
    fields += (("step", proved.step), ("seconds", seconds))
    reported = ledger.best_checkpoint is not None or ledger.last_checkpoint is not None
    origin = "from the checkpoint" if reported else "without a snapshot"
    origin = origin if proved.step is None else f"from step {proved.step}"
    line = sentences.sentence(f"all ranks move again after {seconds:.1f} s", f"round {proved.number}", origin)
    return do.Persist("recovered", fields), do.LogLine(line)


def _give_up(before: Rounds, why: str) -> Effects:
    fields: do.Fields = (("rung", "tree"), ("round", before.number + 1), ("ranks", []), ("why", why))
    line = sentences.sentence("no recovery below a restart of all ranks", sentences.reason(why))
    return do.Persist("recovering", fields), do.LogLine(line)


def _names(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(sentences.rank, ranks))


def is_permitted(job: Job, attempt: Attempt) -> bool:
    """Whether a fault now may be handled below the tree."""
    unhindered = attempt.fatal is None and attempt.stopped_at is None
    return attempt.rounds.is_open and isinstance(job.want, KeepRunning) and unhindered


def fall(recovery: Recovery, now: float, policy: Policy) -> Outcome:
    """No rung below the tree is left: the attempt ends because of the fault with which the recovery began, or of the
    one that made it fail."""
    last, cause = recovery.attempt.rounds, counted_cause(recovery.attempt.rounds, policy)
    why = sentences.sentence(last.why, str(recovery.failed)) if last.why else str(recovery.failed)
    status = last.status if cause == "failure" else None
    fault = recovery.attempt.online if cause == "fault" else None
    end = AttemptEnd(now, cause, why, status, fault)
    return restart_or_escalate(recovery.job, recovery.attempt, end, policy, recovery.effects)


def counted_cause(failed: Rounds, policy: Policy) -> Cause:
    """What a failed recovery is counted as: the fault with which it began, if --restart-on has its cause, so that the
    restart of all ranks follows that would have followed without a recovery; otherwise the last fault."""
    return cast(Cause, failed.first_cause if failed.first_cause in policy.restart_on else failed.cause)


def _moved_ranks(attempt: Attempt) -> frozenset[int]:
    """The local ranks that have moved since the round at work began."""
    began = attempt.rounds.began
    moved = {rank.rank for rank in attempt.ranks if rank.moved_at is not None and rank.moved_at > began}
    return frozenset(process.local_rank for process in attempt.processes if process.rank in moved)
