"""Device faults: which ones act at once, which are only recorded, and how a fault is healed before the next start.

Devices that were taken out and are well again are used again by the next start, or at a checkpoint, where that is asked
for.  In a group rank 0 decides the moment, since a checkpoint may have a part of each member (`_scale_out` in
core/group/coordinator.py).
"""

from collections.abc import Collection, Sequence

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine import stopping
from ftrun.core.machine.pause import postpone_fault
from ftrun.core.machine.states import (
    Blame,
    Finish,
    Healing,
    Job,
    KeepRunning,
    Pending,
    Phase,
    Restart,
    Running,
    Starting,
    Stopping,
    Watched,
)
from ftrun.core.machine.stopping import AttemptEnd, Effects, Outcome
from ftrun.core.machine.values import Attempt, Fault, UsableDevice, VisibleDevices
from ftrun.core.rules import exit_codes
from ftrun.core.rules.fault_history import DAY, NO_CODE, TIMES, Clock, Occurrence, age, merge
from ftrun.core.rules.policy import Policy, is_exhausted
from ftrun.core.text import durations, sentences

AFTERMATH = 60.0  # s; training that still moves so long after a user-induced fault did not fail because of it


def on_fault_reported(job: Job, phase: Watched, event: ev.FaultReported, policy: Policy) -> Outcome:
    """Warnings, unknown codes and faults of severity `user` are only recorded, since the command can continue."""
    if job.paused is not None:
        return postpone_fault(job, event)
    fault = event.fault
    job, attempt, written = record_fault(job, phase.attempt, event, policy)
    if not fault.acts or fault.mark in phase.attempt.counted_faults or fault.device in job.ledger.removed:
        return job._replace(phase=phase._replace(attempt=attempt)), written
    return stop_for_fault(job, attempt, fault, event.now, policy, written)


def stop_for_fault(job: Job, attempt: Attempt, fault: Fault, now: float, policy: Policy, written: Effects) -> Outcome:
    """Stop the attempt because of this fault: to heal it, to continue without the device, or to leave the node.  There
    is no grace: nothing can be finished on a faulty device, and a checkpoint from it would be worse than none."""
    why = description(fault)
    not_healable = why_not_healable(job, fault, policy)
    if not_healable is None or fault.by_user:
        end = AttemptEnd(now, "fault", why, fault=fault, grace=0.0)
        return stopping.restart_or_escalate(job, attempt, end, policy, written)
    why += not_healable
    smaller = remove_device(job, fault, policy)
    if smaller is not None and not is_exhausted(job.ledger, "fault", policy):
        job, removed = smaller
        end = AttemptEnd(now, "fault", f"{why}, continuing without it", grace=0.0)
        return stopping.restart_or_escalate(job, attempt, end, policy, (*written, removed))
    want = stopping.finish_with(exit_codes.NODE_FAULT, why, fault.device)
    written += (stopping.escalation_record("fault", want),)
    line = sentences.sentence(why, sentences.killing({}), stopping.exit_text(want))
    return stopping.stop(job._replace(want=want), attempt, now, policy, written, line, grace=0.0)


def record_fault(job: Job, attempt: Attempt, event: ev.FaultReported, policy: Policy) -> tuple[Job, Attempt, Effects]:
    """Record the fault.  One that acts, or that the program caused, is counted, once for each attempt."""
    fault = event.fault
    counts = (fault.acts or fault.by_user) and fault.mark not in attempt.counted_faults
    written: Effects = (do.Persist("fault", fault_fields(fault), durable=counts),)
    if not counts:
        return job, attempt, written
    ledger, last = job.ledger, attempt.retried_fault
    same = last is not None and last.key == fault.key and last.retry != fault.retry  # the platform asks for more now
    if fault.code != NO_CODE and not same:  # faults without a code cannot be compared
        one = Occurrence(policy.membership.node, *fault.key, fault.severity, event.clock, ledger.job)
        # ModelArts counts only schedules without a clear fault of a node or chip; a user-induced one is not clear.
        clear = ledger.faulted or not fault.by_user
        ledger = ledger._replace(occurrences=merge(ledger.occurrences, (one,)), faulted=clear)
    attempt = attempt._replace(counted_faults=(*attempt.counted_faults, fault.mark))
    if not fault.acts:
        attempt = attempt._replace(fault=fault, fault_at=event.now)
    return job._replace(ledger=ledger), attempt, written


def description(fault: Fault) -> str:
    why = f": {fault.why}" if fault.why else ""
    return f"device {fault.device} reports {fault.code} ({fault.severity}{why})"


def fault_fields(fault: Fault) -> do.Fields:
    return tuple((name, value) for name, value in fault._asdict().items() if value and name != "local")


def fault_that_ended(attempt: Attempt, policy: Policy) -> Fault | None:
    """The user-induced fault that ended this attempt: training did not continue for long after it."""
    moved = max((r.moved_at for r in attempt.ranks if r.moved_at is not None), default=0.0)
    if attempt.fault is None or "fault" not in policy.restart_on or moved > attempt.fault_at + AFTERMATH:
        return None
    return attempt.fault


def on_fault_reported_between(
    job: Job, phase: Stopping | Pending | Healing, event: ev.FaultReported, policy: Policy
) -> Outcome:
    """A fault that is found between two attempts.  A GPU that falls off the bus often shows first as a hang: such a
    fault is healed before the next start, and it overrides a verdict that would send the job back to this node."""
    fault, want = event.fault, job.want
    attempt = phase.attempt if isinstance(phase, Stopping) else None
    counted = (
        attempt.counted_faults if attempt else tuple(f.mark for f in want.faults) if isinstance(want, Restart) else ()
    )
    job, noted_in, written = record_fault(job, Attempt(job.ledger.start_cnt, counted_faults=counted), event, policy)
    if isinstance(phase, Stopping):
        job = job._replace(phase=phase._replace(attempt=phase.attempt._replace(counted_faults=noted_in.counted_faults)))
    if not fault.acts or fault.mark in counted or fault.device in job.ledger.removed:
        return job, written
    not_healable = why_not_healable(job, fault, policy)
    if isinstance(want, Restart) and not_healable is None:
        return job._replace(want=want._replace(faults=(*want.faults, fault))), written
    smaller = remove_device(job, fault, policy) if isinstance(want, Restart) and not fault.by_user else None
    if smaller is not None:
        return smaller[0], (*written, smaller[1])
    if not_healable is None or not (isinstance(want, Restart) or _explains(job)):
        return job, written
    why = description(fault) + not_healable
    if fault.by_user:
        verdict = stopping.unless_schedules_exhausted(
            job, stopping.finish_with(exit_codes.USER_FAULT_LIMIT, why, fault.device)
        )
    else:
        verdict = stopping.finish_with(exit_codes.NODE_FAULT, why, fault.device)
    if isinstance(phase, Stopping):
        return job._replace(want=verdict), (*written, stopping.escalation_record("fault", verdict))
    return stopping.conclude(job, verdict, written)


def _explains(job: Job) -> bool:
    """Whether a device fault explains why the job ends: it does where hangs have used up the restart budget.  Otherwise
    the job could be scheduled on this node again, or fail for no fault of its own."""
    hung = job.blame is not None and job.blame.cause == "hang"
    name = job.want.verdict if isinstance(job.want, Finish) else None
    return name == exit_codes.HANG_LIMIT.name or (hung and name == exit_codes.FAILURE_LIMIT.name)


def why_not_healable(job: Job, fault: Fault, policy: Policy) -> str | None:
    """Why healing is not tried, as the end of a sentence; None: it is tried."""
    if fault.is_final:
        return ""
    third = stopping.is_third_in_a_day(job.ledger, fault, policy)
    return f", for the {sentences.ordinal(TIMES)} time in 24 hours" if third else None


def remove_device(job: Job, fault: Fault, policy: Policy, first: bool = False) -> tuple[Job, do.Persist] | None:
    """The job without this device, if it is one of the job's devices and enough others are left.  Before the `first`
    start this needs no permission to restart, and a device that is not listed is left out by naming the others."""
    removed = tuple(dict.fromkeys((*job.ledger.removed, fault.device)))
    left = [device for device in job.devices if device.id not in removed]
    if policy.min_devices is None or len(left) < policy.min_devices:
        return None
    if not first and ("fault" not in policy.restart_on or fault.device not in [device.id for device in job.devices]):
        return None
    job = without_faults(job, fault.device)
    ledger = job.ledger._replace(removed=removed, visible=_visible(left))
    record = do.Persist("removed", (("device", fault.device), ("left", len(left))), durable=True)
    return job._replace(ledger=ledger, removed_devices=(*job.removed_devices, fault.device)), record


def _visible(devices: Sequence[UsableDevice]) -> VisibleDevices:
    return VisibleDevices(devices[0].variable, tuple(device.name for device in devices))


# --- before the first start -------------------------------------------------------------------------------------------


def handle_preexisting(job: Job, event: ev.FaultReported, policy: Policy) -> Outcome:
    """A fault that a device has before the first start.  A critical one ends the job before anything runs, or the job
    continues without that device.  Other faults existed before ftrun, end nothing, and are only recorded."""
    attempt = Attempt(job.ledger.start_cnt)
    if not event.fault.is_final or event.fault.device in job.ledger.removed:
        harmless = event._replace(fault=event.fault._replace(preexisting=True))
        job, _, written = record_fault(job, attempt, harmless, policy)
        return job, written
    fault, device = event.fault, event.fault.device
    job, _, written = record_fault(job, attempt, event, policy)
    why = f"device {device} cannot be used: it reports {fault.code} before the first start"
    why += f" ({fault.severity}{': ' if fault.why else ''}{fault.why})"
    smaller = remove_device(job, fault, policy, first=True)
    if smaller is not None:
        return smaller[0], (*written, smaller[1], do.LogLine(sentences.sentence(why, "continuing without it")))
    return stopping.isolate(job, why, written, device=device)


def downgrade_preexisting(event: ev.FaultReported) -> ev.FaultReported:
    """The event, as it counts where the device check came too late for the first start: only a critical fault acts."""
    if not event.preexisting or event.fault.is_final:
        return event
    return event._replace(fault=event.fault._replace(preexisting=True))


def has_not_healed(job: Job, event: ev.FaultReported, policy: Policy) -> bool:
    """Whether the device reported this fault, or a critical one, on this node in an earlier schedule of the last day.
    Since it still reports a fault, it has not healed."""
    device, code = (policy.membership.node, event.fault.device), event.fault.code
    recent = (o for o in job.ledger.occurrences if o.device_key == device and age(o.at, event.clock) <= DAY)
    return any(one.code == code or one.severity == "critical" for one in recent)


# --- before the next start --------------------------------------------------------------------------------------------


def has_to_wait(job: Job) -> bool:
    return job.held is not None or (isinstance(job.want, Restart) and bool(job.want.faults))


def begin_healing(job: Job, attempt: Attempt | None, now: float, policy: Policy, written: Effects = ()) -> Outcome:
    """The tree is dead: heal the next fault, then wait for the platform's permission."""
    fault = job.want.faults[0] if isinstance(job.want, Restart) and job.want.faults else None
    job = job._replace(phase=Healing(fault, now + policy.limits.heal_timeout, attempt))
    if fault is None:
        most = durations.seconds(policy.limits.heal_timeout)
        waits = f"the platform does not permit a start: {job.held}; waiting at most {most} for its permission"
        return job, (*written, do.Persist("healing", (("why", job.held),)), do.LogLine(waits), do.Heal(None))
    return job, (*written, do.Persist("healing", fault_fields(fault)), do.Heal(fault))


def return_devices(job: Job, event: ev.DevicesReleased | ev.DevicesChecked, policy: Policy) -> tuple[Job, Effects]:
    """Removed devices that are healthy again are used by the next start.

    Excluded are devices that were removed for this very restart, and devices that keep failing
    (`_is_failing_repeatedly`), whose driver has wrongly reported them as healthy.
    """
    if isinstance(job.want, Finish):
        return job, ()
    back = [device for device in may_return(job, event.well, event.clock, policy) if device not in job.removed_devices]
    if not back:
        return job, ()
    out = tuple(device for device in job.ledger.removed if device not in back)
    used = [device for device in job.devices if device.id not in out]
    visible = _visible(used) if out else None  # None: as the user set it
    written: Effects = ()
    for device in back:
        why = "its driver reports it as healthy, without any fault"
        record = do.Persist("returned", (("device", device), ("devices", len(used)), ("why", why)), durable=True)
        written += (record, do.LogLine(f"device {device} is used again: {why}"))
    return job._replace(ledger=job.ledger._replace(removed=out, visible=visible)), written


def may_return(job: Job, well: Collection[str], clock: Clock, policy: Policy) -> list[str]:
    """The removed devices that are healthy and do not keep failing."""
    removed = [device.id for device in job.devices if device.id in job.ledger.removed and device.id in well]
    return [device for device in removed if not _is_failing_repeatedly(job, device, clock, policy)]


def _is_failing_repeatedly(job: Job, device: str, now: Clock, policy: Policy) -> bool:
    """Whether faults of this device on this node have ended attempts `TIMES` times within the last day."""
    recent = [
        o for o in job.ledger.occurrences if o.device_key == (policy.membership.node, device) and age(o.at, now) <= DAY
    ]
    faults = [Fault(one.device, one.code, one.severity) for one in recent]
    return sum(fault.acts and not fault.by_user for fault in faults) >= TIMES


def without_faults(job: Job, device: str) -> Job:
    """The job without the faults of this device, which has been found healthy."""
    if isinstance(job.want, Restart):
        still = tuple(fault for fault in job.want.faults if fault.device != device)
        return job._replace(want=job.want._replace(faults=still))
    return job


def end_unhealed(job: Job, phase: Healing, why: str | None) -> Outcome:
    if phase.fault is not None:
        device, reason = phase.fault.device, f" ({why})" if why else ""
        return stopping.isolate(job, f"device {device} did not heal from {phase.fault.code}{reason}", device=device)
    if job.leaving:  # the request does not mean that this node is faulty
        want = stopping.finish_with(exit_codes.HANG_LIMIT, f"requested by the platform: {job.held}")
        return stopping.conclude(job, stopping.unless_schedules_exhausted(job, want))
    return stopping.isolate(job, f"the platform does not permit a start: {job.held}")


# --- devices that are well again, at a checkpoint ---------------------------------------------------------------------


def newest_checkpoint(attempt: Attempt) -> int | None:
    """A number that rises with each checkpoint that is saved in this attempt; None: none is known."""
    reported = attempt.checkpoint
    return (attempt.saves or None) if reported is None else reported.checkpoint_step


def on_devices_found(job: Job, phase: Phase, event: ev.DevicesFound, policy: Policy) -> Outcome:
    """The devices of this node; while some are taken out, each report of the probe comes here."""
    job = job._replace(devices=event.devices)
    if not (policy.scale_out and isinstance(phase, Starting | Running)):
        return job, ()
    well = () if job.paused is not None else may_return(job, event.well, event.clock, policy)
    newest = newest_checkpoint(phase.attempt)
    attempt = phase.attempt._replace(
        regain=phase.attempt.regain.following(
            [device for device in well if device not in job.ledger.regained], newest, event.now
        )
    )
    return regain_if_due(job._replace(phase=phase._replace(attempt=attempt)), event.now, policy, ())


def regain_if_due(job: Job, now: float, policy: Policy, so_far: Effects) -> Outcome:
    """Restart the command to use its devices again, if a checkpoint has been saved since they are well."""
    phase = job.phase
    if not isinstance(phase, Starting | Running) or not phase.attempt.regain.armed or policy.membership.group:
        return job, so_far
    attempt = phase.attempt
    busy = job.paused is not None or attempt.stopped_at is not None or attempt.rounds.is_under_way
    if busy or not isinstance(job.want, KeepRunning) or not attempt.regain.is_due(newest_checkpoint(attempt)):
        return job, so_far
    devices = tuple(attempt.regain.well)
    why = f"a checkpoint is saved, and {sentences.devices(devices)} can be used again"
    record = do.Persist("regaining", (("devices", devices), ("why", why)), durable=True)
    job = spend(job, attempt)._replace(want=Restart("returned"), blame=Blame(now, "returned", why))
    line = sentences.sentence(why, "the command starts again")
    return stopping.stop(job, attempt, now, policy, (*so_far, record), line)


def spend(job: Job, attempt: Attempt) -> Job:
    """The job after a restart that was to bring devices back at a checkpoint: each device has one such restart."""
    if not attempt.regain.armed:
        return job
    regained = tuple(dict.fromkeys((*job.ledger.regained, *attempt.regain.well)))
    return job._replace(ledger=job.ledger._replace(regained=regained))
