"""What happens to the single ranks that ftrun started (`--nproc-per-node`): they end, report, and are replaced."""

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine import recovering
from ftrun.core.machine.device_faults import stop_for_fault
from ftrun.core.machine.ending import is_by_request, status_text
from ftrun.core.machine.recovering import CLOSED, Recovery, advance
from ftrun.core.machine.states import Job, Stopping, Suspect, Watched
from ftrun.core.machine.stopping import Effects, Outcome
from ftrun.core.machine.values import Attempt, LocalRank
from ftrun.core.machine.watching import check, cleared_record
from ftrun.core.ranks import table
from ftrun.core.ranks.shared import GroupRound
from ftrun.core.rules import exit_codes
from ftrun.core.rules.policy import Policy


def on_rank_event(job: Job, phase: Watched | Stopping, event: ev.RankEvent, policy: Policy) -> Outcome:
    if isinstance(phase, Stopping):
        if not isinstance(event, ev.RankExited):
            return job, ()
        attempt, written = _with_exit(phase.attempt, event)
        return job._replace(phase=phase._replace(attempt=attempt)), written
    match event:
        case ev.RankExited():
            return _on_rank_exited(job, phase, event, policy)
        case ev.RankReported():
            return _on_rank_reported(job, phase, event, policy)
        case ev.RankTreeEnded():
            return _on_rank_tree_ended(job, phase, event, policy)
        case ev.RankStarted():
            return _on_rank_started(job, phase, event, policy)
        case ev.LeftoversFound():
            return _on_leftovers_found(job, phase, event, policy)


def on_fault_reported(job: Job, phase: Watched, event: ev.FaultReported, policy: Policy) -> Outcome:
    """A device fault that the ranks may survive (recovering.py)."""
    recovery = recovering.handle_fault(job, phase, event, policy)
    if recovery.failed is not None and event.fault.acts:
        job, attempt, effects, _ = recovery
        return stop_for_fault(job, attempt, event.fault, event.now, policy, effects)
    return _go_on(phase, recovery, event.now, policy)


def on_group_round(job: Job, phase: Watched, order: GroupRound, now: float, policy: Policy) -> Outcome:
    """The members of the group have decided about the rounds of their ranks."""
    before = phase.attempt
    recovery = advance(job, before, table.GroupOrdered(order), now, policy)
    if recovery.attempt == before:
        return job, recovery.effects
    return _go_on(phase, recovery, now, policy)


def _on_rank_exited(job: Job, phase: Watched, event: ev.RankExited, policy: Policy) -> Outcome:
    """A rank that ftrun started ended.  One that ends with 0 is done, while the others go on; one that fails is
    replaced, if it can be.  Otherwise `CommandExited` follows, and decides about the attempt."""
    attempt, written = _with_exit(phase.attempt, event)
    status = exit_codes.shell_status(event.code, event.signal)
    replaced = (member := attempt.rounds.member(event.local_rank)) is not None and member.state == "ending"
    permitted = recovering.is_permitted(job, attempt) and not is_by_request(attempt, event)
    if status and not permitted and not replaced:
        attempt = attempt._replace(rounds=CLOSED)
    rank = attempt.rank_of(event.local_rank)
    why = status_text(ev.CommandExited(event.now, event.code, event.signal, rank=rank))
    if status == 0 and not replaced and any(one.exited_at is None for one in attempt.processes):
        written += (do.FindLeftovers(event.local_rank),)
    recovery = advance(job, attempt, table.RankProcessEnded(event.local_rank, status, why), event.now, policy)
    recovery = recovery._replace(effects=written + recovery.effects)
    if status and recovering.counted_cause(recovery.attempt.rounds, policy) == "failure":
        recovery = recovery._replace(failed=None)  # the exit of the command follows, with what explains it
    return _go_on(phase, recovery, event.now, policy)


def _with_exit(attempt: Attempt, event: ev.RankExited) -> tuple[Attempt, Effects]:
    numbers = ("rank", attempt.rank_of(event.local_rank)), ("local_rank", event.local_rank)
    attempt = attempt.with_process(
        event.local_rank, exited_at=event.now, code=event.code, signal=event.signal, exception=event.exception
    )
    return attempt, (do.Persist("rank_exited", (*numbers, *event.outcome)),)


def _on_rank_reported(job: Job, phase: Watched, event: ev.RankReported, policy: Policy) -> Outcome:
    """A rank reports.  While the user has stopped the command, or it is to end, no round is ended because of it."""
    report, attempt = event.report, phase.attempt
    if isinstance(report, table.SaidHello):
        again = (one.started_at for one in attempt.processes if one.local_rank == report.local_rank)
        started_at = next((at for at in again if at is not None), attempt.spawned_at)
        report = report._replace(after=max(0.0, event.now - started_at))
    return _go_on(phase, advance(job, attempt, report, event.now, policy), event.now, policy)


def _on_rank_tree_ended(job: Job, phase: Watched, event: ev.RankTreeEnded, policy: Policy) -> Outcome:
    written: Effects = ()
    if event.killed and (done := _done(phase.attempt, event.local_rank)) is not None:
        written = (do.Persist("rank_killed", (*_numbers(done), ("processes", event.killed))),)
    recovery = advance(job, phase.attempt, table.RankTreeCleared(event.local_rank), event.now, policy)
    return _go_on(phase, recovery._replace(effects=written + recovery.effects), event.now, policy)


def _on_leftovers_found(job: Job, phase: Watched, event: ev.LeftoversFound, policy: Policy) -> Outcome:
    """What a rank has left ends as what the whole command leaves at its end does, while the other ranks go on."""
    if (done := _done(phase.attempt, event.local_rank)) is None:
        return job, ()
    fields = (*_numbers(done), ("processes", list(event.processes)), ("grace", policy.limits.grace))
    return job, (do.Persist("rank_leftovers", fields), do.EndLeftovers(event.local_rank, policy.limits.grace))


def _done(attempt: Attempt, local_rank: int) -> LocalRank | None:
    """This rank, if it has ended with 0 and is not being replaced."""
    member = attempt.rounds.member(local_rank)
    if member is not None and member.state == "ending":
        return None
    return next((one for one in attempt.processes if one.local_rank == local_rank and one.code == 0), None)


def _numbers(process: LocalRank) -> do.Fields:
    return ("rank", process.rank), ("local_rank", process.local_rank)


def _on_rank_started(job: Job, phase: Watched, event: ev.RankStarted, policy: Policy) -> Outcome:
    attempt = phase.attempt.with_process(
        event.local_rank, pid=event.pid, exited_at=None, code=None, signal=None, started_at=event.now, exception=""
    )
    attempt = attempt._replace(pid=attempt.processes[0].pid if attempt.processes else attempt.pid)
    rank = attempt.rank_of(event.local_rank)
    written = do.Persist("rank_spawned", (("rank", rank), ("local_rank", event.local_rank), ("pid", event.pid)))
    return _go_on(phase, Recovery(job, attempt, (written,)), event.now, policy)


def _go_on(phase: Watched, recovery: Recovery, now: float, policy: Policy) -> Outcome:
    """Watch the attempt further, or end it.  A suspicion stays, unless a recovery has taken its place."""
    job, attempt, effects, failed = recovery
    if failed is not None:
        return recovering.end_attempt(recovery, now, policy)
    if not attempt.rounds.is_open or (isinstance(phase, Suspect) and not attempt.rounds.is_under_way):
        return job._replace(phase=phase._replace(attempt=attempt)), effects
    dropped = cleared_record(phase, "the ranks recover from another fault")
    return check(job, attempt, now, policy, (*dropped, *effects))
