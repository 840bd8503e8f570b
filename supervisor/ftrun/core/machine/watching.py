"""Watching an attempt: its progress, whether it moves, and how a suspicion is resolved."""

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.device_faults import fault_that_ended, regain_if_due
from ftrun.core.machine.pause import NOTED, excuse, is_over, lift
from ftrun.core.machine.states import (
    Done,
    Healing,
    Job,
    Pending,
    Phase,
    Restart,
    Running,
    Starting,
    Stopping,
    Suspect,
    Watched,
)
from ftrun.core.machine.stopping import AttemptEnd, Effects, Outcome, restart_or_escalate
from ftrun.core.machine.values import (
    CAUSES,
    Attempt,
    Cause,
    EarlyEvidence,
    Finding,
    Ledger,
)
from ftrun.core.rules import early_evidence, hang_rules, looks, stalls
from ftrun.core.rules.idle import observe, unchanged_for
from ftrun.core.rules.liveness import assess, is_same, time_awake
from ftrun.core.rules.policy import Policy, is_beyond, progress, step_of, with_progress
from ftrun.core.text import durations, sentences

AT_REST = 6.0  # s; a file that was written in place before a kill has been reported as at rest by then


def check(job: Job, attempt: Attempt, now: float, policy: Policy, so_far: Effects = ()) -> Outcome:
    """Check the attempt as it was last seen.  A finding is a suspicion that evidence has to confirm."""
    if attempt.moved and isinstance(job.phase, Starting | Suspect) and not job.phase.attempt.moved:
        first = next(r for r in attempt.ranks if r.moved_at is not None)
        fields = (("rank", first.rank), ("step", first.step), *((("source", first.source),) if first.source else ()))
        so_far = (do.Persist("first_beat", fields), *so_far)
        job = job._replace(ledger=_with_first_beat(job.ledger, attempt))
    if is_over(job, now):
        job, attempt, effects = lift(job, attempt, now)
        so_far += effects
    if attempt.stopped_at is not None or job.paused is not None:
        attempt = early_evidence.drop(looks.forget(attempt, now), now)
        return job._replace(phase=_watched_phase(attempt, job.paused and job.paused.until)), so_far
    link_due: float | None = None
    if attempt.rounds.is_changing or attempt.link is not None:
        from ftrun.core.machine import recovering  # only where ftrun starts the ranks

        wait = recovering.wait if attempt.rounds.is_changing else recovering.wait_for_library
        recovery = wait(job, attempt, now, policy, so_far)
        if recovery.failed is not None:
            return recovering.end_attempt(recovery, now, policy)
        job, attempt, so_far = recovery.job, recovery.attempt, recovery.effects
        link_due = recovering.library_due(attempt, now)
    if attempt.rounds.is_under_way:  # nobody is expected to move
        attempt = early_evidence.drop(attempt, now)
        return job._replace(phase=_watched_phase(attempt, attempt.rounds.deadline)), so_far
    assessment = assess(attempt, now, policy.limits)
    finding = assessment.finding
    if finding is not None and link_due is not None:  # what stands still may wait for the link
        attempt = early_evidence.drop(attempt, now)
        return job._replace(phase=_watched_phase(attempt, link_due)), so_far
    if finding is None:
        upcoming, due = assessment.upcoming, assessment.due
        attempt, begin_at, begin = early_evidence.follow(attempt, upcoming, due, now)
        attempt, looked_at, effects = _look(attempt, now, policy)
        if begin is not None:
            effects = (*effects, do.Investigate(begin, due))
        attempt, noticed_at, stall = stalls.follow(attempt, now, policy.limits, job.ledger.learned)
        if stall is not None:
            effects = (*effects, *_notice(stall))
        times = assessment.deadline, looked_at, begin_at, attempt.rounds.next_read(now), link_due, noticed_at
        deadline = min((at for at in times if at is not None), default=None)
        job = job._replace(phase=_watched_phase(attempt, deadline))
        return regain_if_due(job, now, policy, (*so_far, *effects))
    attempt = attempt._replace(early=EarlyEvidence(earliest=attempt.early.earliest))  # it is in use now
    suspect = Suspect(attempt, finding, now + policy.limits.evidence_timeout)
    return job._replace(phase=suspect), (
        *so_far,
        do.Persist("suspect", _finding_fields(finding)),
        do.Investigate(finding),
    )


def _look(attempt: Attempt, now: float, policy: Policy) -> tuple[Attempt, float | None, Effects]:
    """Begin a look if one is due; with the time at which the next one is due."""
    if not policy.limits.auto or attempt.early.finding is not None:  # both need the same helper
        return attempt, None, ()
    attempt, effects = looks.follow(attempt), list[do.Effect]()
    if (at := looks.due(attempt, now)) is not None and at <= now:
        attempt = looks.begin(attempt, now)
        effects.append(do.Look())
    return attempt, looks.due(attempt, now), tuple(effects)


def _notice(stall: stalls.UnusualPause) -> Effects:
    """The record of a stall that is not known to be a hang, and the line about it."""
    rank, age, wait = stall
    fields = (("rank", rank.rank), ("step", rank.step), ("age", age), ("wait", wait), ("advice", stalls.ADVICE))
    since = f"{sentences.rank(rank.rank)} has not moved for {durations.seconds(age)}"
    return do.Persist("stalled", fields), do.LogLine(sentences.sentence(since, wait, stalls.ADVICE))


def on_looked(job: Job, phase: Starting | Running, event: ev.Looked, policy: Policy) -> Outcome:
    """A look that a movement or a pause has overtaken is dropped."""
    if phase.attempt.look.begun is None:
        return job, ()
    age, attempt = looks.age_of(phase.attempt, event.now), looks.end(phase.attempt, event)
    why = attempt.look.wait
    if event.failed or age < looks.RECORDED or why == attempt.look.recorded:
        return check(job, attempt, event.now, policy)
    attempt = attempt._replace(look=attempt.look._replace(recorded=why))
    written = do.Persist("look", (("age", age), ("open", event.open_reason is not None), ("why", why)))
    return check(job, attempt, event.now, policy, (written,))


def _watched_phase(attempt: Attempt, deadline: float | None) -> Starting | Running:
    return Running(attempt, deadline) if attempt.moved else Starting(attempt, deadline)


def _with_first_beat(ledger: Ledger, attempt: Attempt) -> Ledger:
    """The ledger with the time that this attempt took to its first movement, if that is the longest so far."""
    first = min(rank.moved_at for rank in attempt.ranks if rank.moved_at is not None)
    taken = time_awake(attempt.spawned_at, first, attempt.aways)
    return ledger._replace(first_beat=max(taken, ledger.first_beat or 0.0))


def record_progress(job: Job, attempt: Attempt, now: float, policy: Policy) -> tuple[Job, Attempt, Effects]:
    """Record the progress of the attempt: every new checkpoint, and the first step beyond all earlier attempts; also
    which pauses of its ranks are usual."""
    what = progress(job.ledger, attempt, now, policy)
    ledger = with_progress(job.ledger, attempt, what)
    ledger, written = _learn(ledger, attempt, policy)
    if what is None or (what != "checkpoint" and attempt.progressed):
        return job._replace(ledger=ledger), attempt, written
    saved = next((rank.saved[-1].path for rank in attempt.ranks if rank.saved), None)
    path = saved if what == "save" else ledger.last_checkpoint
    # Other ranks may be a step further when the heartbeats are read.
    step = ledger.best_checkpoint if what == "checkpoint" else attempt.step
    record = _progress_record(job.ledger, what, step, path)
    return job._replace(ledger=ledger), attempt._replace(progressed=True), (*written, record)


def _progress_record(
    before: Ledger, by: str, step: int | None, checkpoint: str | None, seen: float | None = None
) -> do.Persist:
    counted = before.hang + before.fault + before.failure > 0
    fields: do.Fields = (("by", by), ("step", step), ("checkpoint", checkpoint))
    return do.Persist("progress", fields if seen is None else (*fields, ("seen", seen)), durable=counted)


def _learn(ledger: Ledger, attempt: Attempt, policy: Policy) -> tuple[Ledger, Effects]:
    if not policy.limits.auto:
        return ledger, ()
    before, known = ledger.learned, stalls.learn(ledger.learned, attempt.ranks)
    ledger = ledger._replace(learned=known)
    if known is None or (before is not None and before.usual == known.usual):
        return ledger, ()
    notice = stalls.unusual_from(None, known)
    fields = (("usual", known.usual), ("longest", known.longest), ("steps", known.steps), ("notice", notice))
    return ledger, (do.Persist("learned", fields),)


def on_checkpoint_saved(job: Job, phase: Phase, event: ev.CheckpointSaved, policy: Policy) -> Outcome:
    """A checkpoint file is progress if its step is beyond the highest so far, or its name has none, so that each save
    replaces the one before.  One from before this start is progress of the attempt before it, so that the restart
    which began this attempt stays the first in a row."""
    attempt = None if isinstance(phase, Pending | Healing | Done) else phase.attempt
    if not event.renamed and _is_cut_off(phase, attempt, event):
        return job, ()
    step = step_of(event.path)
    if step is not None and not is_beyond(step, job.ledger.best_checkpoint):  # a job that starts from scratch each time
        if not event.older:
            job = job._replace(ledger=job.ledger._replace(last_checkpoint=event.path))
        if attempt is None or event.at < attempt.spawned_at or not (policy.membership.elastic or policy.scale_out):
            return job, ()
        assert not isinstance(phase, Pending | Healing | Done)
        job = job._replace(phase=phase._replace(attempt=attempt._replace(saves=attempt.saves + 1)))
        return regain_if_due(job, event.now, policy, ())
    ledger, want = job.ledger._replace(hang=0, fault=0, failure=0, reached=True), job.want
    best = ledger.best_checkpoint if step is None else step
    last = ledger.last_checkpoint if step is None and event.older else event.path
    ledger = ledger._replace(last_checkpoint=last, best_checkpoint=best)
    if attempt is not None and event.at < attempt.spawned_at and ledger.reason in CAUSES:
        ledger = ledger.counted(ledger.reason)
    if isinstance(want, Restart) and want.reason in CAUSES:
        ledger = ledger.counted(want.reason)
        want = want._replace(consecutive=ledger.count(want.reason))
    # The step when the heartbeats were last read: hundreds of files may appear in a second.
    stepped = attempt is not None and any(rank.step is not None for rank in attempt.ranks)
    known = job.ledger.last_step if stepped else None
    written = _progress_record(job.ledger, "checkpoint", known, event.path, event.at)
    if (
        attempt is not None
        and event.at >= attempt.spawned_at
        and (policy.membership.elastic or policy.scale_out or not attempt.progressed)
    ):
        assert not isinstance(phase, Pending | Healing | Done)
        attempt = attempt._replace(progressed=True, saves=attempt.saves + 1)
        job = job._replace(phase=phase._replace(attempt=attempt))
    return regain_if_due(job._replace(want=want, ledger=ledger), event.now, policy, (written,))


def _is_cut_off(phase: Phase, attempt: Attempt | None, event: ev.CheckpointSaved) -> bool:
    """Whether a kill by ftrun may have closed a file that was still being written, which is no checkpoint."""
    if attempt is None or (isinstance(phase, Stopping) and phase.stage != "asked"):
        return True
    if event.written is not None and event.written >= attempt.launched_at:
        return False
    return attempt.number > 1 and event.at < attempt.spawned_at + AT_REST


def on_beats_read(job: Job, phase: Starting | Running, event: ev.BeatsRead, policy: Policy) -> Outcome:
    job, attempt, written = record_progress(job, _with_beats(phase.attempt, event), event.now, policy)
    return check(job, attempt, event.now, policy, written)


def _with_beats(attempt: Attempt, event: ev.BeatsRead | ev.EvidenceCollected) -> Attempt:
    """The attempt with these heartbeats.  Where a launcher with restarts of its own has replaced all processes that had
    moved, the new ones begin now."""
    seen = attempt._replace(ranks=event.ranks)
    if isinstance(event, ev.BeatsRead):
        seen = seen._replace(cannot_beat=event.cannot_beat, frameworks=event.frameworks)
    seen = looks.follow(seen)
    return excuse(seen, attempt.spawned_at, event.now) if attempt.moved and not seen.moved else seen


def on_tree_sampled(job: Job, phase: Watched, event: ev.TreeSampled, policy: Policy) -> Outcome:
    """What the tree did in a period.  Work ends the suspicion that the tree is idle."""
    attempt = phase.attempt._replace(idle=observe(phase.attempt.idle, event.sample, policy.work))
    if not isinstance(phase, Suspect):
        return check(job, attempt, event.now, policy)
    unchanged = attempt.group_is_idle and unchanged_for(attempt.idle, event.now) > 0
    if hang_rules.RULES[phase.finding.rule].by_work and attempt.idle.idle_since is None and not unchanged:
        return _clear(job, attempt, event.now, "it works", policy, ())
    return job._replace(phase=phase._replace(attempt=attempt)), ()


def on_deadline_reached(job: Job, phase: Starting | Running, event: ev.DeadlineReached, policy: Policy) -> Outcome:
    return check(job, phase.attempt, event.now, policy)


def on_woke_late(job: Job, phase: Watched, event: ev.WokeLate, policy: Policy) -> Outcome:
    """Time in which ftrun was frozen does not count as silence.  A suspicion is dropped and the attempt is checked
    again."""
    attempt, away = excuse(phase.attempt, event.since, event.now), event.now - event.since
    written = cleared_record(phase, "frozen in the meantime")
    if away >= NOTED:
        written += (do.Persist("frozen", (("seconds", away),)), do.LogLine(sentences.frozen(away)))
    return check(job, attempt, event.now, policy, written)


def cleared_record(phase: Watched, why: str) -> Effects:
    return (do.Persist("cleared", (("why", why),)),) if isinstance(phase, Suspect) else ()


def on_command_stopped(job: Job, phase: Watched, event: ev.CommandStopped, policy: Policy) -> Outcome:
    """A command that the user has stopped stays stopped, and is not a hang."""
    since = event.now if phase.attempt.stopped_at is None else phase.attempt.stopped_at
    attempt = phase.attempt._replace(stopped_at=since)
    return check(job, attempt, event.now, policy, cleared_record(phase, "stopped by the user"))


def on_command_continued(job: Job, phase: Watched, event: ev.CommandContinued, policy: Policy) -> Outcome:
    attempt = phase.attempt
    if attempt.stopped_at is None:
        return job, ()
    attempt = excuse(attempt._replace(stopped_at=None), attempt.stopped_at, event.now)
    return check(job, attempt, event.now, policy)


def on_beats_read_suspect(job: Job, phase: Suspect, event: ev.BeatsRead, policy: Policy) -> Outcome:
    job, attempt, written = record_progress(job, _with_beats(phase.attempt, event), event.now, policy)
    finding = assess(attempt, event.now, policy.limits, phase.finding).finding
    if finding is None or not is_same(finding, phase.finding):
        return _clear(job, _raise_limit(attempt, phase.finding), event.now, "it moved", policy, written)
    return job._replace(phase=phase._replace(attempt=attempt)), written


def on_evidence_collected(job: Job, phase: Suspect, event: ev.EvidenceCollected, policy: Policy) -> Outcome:
    """Evidence counts only for the rank that it was collected from."""
    job, attempt, written = record_progress(job, _with_beats(phase.attempt, event), event.now, policy)
    finding = assess(attempt, event.now, policy.limits, phase.finding).finding
    if finding is None or not is_same(finding, phase.finding):
        return _clear(job, _raise_limit(attempt, phase.finding), event.now, "it moved", policy, written)
    if event.cleared is not None:
        excused = _excuse(attempt, finding, event.now)
        return _clear(job, excused, event.now, event.cleared, policy, written)
    return _declare_hang(
        job, phase._replace(attempt=attempt, finding=finding), event.now, policy, event.evidence, written
    )


def _excuse(attempt: Attempt, finding: Finding, now: float) -> Attempt:
    """The attempt after this silence was found harmless: it is looked for again later; with a given timeout, the time
    so far does not count as silence."""
    rule = hang_rules.RULES[finding.rule]
    return _raise_limit(attempt, finding) if rule.by_proof or rule.by_work else excuse(attempt, attempt.spawned_at, now)


def _finding_fields(finding: Finding) -> do.Fields:
    return tuple((name, value) for name, value in finding._asdict().items() if name != "mechanism" or value)


def _raise_limit(attempt: Attempt, finding: Finding) -> Attempt:
    """The finding was refuted: the same rule applies again once the silence is twice as long."""
    return hang_rules.RULES[finding.rule].raised(attempt, finding.age)


def on_deadline_reached_suspect(job: Job, phase: Suspect, event: ev.DeadlineReached, policy: Policy) -> Outcome:
    """The evidence did not come in time, and must not delay the verdict of a given timeout further."""
    if hang_rules.needs_evidence(phase.finding, policy.limits.idle_given):
        excused = _raise_limit(phase.attempt, phase.finding)
        return _clear(job, excused, event.now, "no evidence in time", policy, ())
    return _declare_hang(job, phase, event.now, policy, (("evidence", "none in time"),), ())


def _clear(job: Job, attempt: Attempt, now: float, why: str, policy: Policy, so_far: Effects) -> Outcome:
    return check(job, attempt, now, policy, (*so_far, do.Persist("cleared", (("why", why),))))


def _declare_hang(
    job: Job, phase: Suspect, now: float, policy: Policy, evidence: do.Fields, so_far: Effects
) -> Outcome:
    fields = tuple(dict((*_finding_fields(phase.finding), *evidence)).items())
    why, seen = hang_rules.sentence(phase.finding), dict(evidence)
    fault = fault_that_ended(phase.attempt, policy)
    if fault is not None or not policy.only_report_hangs:
        so_far += (do.Persist("hang", fields, durable=True),)
    if fault is not None:
        why = f"{why}, after device {fault.device} reported {fault.code}"
    elif phase.attempt.is_at_end:
        why += ", after the training had reached its end or its exit"
    new = seen | {"mechanism": None} if phase.finding.mechanism else seen  # what the sentence does not have yet
    explained = sentences.sentence(why, sentences.mechanism(new))
    # What waits for what is more than a stack, which the report has, too.
    why = why if phase.finding.mechanism and len(explained) > sentences.REASON else explained
    cause: Cause = "hang" if fault is None else "fault"
    if fault is None and policy.only_report_hangs:
        return _report_only(job, phase, now, why, policy, so_far)
    if fault is None and phase.attempt.rounds.is_open and not phase.attempt.is_at_end:
        from ftrun.core.machine import recovering  # only where ftrun starts the ranks

        recovery = recovering.from_hang(job, phase.attempt, why, seen.get("culprits"), now, policy)
        if recovery.failed is None:
            return check(recovery.job, recovery.attempt, now, policy, so_far + recovery.effects)
        job, so_far = recovery.job, so_far + recovery.effects
    end = AttemptEnd(now, cause, why, fault=fault, evidence=seen)
    job, effects = restart_or_escalate(job, phase.attempt, end, policy, so_far)
    who = phase.finding
    blame = job.blame and job.blame._replace(rank=who.rank, step=who.step, waits=seen.get("waits") is True)
    blame = blame and blame._replace(proved=hang_rules.RULES[who.rule].by_proof)
    return job._replace(blame=blame), effects


def _report_only(job: Job, phase: Suspect, now: float, why: str, policy: Policy, so_far: Effects) -> Outcome:
    """Report a hang and leave the command as it is.

    ModelArts: a suspended job does not end its container, so it triggers no rescheduling; jobs are monitored for
    suspension only where restart upon suspension is enabled ("Recovering a Training Job", "Restart upon Suspension").
    """
    attempt, finding = phase.attempt, phase.finding
    if not attempt.hang_reported:
        left = "the command is left as it is, since fault-tolerance/hang-retry is not set"
        so_far += (do.LogLine(sentences.sentence(why, left)),)
    excused = _excuse(attempt, finding, now)
    return _clear(job, excused._replace(hang_reported=True), now, f"left as it is: {why}", policy, so_far)
