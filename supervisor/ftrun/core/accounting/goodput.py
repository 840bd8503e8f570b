"""Keeps the account: which time led to kept steps, and which time was lost for which reason.

Every instant is counted once, and a decision about it is final: lost time only rises.  While an attempt runs, its work
is open; a checkpoint keeps it.  Work after the last checkpoint is decided when the next attempt starts.  Where
checkpoints are never reported, the first step of the next attempt decides: the work up to that step was kept.
"""

from itertools import pairwise

from ftrun.core.accounting.totals import TRACE, Account, Trace
from ftrun.core.machine import events as ev
from ftrun.core.machine.pause import NOTED, seconds_still
from ftrun.core.machine.states import (
    Done,
    Finish,
    Healing,
    Job,
    KeepRunning,
    Pending,
    Restart,
    Stopping,
    Suspect,
    Watched,
)
from ftrun.core.machine.values import Ledger, Rank
from ftrun.core.ranks.table import Rounds
from ftrun.core.rules.exit_codes import STOPPED

REPORTED = 10.0  # s after a start; by then the files that the attempt before saved have been reported


def update(before: Job, event: ev.Event, after: Job) -> Job:
    """`after` with its account as of this event."""
    if after is before:
        return after  # nothing changed, so the time still counts as before
    account = after.ledger.account
    if not _has_not_begun(before):
        if isinstance(event, ev.WokeLate) and before.paused is None and not account.into:
            account = _count_freeze(account, event)
        account = _count_time(account, event.now)
        if isinstance(before.phase, Suspect) and (isinstance(after.phase, Stopping) or _recovers(after)):
            account = _count_hang(account) if isinstance(event, ev.EvidenceCollected | ev.DeadlineReached) else account
        if isinstance(before.phase, Watched) and before.phase.attempt.rounds.is_changing:
            account = _count_recovery(account, before.phase.attempt.rounds, after, event.now)
        account = _note_suspect(account, before, after)
        if before.paused is not None and after.paused is None:
            account = _count_pause(account, before, after, event.now)
    if isinstance(event, ev.BeatsRead | ev.EvidenceCollected):
        account = _count_beats(account, event.ranks, event.now, before.ledger, after.ledger)
    elif isinstance(event, ev.CheckpointSaved):
        account = _count_checkpoint_file(account, event, after)
    if after.ledger.start_cnt != before.ledger.start_cnt:
        account = _begin_attempt(account, before, after)
    elif isinstance(after.phase, Done):
        account = _end(account, after, isinstance(event, ev.SpawnFailed))
    elif account.begun or account.open >= REPORTED:
        account = _settle(account)
    if isinstance(after.phase, Done) or _has_not_begun(after):
        account = account._replace(into="", at=None)
    else:
        # An exit that was held back may carry an earlier time than other events.
        known = None if _has_not_begun(before) else account.at
        account = account._replace(into=_kind_of_time(after), at=event.now if known is None else max(known, event.now))
    return after._replace(ledger=after.ledger._replace(account=account))


def _has_not_begun(job: Job) -> bool:
    """Whether this ftrun, or its group, has not begun: then `at` and `into` were written by an earlier ftrun."""
    return isinstance(job.phase, Pending) and job.phase.deadline is None and isinstance(job.want, KeepRunning)


def _kind_of_time(job: Job) -> str:
    """The kind of lost time that passes in this state; "": the time is open."""
    phase = job.phase
    if isinstance(phase, Stopping):
        if phase.stage == "verdict":
            return "waiting"  # for other nodes
        return "" if phase.stage == "asked" else "stopping"  # after a stop from outside the command may work for long
    if isinstance(phase, Pending | Healing):
        return "healing" if isinstance(phase, Healing) and phase.fault is not None else "waiting"
    return "" if isinstance(phase, Done) or phase.attempt.stopped_at is None else "paused"


def _count_time(account: Account, now: float) -> Account:
    """The account with the time since the last event."""
    passed = 0.0 if account.at is None else now - account.at
    if passed <= 0:
        return account
    if account.into:
        return _lose(account, account.into, passed)._replace(wall=account.wall + passed)
    silent = account.silent + passed if account.silent else 0.0
    return account._replace(wall=account.wall + passed, open=account.open + passed, silent=silent)


def _count_freeze(account: Account, event: ev.WokeLate) -> Account:
    """ftrun was suspended, and with it, as far as can be known, its whole container.  A shorter time is that of a busy
    machine."""
    began = event.since if account.at is None else max(account.at, event.since)
    if event.now - began < NOTED:
        return account
    account = _count_time(account, began)
    away = event.now - began
    return _lose(account, "paused", away)._replace(wall=account.wall + away, at=event.now)


def _count_pause(account: Account, before: Job, after: Job, now: float) -> Account:
    """The operator's pause is over: the time in which nothing moved is lost."""
    if before.paused is None or not isinstance(after.phase, Watched):
        return account
    lost = min(account.open, seconds_still(before.paused, after.phase.attempt, now) or 0.0)
    return _lose(account, "paused", lost)._replace(open=account.open - lost)


def _lose(account: Account, why: str, seconds: float) -> Account:
    return account._replace(lost=account.lost._replace(**{why: getattr(account.lost, why) + seconds}))


# --- an attempt -------------------------------------------------------------------------------------------------------


def _note_suspect(account: Account, before: Job, after: Job) -> Account:
    """Record for how long the suspect had been silent when it became one; from then on `_count_time` adds to it."""
    if not isinstance(after.phase, Suspect):
        return account._replace(silent=0.0) if account.silent else account
    if isinstance(before.phase, Suspect) and after.phase.finding is before.phase.finding:
        return account
    return account._replace(silent=after.phase.finding.age)


def _count_hang(account: Account) -> Account:
    """The verdict: all of that silence was a hang."""
    hung = min(account.open, account.silent)
    return _lose(account, "hang", hung)._replace(open=account.open - hung)


def _recovers(job: Job) -> bool:
    return isinstance(job.phase, Watched) and job.phase.attempt.rounds.is_under_way


def _count_recovery(account: Account, rounds: Rounds, after: Job, now: float) -> Account:
    """A recovery of the ranks has succeeded, or failed: the time since its fault is lost, and so is the work after the
    step with which they have begun again."""
    if isinstance(after.phase, Watched) and after.phase.attempt.rounds.is_changing:
        return account
    moved, rest = now, 0.0
    if isinstance(after.phase, Watched) and after.phase.attempt.rounds.is_open:
        moved = max((r.moved_at for r in after.phase.attempt.ranks if r.moved_at is not None), default=now)
        rest = min(account.open, max(0.0, now - max(moved, rounds.since)))
    lost = min(account.open - rest, max(0.0, moved - rounds.since))
    account = _lose(account, "recovery", lost)._replace(open=account.open - lost)
    if not isinstance(after.phase, Watched) or not after.phase.attempt.rounds.is_open:
        return account  # the recovery failed: the next attempt decides about the work
    return _count_steps_redone(account, rounds.restored, account.open - rest)


def _count_steps_redone(account: Account, step: int | None, work: float) -> Account:
    """The ranks have begun again with the snapshot of this step, or (None) with the checkpoint.  What it does not have
    of the `work` is lost; where checkpoints are reported, the steps of that work are not known, but they are few."""
    if step is not None and not account.trace:
        return account
    until = 0.0 if step is None else min(work, _work_until(account.trace, step))
    lost = max(0.0, work - until)
    trace = tuple(point for point in account.trace if point[0] < until)
    trace = trace if step is None or not account.trace else (*trace, (until, step))
    return _lose(account, "redone", lost)._replace(open=account.open - lost, trace=trace)


def _count_beats(account: Account, ranks: tuple[Rank, ...], now: float, before: Ledger, ledger: Ledger) -> Account:
    if not account.begun:
        account = _count_startup(account, ranks, now)
    if not account.stepped and any(rank.step is not None or rank.checkpoint_step is not None for rank in ranks):
        account = account._replace(stepped=True)
    if account.trace:
        account = _count_step(account, ledger.last_step)  # there may be a thousand ranks
    elif account.past or not account.saved:
        account = _count_step(account, max((rank.step for rank in ranks if rank.step is not None), default=None))
    if ledger.best_checkpoint != before.best_checkpoint:
        account = _keep(account, account.silent)
    return account


def _count_startup(account: Account, ranks: tuple[Rank, ...], now: float) -> Account:
    first = min((rank.moved_at for rank in ranks if rank.moved_at is not None), default=None)
    if first is None:
        return account
    work = min(account.open, max(0.0, now - first))
    return _lose(account, "startup", account.open - work)._replace(open=work, begun=True)


def _count_step(account: Account, step: int | None) -> Account:
    if step is None:
        return account
    if account.past:
        redone = max(0.0, account.earlier - _work_until(account.past, step))
        account = _lose(account, "redone", redone)
        account = account._replace(kept=account.kept + account.earlier - redone, earlier=0.0, past=())
    if account.saved:
        return account
    trace = _add_to_trace(account.trace, account.open, step)
    return account if trace is account.trace else account._replace(trace=trace)


def _add_to_trace(trace: Trace, work: float, step: int) -> Trace:
    """The trace with this step, if it is the highest.  The last point is always the newest; the others are spread over
    the work."""
    if trace and step <= trace[-1][1]:
        return trace
    if len(trace) > 1 and work - trace[-2][0] < (work - trace[0][0]) / TRACE:
        trace = trace[:-1]
    elif len(trace) == TRACE:
        trace = trace[::2]
    return (*trace, (work, step))


def _work_until(trace: Trace, step: int) -> float:
    """After how much work this step was first reached; between two points in proportion."""
    work, first = trace[0]
    if step <= first:
        return work if step == first else 0.0
    for (since, low), (until, high) in pairwise(trace):
        if step <= high:
            return since + (until - since) * (step - low) / (high - low)
    return float("inf")


def _count_checkpoint_file(account: Account, event: ev.CheckpointSaved, after: Job) -> Account:
    """A checkpoint file keeps the work up to it, also the work of the attempt before."""
    account = account._replace(stepped=True)
    attempt = None if isinstance(after.phase, Pending | Healing | Done) else after.phase.attempt
    if attempt is not None and event.at < attempt.spawned_at:
        account = account._replace(kept=account.kept + account.earlier, earlier=0.0, past=(), saved=True)
        return account._replace(trace=())
    since = 0.0 if account.into else max(0.0, event.now - event.at)  # while the tree is being stopped no work follows
    return _keep(account, max(since, account.silent))


def _keep(account: Account, since: float) -> Account:
    """A checkpoint keeps all work except that of the last `since` seconds."""
    rest, account = min(account.open, since), _settle(account)
    return account._replace(kept=account.kept + account.open - rest, open=rest, saved=True, trace=())


def _settle(account: Account) -> Account:
    """The work after the last checkpoint of the attempt before is lost, unless its trace of steps is to decide."""
    if account.past or not account.earlier:
        return account
    return _lose(account, "redone", account.earlier)._replace(earlier=0.0)


# --- the next attempt, or the end -------------------------------------------------------------------------------------


def _begin_attempt(account: Account, before: Job, after: Job) -> Account:
    """The open work of the attempt before becomes earlier work."""
    if isinstance(before.want, Restart):
        reason = after.ledger.reason
        number = getattr(account.restarts, reason) + 1
        account = account._replace(restarts=account.restarts._replace(**{reason: number}))
    account = _settle(account)
    if account.past or not (account.trace or account.saved):
        account = _lose(account, "redone" if account.begun else "startup", account.open)
    else:
        account = account._replace(earlier=account.open, past=account.trace)
    return account._replace(open=0.0, trace=(), begun=False, silent=0.0)


def _end(account: Account, job: Job, not_begun: bool) -> Account:
    """No further step will decide.  A command that was stopped may have saved its work, so that stays open."""
    if isinstance(job.want, Finish) and job.want.verdict == STOPPED:
        return _settle(account)._replace(silent=0.0)
    if isinstance(job.phase, Done) and job.phase.code == 0:
        account = _settle(account)
        account = account._replace(kept=account.kept + account.open + account.earlier)
    else:
        account = _lose(account, "discarded", account.earlier)
        worked = (account.begun or account.saved) and not not_begun
        account = _lose(account, "discarded" if worked else "startup", account.open)
    return account._replace(open=0.0, trace=(), earlier=0.0, past=(), begun=False, silent=0.0)
