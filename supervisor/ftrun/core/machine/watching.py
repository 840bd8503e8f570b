"""Watching an attempt: its progress, whether it moves, and how a suspicion is resolved."""

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.device_faults import blamed
from ftrun.core.machine.pause import forgiven, lifted, over
from ftrun.core.machine.states import Done, Healing, Job, Pending, Phase, Restart, Running, Starting, Stopping, Suspect
from ftrun.core.machine.stopping import Effects, Outcome, restart_or_escalate
from ftrun.core.machine.values import CAUSES, Attempt, Cause, Finding, Ledger, RaisedLimit
from ftrun.core.rules import adaptive_timeout, hang_rules
from ftrun.core.rules.idle import observe, unchanged_for
from ftrun.core.rules.liveness import assess, same, time_awake
from ftrun.core.rules.policy import Policy, credited, progress
from ftrun.core.rules.saved_files import latest
from ftrun.core.text import sentences

AT_REST = 6.0  # s; a file that was written in place before a kill has been reported as at rest by then


def watch(job: Job, attempt: Attempt, now: float, policy: Policy, so_far: Effects = ()) -> Outcome:
    """Check the attempt as it was last seen.  A finding is a suspicion that evidence has to confirm."""
    if attempt.moved and isinstance(job.phase, Starting | Suspect) and not job.phase.attempt.moved:
        first = next(r for r in attempt.ranks if r.moved_at is not None)
        so_far = (do.Persist("first_beat", (("rank", first.rank), ("step", first.step))), *so_far)
        job = job._replace(ledger=_begun(job.ledger, attempt))
    if over(job, now):
        job, attempt, effects = lifted(job, attempt, now)
        so_far += effects
    if attempt.stopped_at is not None or job.paused is not None:
        return job._replace(phase=_watched(attempt, job.paused and job.paused.until)), so_far
    assessment = assess(attempt, now, policy.limits, job.ledger.learned)
    finding = assessment.finding
    if finding is None:
        return job._replace(phase=_watched(attempt, assessment.deadline)), so_far
    suspect = Suspect(attempt, finding, now + policy.evidence_timeout)
    return job._replace(phase=suspect), (*so_far, do.Persist("suspect", _fields(finding)), do.Investigate(finding))


def _watched(attempt: Attempt, deadline: float | None) -> Starting | Running:
    return Running(attempt, deadline) if attempt.moved else Starting(attempt, deadline)


def _begun(ledger: Ledger, attempt: Attempt) -> Ledger:
    """The ledger with the time that this attempt took to its first movement, if that is the longest so far."""
    first = min(rank.moved_at for rank in attempt.ranks if rank.moved_at is not None)
    taken = time_awake(attempt.spawned_at, first, attempt.aways)
    return ledger._replace(first_beat=max(taken, ledger.first_beat or 0.0))


def credit(job: Job, attempt: Attempt, now: float, policy: Policy) -> tuple[Job, Attempt, Effects]:
    """Record the progress of the attempt: every new checkpoint, and the first step beyond all earlier attempts; also
    the timeout learned from the silences of its ranks."""
    what = progress(job.ledger, attempt, now, policy)
    ledger = credited(job.ledger, attempt, what)
    ledger, written = _learned(ledger, attempt, policy)
    if what is None or (what != "checkpoint" and attempt.progressed):
        return job._replace(ledger=ledger), attempt, written
    path = latest(attempt) if what == "save" else ledger.last_checkpoint
    record = _progress(job.ledger, what, attempt.step, path)
    return job._replace(ledger=ledger), attempt._replace(progressed=True), (*written, record)


def _progress(
    before: Ledger, by: str, step: int | None, checkpoint: str | None, seen: float | None = None
) -> do.Persist:
    counted = before.hang + before.fault + before.failure > 0
    fields: tuple[tuple[str, object], ...] = (("by", by), ("step", step), ("checkpoint", checkpoint))
    return do.Persist("progress", fields if seen is None else (*fields, ("seen", seen)), durable=counted)


def _learned(ledger: Ledger, attempt: Attempt, policy: Policy) -> tuple[Ledger, Effects]:
    if not policy.limits.auto:
        return ledger, ()
    before, known = ledger.learned, adaptive_timeout.learned(ledger.learned, attempt.ranks, policy.limits.start)
    ledger = ledger._replace(learned=known)
    if known is None or (before is not None and before.limit == known.limit):
        return ledger, ()
    fields = (("limit", known.limit), ("why", adaptive_timeout.reason(known)), ("usual", known.usual))
    return ledger, (do.Persist("learned", (*fields, ("longest", known.longest), ("steps", known.intervals))),)


def saved(job: Job, phase: Phase, event: ev.CheckpointSaved, policy: Policy) -> Outcome:
    """A new checkpoint file is progress.  One from before this start is progress of the attempt before it, so that the
    restart which began this attempt stays the first in a row."""
    attempt = None if isinstance(phase, Pending | Healing | Done) else phase.attempt
    if not event.renamed and _cut_off(phase, attempt, event.at):
        return job, ()
    ledger, want = job.ledger._replace(hang=0, fault=0, failure=0, reached=True), job.want
    ledger = ledger._replace(last_checkpoint=event.path)
    if attempt is not None and event.at < attempt.spawned_at and ledger.reason in CAUSES:
        ledger = ledger.counted(ledger.reason)
    if isinstance(want, Restart) and want.reason in CAUSES:
        ledger = ledger.counted(want.reason)
        want = want._replace(consecutive=ledger.count(want.reason))
    written = _progress(job.ledger, "checkpoint", _step(attempt, job.ledger.last_step), event.path, event.at)
    if attempt is not None and not attempt.progressed and event.at >= attempt.spawned_at:
        assert not isinstance(phase, Pending | Healing | Done)
        job = job._replace(phase=phase._replace(attempt=attempt._replace(progressed=True)))
    return job._replace(want=want, ledger=ledger), (written,)


def _step(attempt: Attempt | None, last: int | None) -> int | None:
    """The step of this attempt when the heartbeats were last read.  Not every rank is asked, since hundreds of files
    may appear in a second."""
    stepped = attempt is not None and any(rank.step is not None for rank in attempt.ranks)
    return last if stepped else None


def _cut_off(phase: Phase, attempt: Attempt | None, at: float) -> bool:
    """Whether a kill by ftrun may have closed a file that was still being written, which is no checkpoint."""
    if attempt is None or (isinstance(phase, Stopping) and phase.stage != "asked"):
        return True
    return attempt.number > 1 and at < attempt.spawned_at + AT_REST


def looked(job: Job, phase: Starting | Running, event: ev.BeatsRead, policy: Policy) -> Outcome:
    job, attempt, written = credit(job, _seen(phase.attempt, event), event.now, policy)
    return watch(job, attempt, event.now, policy, written)


def _seen(attempt: Attempt, event: ev.BeatsRead | ev.EvidenceCollected) -> Attempt:
    """The attempt with these heartbeats.  A limit stays raised until the hooks have counted the silence that raised it.
    Where a launcher with restarts of its own has replaced all processes that had moved, the new ones begin now."""
    seen = attempt._replace(ranks=event.ranks)
    if isinstance(event, ev.BeatsRead):
        seen = seen._replace(barred=event.barred)
    if attempt.raised:
        counted = {rank.rank: rank.intervals for rank in attempt.ranks}
        still = {rank.rank for rank in event.ranks if rank.intervals == counted.get(rank.rank)}
        seen = seen._replace(raised=tuple(raised for raised in attempt.raised if raised.rank in still))
    return forgiven(seen, attempt.spawned_at, event.now) if attempt.moved and not seen.moved else seen


def sampled(job: Job, phase: Starting | Running | Suspect, event: ev.TreeSampled, policy: Policy) -> Outcome:
    """What the tree did in a period.  Work ends the suspicion that the tree is idle."""
    attempt = phase.attempt._replace(idle=observe(phase.attempt.idle, event.sample, policy.work))
    if not isinstance(phase, Suspect):
        return watch(job, attempt, event.now, policy)
    still = attempt.everywhere and unchanged_for(attempt.idle, event.now) > 0
    if phase.finding.rule == "idle" and attempt.idle.since is None and not still:
        return _clear(job, attempt, event.now, "it works", policy, ())
    return job._replace(phase=phase._replace(attempt=attempt)), ()


def ticked(job: Job, phase: Starting | Running, event: ev.DeadlineReached, policy: Policy) -> Outcome:
    return watch(job, phase.attempt, event.now, policy)


def overslept(job: Job, phase: Starting | Running | Suspect, event: ev.WokeLate, policy: Policy) -> Outcome:
    """Time in which ftrun was frozen does not count as silence.  A suspicion is dropped and the attempt is checked
    again."""
    attempt = forgiven(phase.attempt, event.since, event.now)
    return watch(job, attempt, event.now, policy, dropped(phase, "frozen in the meantime"))


def dropped(phase: Starting | Running | Suspect, why: str) -> Effects:
    return (do.Persist("cleared", (("why", why),)),) if isinstance(phase, Suspect) else ()


def halted(job: Job, phase: Starting | Running | Suspect, event: ev.CommandStopped, policy: Policy) -> Outcome:
    """A command that the user has stopped stays stopped, and is not a hang."""
    since = event.now if phase.attempt.stopped_at is None else phase.attempt.stopped_at
    attempt = phase.attempt._replace(stopped_at=since)
    return watch(job, attempt, event.now, policy, dropped(phase, "stopped by the user"))


def continued(job: Job, phase: Starting | Running | Suspect, event: ev.CommandContinued, policy: Policy) -> Outcome:
    attempt = phase.attempt
    if attempt.stopped_at is None:
        return job, ()
    attempt = forgiven(attempt._replace(stopped_at=None), attempt.stopped_at, event.now)
    return watch(job, attempt, event.now, policy)


def looked_again(job: Job, phase: Suspect, event: ev.BeatsRead, policy: Policy) -> Outcome:
    job, attempt, written = credit(job, _seen(phase.attempt, event), event.now, policy)
    finding = assess(attempt, event.now, policy.limits, job.ledger.learned, phase.finding).finding
    if finding is None or not same(finding, phase.finding):
        return _clear(job, _raised(attempt, phase.finding), event.now, "it moved", policy, written)
    return job._replace(phase=phase._replace(attempt=attempt)), written


def evidenced(job: Job, phase: Suspect, event: ev.EvidenceCollected, policy: Policy) -> Outcome:
    """Evidence counts only for the rank that it was collected from."""
    job, attempt, written = credit(job, _seen(phase.attempt, event), event.now, policy)
    finding = assess(attempt, event.now, policy.limits, job.ledger.learned, phase.finding).finding
    if finding is None or not same(finding, phase.finding):
        return _clear(job, _raised(attempt, phase.finding), event.now, "it moved", policy, written)
    if event.cleared is not None:
        excused = _excused(attempt, finding, event.now)
        return _clear(job, excused, event.now, event.cleared, policy, written)
    return _hang(job, phase._replace(attempt=attempt, finding=finding), event.now, policy, event.evidence, written)


def _excused(attempt: Attempt, finding: Finding, now: float) -> Attempt:
    """The attempt after this silence was found harmless: a learned limit is raised; with a configured limit, the time
    so far does not count as silence."""
    raises = finding.learned or finding.rule == "idle"
    return _raised(attempt, finding) if raises else forgiven(attempt, attempt.spawned_at, now)


def _fields(finding: Finding) -> tuple[tuple[str, object], ...]:
    return tuple((name, value) for name, value in finding._asdict().items() if name != "learned" or value)


def _raised(attempt: Attempt, finding: Finding) -> Attempt:
    """A learned limit was too short; the next one is twice the age of this silence.  If the rank hangs before that, it
    is found when that limit passes."""
    if finding.rule == "idle":
        return attempt._replace(idle=attempt.idle._replace(raised=2 * finding.age, still_raised=2 * finding.age))
    if not finding.learned:
        return attempt
    if finding.rank is None:
        return attempt._replace(start_raised=2 * finding.age)
    others = tuple(r for r in attempt.raised if r.rank != finding.rank)
    return attempt._replace(raised=(*others, RaisedLimit(finding.rank, 2 * finding.age)))


def unproven(job: Job, phase: Suspect, event: ev.DeadlineReached, policy: Policy) -> Outcome:
    """The evidence did not come in time, and must not delay the verdict further.  A learned timeout alone never kills a
    rank."""
    if phase.finding.learned:
        excused = _raised(phase.attempt, phase.finding)
        return _clear(job, excused, event.now, "no evidence in time", policy, ())
    return _hang(job, phase, event.now, policy, (("evidence", "none in time"),), ())


def _clear(job: Job, attempt: Attempt, now: float, why: str, policy: Policy, so_far: Effects) -> Outcome:
    return watch(job, attempt, now, policy, (*so_far, do.Persist("cleared", (("why", why),))))


def _hang(
    job: Job, phase: Suspect, now: float, policy: Policy, evidence: tuple[tuple[str, object], ...], so_far: Effects
) -> Outcome:
    fields = _fields(phase.finding) + evidence
    why, seen = hang_rules.sentence(phase.finding), dict(evidence)
    fault = blamed(phase.attempt, policy)
    if fault is not None or not policy.hangs_stand:
        so_far += (do.Persist("hang", fields, durable=True),)
    if fault is not None:
        why = f"{why}, after device {fault.device} reported {fault.code}"
    why = sentences.sentence(why, sentences.stack(seen))
    cause: Cause = "hang" if fault is None else "fault"
    if fault is None and policy.hangs_stand:
        return _left(job, phase, now, why, policy, so_far)
    job, effects = restart_or_escalate(job, phase.attempt, cause, why, now, policy, so_far, fault=fault, seen=seen)
    who = phase.finding
    blame = job.blame and job.blame._replace(rank=who.rank, step=who.step, waits=seen.get("waits") is True)
    return job._replace(blame=blame), effects


def _left(job: Job, phase: Suspect, now: float, why: str, policy: Policy, so_far: Effects) -> Outcome:
    """Report a hang and leave the command as it is.

    ModelArts: a suspended job does not end its container, so it triggers no rescheduling; jobs are monitored for
    suspension only where restart upon suspension is enabled ("Recovering a Training Job", "Restart upon Suspension").
    """
    attempt, finding = phase.attempt, phase.finding
    if not attempt.reported:
        left = "the command is left as it is, since fault-tolerance/hang-retry is not set"
        so_far += (do.LogLine(sentences.sentence(why, left)),)
    excused = _excused(attempt, finding, now)
    return _clear(job, excused._replace(reported=True), now, f"left as it is: {why}", policy, so_far)
