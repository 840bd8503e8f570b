"""Before the first start: what it waits for, and what prevents it."""

from typing import Final

from ftrun.core.machine import device_faults, restarting
from ftrun.core.machine import events as ev
from ftrun.core.machine.group_member import heal_at_barrier
from ftrun.core.machine.restarting import ANSWER, launch
from ftrun.core.machine.states import Done, Job, KeepRunning, Pending, Phase
from ftrun.core.machine.stopping import Effects, Outcome
from ftrun.core.rules.fault_history import earlier_schedules, highest, merge, reached_before, schedules_before
from ftrun.core.rules.policy import Policy, is_beyond

# s in which the devices must be checked before the first start.  The first call to a driver may take seconds, and a
# tool that asks 16 chips takes longer; a missing answer is not a fault, so a longer wait gains nothing.
CHECK: Final = 10.0


def on_started(job: Job, phase: Pending, event: ev.Started, policy: Policy) -> Outcome:
    """Start at once, or after the platform, the probe and the state dir have answered or their time is over."""
    asked = (("platform", policy.asks_platform), ("devices", policy.checks_devices))
    awaits = frozenset(name for name, on in asked if on)
    if (policy.checks_devices and policy.membership.shared) or _recalls(job, policy):
        awaits |= {"history"}
    if awaits:
        return job._replace(phase=Pending(event.now + (CHECK if policy.checks_devices else ANSWER), awaits)), ()
    return launch(job, event.now, policy, "started")


def _recalls(job: Job, policy: Policy) -> bool:
    """Whether the command is to see where an earlier schedule was, and this ftrun does not know it yet."""
    return policy.membership.recalls and job.ledger.last_step is None and job.ledger.last_checkpoint is None


def on_woke_late(job: Job, phase: Pending, event: ev.WokeLate, policy: Policy) -> Outcome:
    if phase.awaits:
        return restarting.on_woke_late(job, phase, event, policy)
    return on_deadline_reached(job, phase, ev.DeadlineReached(event.now), policy)


def on_deadline_reached(job: Job, phase: Pending, event: ev.DeadlineReached, policy: Policy) -> Outcome:
    written: Effects = ()
    for fault in phase.preexisting:
        if device_faults.has_not_healed(job, fault, policy):
            why = "; ".join(filter(None, (fault.fault.why, "it has not healed since an earlier schedule")))
            lasting = fault.fault._replace(severity="critical", why=why)
            job, more = device_faults.handle_preexisting(job, fault._replace(fault=lasting), policy)
            written += more
        if isinstance(job.phase, Done):
            return job, written
    if device_faults.has_to_wait(job):
        return device_faults.begin_healing(job, None, event.now, policy, written)
    job, more = launch(job, event.now, policy, "started" if isinstance(job.want, KeepRunning) else "restart")
    return job, written + more


def on_start_permission(job: Job, phase: Pending, event: ev.StartPermission, policy: Policy) -> Outcome:
    """The platform's first answer."""
    job = job._replace(held=event.why, leaving=event.ends)
    if not isinstance(job.want, KeepRunning) or phase.deadline is None:
        return heal_at_barrier(job, phase, event.now, policy, ())
    return _note_answer(job, phase, "platform", event.now, policy)


def on_devices_checked(job: Job, phase: Pending, event: ev.DevicesChecked, policy: Policy) -> Outcome:
    """The devices were checked.  Devices that an earlier ftrun of this run dir removed may be used again."""
    written: Effects = ()
    if "devices" in phase.awaits:
        job, written = device_faults.return_devices(job, event, policy)
    if not phase.preexisting and not _recalls(job, policy):  # the history was awaited for devices with a fault only
        phase = phase._replace(awaits=phase.awaits - {"history"})
    job, effects = _note_answer(job, phase, "devices", event.now, policy)
    return job, written + effects


def on_history_loaded(job: Job, phase: Phase, event: ev.HistoryLoaded, policy: Policy) -> Outcome:
    """The history of the state dir.  Progress that was made before it arrived counts only if it lies beyond all earlier
    progress.  Schedules and faults of another job are left out: ModelArts ("In-Place Recovery", degradation policies)
    counts faults within a single training."""
    ledger, own = job.ledger, policy.membership
    schedules = [s for s in event.schedules if not own.job or s.job == own.job]
    same_phase = [s for s in schedules if s.phase == own.phase]
    past = schedules_before(same_phase, ledger.schedule_cnt)
    jobs = {ledger.job, *(s.job for s in earlier_schedules(schedules, ledger.schedule_cnt))}
    step, checkpoint = highest(s.best_step for s in past), highest(s.best_checkpoint for s in past)
    reached = reached_before(same_phase, ledger.schedule_cnt, own.member)
    progressed = ledger.best_step is not None or ledger.best_checkpoint is not None
    further = is_beyond(ledger.best_step, step) or is_beyond(ledger.best_checkpoint, checkpoint)
    ledger = ledger._replace(
        reached=ledger.reached and (further or not progressed),
        best_step=highest((step, ledger.best_step)),
        best_checkpoint=highest((checkpoint, ledger.best_checkpoint)),
        last_step=reached.step if ledger.last_step is None else ledger.last_step,
        last_checkpoint=reached.checkpoint if ledger.last_checkpoint is None else ledger.last_checkpoint,
        occurrences=merge([one for one in event.occurrences if one.job in jobs], ledger.occurrences),
    )
    job = job._replace(ledger=ledger, past=past)
    return _note_answer(job, phase, "history", event.now, policy) if isinstance(phase, Pending) else (job, ())


def on_fault_reported(job: Job, phase: Pending, event: ev.FaultReported, policy: Policy) -> Outcome:
    if event.preexisting and isinstance(job.want, KeepRunning):
        job, written = device_faults.handle_preexisting(job, event, policy)
        if isinstance(job.phase, Pending) and phase.awaits and event.fault.acts and not event.fault.is_final:
            job = job._replace(phase=phase._replace(preexisting=(*phase.preexisting, event)))
        return job, written
    job, written = device_faults.on_fault_reported_between(
        job, phase, device_faults.downgrade_preexisting(event), policy
    )
    return heal_at_barrier(job, job.phase, event.now, policy, written)


def _note_answer(job: Job, phase: Pending, source: str, now: float, policy: Policy) -> Outcome:
    """One of the answers that the first start waits for has come."""
    if source not in phase.awaits:
        return job, ()
    phase = phase._replace(awaits=phase.awaits - {source})
    job = job._replace(phase=phase)
    return (job, ()) if phase.awaits else on_deadline_reached(job, phase, ev.DeadlineReached(now), policy)
