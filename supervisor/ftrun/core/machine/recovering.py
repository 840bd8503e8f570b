"""Recovery below the tree: what the rounds of the ranks (core/ranks) mean for the attempt, its records and its effects.

Device faults that the ranks may survive (MindCluster: process-level online recovery) are handled here as well.  A fault
of memory is retried at once, since the driver has set the faulty page aside.  A fault of a link is left to the
communication library for as long as its own settings say (core/rules/library_retries.py); only if a rank still stands
still then, the step is retried.  Where no round can cure a fault, the attempt ends as if its ranks could not recover.
"""

from typing import Final, cast

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.device_faults import description, fault_fields, record_fault, why_not_healable
from ftrun.core.machine.pause import excuse
from ftrun.core.machine.states import Job, KeepRunning, Watched
from ftrun.core.machine.stopping import AttemptEnd, Effects, Outcome, restart_or_escalate
from ftrun.core.machine.values import Attempt, Cause, Fault, Ledger, LinkFault, LocalRank, Rank
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.ranks import rounds, table, together
from ftrun.core.ranks.shared import NodeRounds, kept_step
from ftrun.core.ranks.table import Rounds
from ftrun.core.rules.liveness import awaited_ranks, time_awake
from ftrun.core.rules.policy import Policy
from ftrun.core.text import durations, sentences

CLOSED = Rounds()
# Others need a reset of the device, or never heal, unless the platform itself asks for a retry.
CURABLE: Final = ("warning", "minor", "minor+user")
# ClusterD attributes faults of the cores within this time to the memory error that they have met.
CONSEQUENCES: Final = 10.0  # s
USUAL_TIMES: Final = 2.0  # a rank that stands still for less than this many of its longest silences may just work


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
    members = tuple(table.RankMember(process.local_rank, process.rank) for process in processes)
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
    progress: object = job.ledger.best_step  # or by files, as in `policy.progress`
    if policy.files or job.ledger.best_checkpoint is not None:
        progress = job.ledger.best_checkpoint, job.ledger.last_checkpoint
    return table.Rules(policy.recover, policy.limits.recover_timeout, policy.max_restarts, progress)


def advance(job: Job, attempt: Attempt, happened: table.Happened, now: float, policy: Policy) -> Recovery:
    """What follows below the tree from what has `happened` to the ranks."""
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
            case table.RecordRecovering(rung, number, ranks, why):
                effects += _begin(rung, number, ranks, why)
            case table.StartRank(local_rank):
                member = after.member(local_rank)
                starts = attempt.replacements + (member.replaced if member else 0)
                job = job._replace(ledger=job.ledger._replace(replacements=max(job.ledger.replacements, starts)))
                effects.append(act._replace(start_cnt=job.ledger.start_cnt + starts))
            case table.FenceRank() | table.EndRank() | table.BeginRound() | table.ReleaseSnapshot():
                effects.append(act)
            case table.RecordRecovered():
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
    hung = attempt.rounds.lacks_culprit
    since = attempt.rounds.since if hung else attempt.rounds.began
    moved = {rank.rank for rank in attempt.ranks if rank.moved_at is not None and rank.moved_at > since}
    local = frozenset(process.local_rank for process in attempt.processes if process.rank in moved)
    recovery = advance(job, attempt, table.Waited(local), now, policy)
    if hung and not recovery.attempt.rounds.lacks_culprit and recovery.failed is None:
        so_far += (do.Persist("cleared", (("why", "it moved"),)),)
    return recovery._replace(effects=so_far + recovery.effects)


def from_hang(job: Job, attempt: Attempt, why: str, culprits: object, now: float, policy: Policy) -> Recovery:
    """A hang was declared: the ranks that cause it are replaced, if the evidence names them (`culprits`)."""
    named = frozenset(culprits) if isinstance(culprits, tuple | list) else frozenset()
    blamed = frozenset(process.local_rank for process in attempt.processes if process.rank in named)
    if not blamed and attempt.rounds.shared and is_permitted(job, attempt):
        return advance(job, attempt, table.HangWithoutCulprit(why), now, policy)  # another node may name its rank
    if not blamed:
        return Recovery(job, attempt, _give_up(attempt.rounds, "the evidence names no rank as the cause"), "unknown")
    if not is_permitted(job, attempt):
        return Recovery(job, attempt, (), "not permitted")
    return advance(job, attempt, table.Blamed(blamed, why), now, policy)


def _begin(rung: str, number: int, ranks: tuple[int, ...], why: str) -> Effects:
    fields: do.Fields = (("rung", rung), ("round", number), ("ranks", list(ranks)), ("why", why))
    what = f"replacing {', '.join(map(sentences.rank, ranks))} alone" if ranks else "all ranks retry the step"
    return do.Persist("recovering", fields, durable=True), do.LogLine(sentences.sentence(sentences.reason(why), what))


def _prove(proved: table.RecordRecovered, attempt: Attempt, ledger: Ledger, now: float) -> Effects:
    began = attempt.rounds.began
    moved = [rank.moved_at for rank in attempt.ranks if rank.moved_at is not None and rank.moved_at > began]
    seconds = max(0.0, max(moved, default=now) - attempt.rounds.since)
    fields: do.Fields = (("rung", proved.rung), ("round", proved.number), ("ranks", list(proved.ranks)))
    step = None if proved.step is None else kept_step(proved.step)
    fields += (("step", step), ("seconds", seconds))
    reported = ledger.best_checkpoint is not None or ledger.last_checkpoint is not None
    origin = "from the checkpoint" if reported else "without a snapshot"
    origin = origin if step is None else f"from step {step}"
    line = sentences.sentence(f"all ranks move again after {seconds:.1f} s", f"round {proved.number}", origin)
    return do.Persist("recovered", fields), do.LogLine(line)


def _give_up(before: Rounds, why: str) -> Effects:
    fields: do.Fields = (("rung", "tree"), ("round", before.number + 1), ("ranks", []), ("why", why))
    line = sentences.sentence("no recovery below a restart of all ranks", sentences.reason(why))
    return do.Persist("recovering", fields), do.LogLine(line)


def is_permitted(job: Job, attempt: Attempt) -> bool:
    """Whether a fault now may be handled below the tree."""
    unhindered = attempt.fatal is None and attempt.stopped_at is None
    return attempt.rounds.is_open and isinstance(job.want, KeepRunning) and unhindered


def end_attempt(recovery: Recovery, now: float, policy: Policy) -> Outcome:
    """No rung below the tree is left: the attempt ends because of the fault with which the recovery began, or of the
    one that made it fail."""
    last, cause = recovery.attempt.rounds, counted_cause(recovery.attempt.rounds, policy)
    why = sentences.sentence(last.why, str(recovery.failed)) if last.why else str(recovery.failed)
    status = last.status if cause == "failure" else None
    fault = recovery.attempt.retried_fault if cause == "fault" else None
    end = AttemptEnd(now, cause, why, status, fault)
    return restart_or_escalate(recovery.job, recovery.attempt, end, policy, recovery.effects)


def counted_cause(failed: Rounds, policy: Policy) -> Cause:
    """What a failed recovery is counted as: the fault with which it began, if --restart-on has its cause, so that the
    restart of all ranks follows that would have followed without a recovery; otherwise the last fault."""
    return cast(Cause, failed.first_cause if failed.first_cause in policy.restart_on else failed.cause)


# --- device faults that the ranks may survive -------------------------------------------------------------------------


def survives(job: Job, attempt: Attempt, fault: Fault, now: float) -> bool:
    """Whether this fault is handled here: a round may cure it, or it follows from one that a round is to cure."""
    if not is_permitted(job, attempt) or fault.device in job.ledger.removed:
        return False
    if fault.severity not in CURABLE and not fault.asks_retry:
        return False
    return bool(fault.retry) or _is_consequence(attempt, fault, now)


def handle_fault(job: Job, phase: Watched, event: ev.FaultReported, policy: Policy) -> Recovery:
    """What follows from a fault for which `survives` holds.  It is counted like any other: the third time within a day
    it is not retried (`failed` is then empty)."""
    fault, now, before = event.fault, event.now, phase.attempt
    if before.retried_fault is not None and _is_consequence(before, fault, now):
        fields = (*fault_fields(fault), ("follows", before.retried_fault.code))
        return Recovery(job, before, (do.Persist("fault", fields),))
    job, attempt, written = record_fault(job, before, event, policy)
    if fault.mark in before.counted_faults or (fault.acts and why_not_healable(job, fault, policy) is not None):
        return Recovery(job, attempt, written, None if fault.mark in before.counted_faults else "")
    # The same fault may come again, and then counts as a new one.
    attempt = attempt._replace(counted_faults=before.counted_faults)
    if fault.retry == "network":
        return _leave_to_library(job, attempt, fault, now, policy, written)
    return _retry(job, attempt, fault, now, policy, written)


def _is_consequence(attempt: Attempt, fault: Fault, now: float) -> bool:
    cause = attempt.retried_fault
    recent = cause is not None and now < attempt.retried_at + CONSEQUENCES
    return cause is not None and recent and cause.device == fault.device and cause.code != fault.code


def _retry(job: Job, attempt: Attempt, fault: Fault, now: float, policy: Policy, written: Effects) -> Recovery:
    why = description(fault)
    suspect = local_rank_of(job, attempt, fault)
    replaced = frozenset({suspect}) if fault.retry == "process" and suspect is not None else frozenset[int]()
    cause = "fault" if fault.acts else "hang"  # a link that does not come back shows as a hang
    attempt = attempt._replace(retried_fault=fault, retried_at=now, link=None)
    blamed = table.Blamed(replaced, why, cause, suspect)
    recovery = advance(job, attempt, blamed, now, policy)
    return recovery._replace(effects=written + recovery.effects)


def local_rank_of(job: Job, attempt: Attempt, fault: Fault) -> int | None:
    """The local rank that has the fault: the one that the platform names, or, where each rank has a device, the one
    that uses it by the convention that rank n of a node takes device n.

    The platform numbers the ranks of the complete job.  Where members or devices are missing, the ranks have other
    numbers, but rank n of the container still uses its device n.
    """
    processes = attempt.processes
    used = [number for number, device in enumerate(job.devices) if device.id not in job.ledger.removed]
    each_has_one = len(used) == len(processes)
    if fault.local is not None:
        numbers = used if each_has_one else [*range(len(processes))]
        return processes[numbers.index(fault.local)].local_rank if fault.local in numbers else None
    if fault.rank is not None:
        return next((one.local_rank for one in processes if one.rank == fault.rank), None)
    device = next((number for number in used if job.devices[number].id == fault.device), None)
    return processes[used.index(device)].local_rank if each_has_one and device is not None else None


# --- links ------------------------------------------------------------------------------------------------------------


def _leave_to_library(
    job: Job, attempt: Attempt, fault: Fault, now: float, policy: Policy, written: Effects
) -> Recovery:
    if policy.limits.link_timeout is None:
        return Recovery(job, attempt, written)
    if attempt.link is not None:  # the time of an earlier fault goes on
        return Recovery(job, attempt, written)
    link = LinkFault(fault, now, policy.limits.link_timeout)
    fields: do.Fields = (("device", fault.device), ("code", fault.code), ("limit", link.limit))
    record = do.Persist("link_fault", (*fields, ("library", policy.limits.link_library)))
    by = policy.limits.link_library or "the communication library"
    what = f"device {fault.device} reports {fault.code}"
    line = do.LogLine(sentences.sentence(what, f"{by} has {durations.seconds(link.limit)} for retries of its own"))
    return Recovery(job, attempt._replace(link=link), (*written, record, line))


def library_due(attempt: Attempt, now: float) -> float | None:
    """When a rank that does not move from now on has stood still for longer than the library's retries take.  None:
    that is not known, while a rank is in a section or has not moved yet, since both may take long."""
    link, ranks = attempt.link, awaited_ranks(attempt)
    if link is None:
        return None
    if any(rank.moved_at is None or rank.sections for rank in ranks):
        return link.since + link.limit if now < link.since + link.limit else None
    return min((now + _left(rank, attempt, link, now) for rank in ranks), default=None)


def _left(rank: Rank, attempt: Attempt, link: LinkFault, now: float) -> float:
    usual = USUAL_TIMES * max(rank.longest, rank.slowest_start)
    return max(link.limit, usual) - time_awake(max(link.since, rank.moved_at or 0.0), now, attempt.aways)


def wait_for_library(job: Job, attempt: Attempt, now: float, policy: Policy, so_far: Effects) -> Recovery:
    """Time has passed since the fault of a link, and the heartbeats are known as of now."""
    link = attempt.link
    assert link is not None
    ranks = awaited_ranks(attempt)
    if all(rank.moved_at is not None and rank.moved_at > link.since + link.limit for rank in ranks):
        seconds = max((rank.moved_at or 0.0 for rank in ranks), default=now) - link.since
        fields: do.Fields = (("device", link.fault.device), ("code", link.fault.code), ("seconds", seconds))
        return Recovery(job, attempt._replace(link=None), (*so_far, do.Persist("link_recovered", fields)))
    at = library_due(attempt, now)
    if at is None or now < at:
        return Recovery(job, attempt, so_far)
    if not is_permitted(job, attempt):
        return Recovery(job, attempt._replace(link=None), so_far)
    by = policy.limits.link_library or "the communication library"
    still = f"{by} has not cured it within {durations.seconds(link.limit)}"
    fault = link.fault._replace(why=f"{link.fault.why}; {still}" if link.fault.why else still)
    return _retry(job, attempt, fault, now, policy, so_far)
