"""Device faults that the ranks may survive without a restart of all (MindCluster: process-level online recovery).

A fault of memory is retried at once: the driver has set the faulty page aside, and what was on it is computed again.
A fault of a link is left to the communication library, which repeats what was not delivered, for as long as its own
settings say (core/rules/library_retries.py); only if a rank still stands still then, the step is retried.  Where a
round cannot cure the fault, what follows is what the fault leads to without recoverable ranks.
"""

from typing import Final

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine import recovering
from ftrun.core.machine.device_faults import description, fault_fields, record_fault, why_not_healable
from ftrun.core.machine.recovering import Recovery
from ftrun.core.machine.states import Job, Watched
from ftrun.core.machine.stopping import Effects
from ftrun.core.machine.values import Attempt, Fault, LinkFault, Rank
from ftrun.core.ranks import table
from ftrun.core.rules.liveness import awaited_ranks, time_awake
from ftrun.core.rules.policy import Policy
from ftrun.core.text import durations, sentences

# Others need a reset of the device, or never heal, unless the platform itself asks for a retry.
CURABLE: Final = ("warning", "minor", "minor+user")
# ClusterD attributes faults of the cores within this time to the memory error that they have met.
CONSEQUENCES: Final = 10.0  # s
USUAL_TIMES: Final = 2.0  # a rank that stands still for less than this many of its longest silences may just work


def survives(job: Job, attempt: Attempt, fault: Fault, now: float) -> bool:
    """Whether this fault is handled here: a round may cure it, or it follows from one that a round is to cure."""
    if not recovering.is_permitted(job, attempt) or fault.device in job.ledger.removed:
        return False
    if fault.severity not in CURABLE and not fault.asks_retry:
        return False
    return bool(fault.retry) or _is_consequence(attempt, fault, now)


def handle(job: Job, phase: Watched, event: ev.FaultReported, policy: Policy) -> Recovery:
    """What follows from a fault for which `survives` holds.  It is counted like any other: the third time within a day
    it is not retried (`failed` is then empty)."""
    fault, now, before = event.fault, event.now, phase.attempt
    if before.online is not None and _is_consequence(before, fault, now):
        fields = (*fault_fields(fault), ("follows", before.online.code))
        return Recovery(job, before, (do.Persist("fault", fields),))
    job, attempt, written = record_fault(job, before, event, policy)
    if fault.mark in before.known or (fault.acts and why_not_healable(job, fault, policy) is not None):
        return Recovery(job, attempt, written, None if fault.mark in before.known else "")
    attempt = attempt._replace(known=before.known)  # the same fault may come again, and then counts as a new one
    if fault.retry == "network":
        return _leave_to_library(job, attempt, fault, now, policy, written)
    return _retry(job, attempt, fault, now, policy, written)


def _is_consequence(attempt: Attempt, fault: Fault, now: float) -> bool:
    cause = attempt.online
    recent = cause is not None and now < attempt.online_at + CONSEQUENCES
    return cause is not None and recent and cause.device == fault.device and cause.code != fault.code


def _retry(job: Job, attempt: Attempt, fault: Fault, now: float, policy: Policy, written: Effects) -> Recovery:
    why = description(fault)
    suspect = local_rank_of(job, attempt, fault)
    replaced = frozenset({suspect}) if fault.retry == "process" and suspect is not None else frozenset[int]()
    cause = "fault" if fault.acts else "hang"  # a link that does not come back shows as a hang
    attempt = attempt._replace(online=fault, online_at=now, link=None)
    blamed = table.Blamed(replaced, why, cause, suspect)
    recovery = recovering.advance(job, attempt, blamed, now, policy)
    return recovery._replace(effects=written + recovery.effects)


def local_rank_of(job: Job, attempt: Attempt, fault: Fault) -> int | None:
    """The local rank that has the fault: the one that the platform names, or, where each rank has a device, the one
    that uses it by the convention that rank n of a node takes device n.

    The platform numbers the ranks of the complete job.  Where members or devices are missing, the ranks have other
    numbers, but rank n of the container is still that of its device n.
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


def due(attempt: Attempt, now: float) -> float | None:
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


def wait(job: Job, attempt: Attempt, now: float, policy: Policy, so_far: Effects) -> Recovery:
    """Time has passed since the fault of a link, and the heartbeats are known as of now."""
    link = attempt.link
    assert link is not None
    ranks = awaited_ranks(attempt)
    if all(rank.moved_at is not None and rank.moved_at > link.since + link.limit for rank in ranks):
        seconds = max((rank.moved_at or 0.0 for rank in ranks), default=now) - link.since
        fields: do.Fields = (("device", link.fault.device), ("code", link.fault.code), ("seconds", seconds))
        return Recovery(job, attempt._replace(link=None), (*so_far, do.Persist("link_recovered", fields)))
    at = due(attempt, now)
    if at is None or now < at:
        return Recovery(job, attempt, so_far)
    if not recovering.is_permitted(job, attempt):
        return Recovery(job, attempt._replace(link=None), so_far)
    by = policy.limits.link_library or "the communication library"
    still = f"{by} has not cured it within {durations.seconds(link.limit)}"
    fault = link.fault._replace(why=f"{link.fault.why}; {still}" if link.fault.why else still)
    return _retry(job, attempt, fault, now, policy, so_far)
