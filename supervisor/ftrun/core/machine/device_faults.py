"""Device faults: what acts at once, what is only remembered, and how a fault is cured before the next start."""

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.states import Finish, Healing, Job, Pending, Restart, Running, Starting, Stopping, Suspect
from ftrun.core.machine.stopping import (
    Effects,
    Outcome,
    conclude,
    ending,
    escalation,
    finish_with,
    isolate,
    stop,
    times_in_words,
    trouble,
    unless_schedules_exhausted,
)
from ftrun.core.machine.values import Attempt, Fault
from ftrun.core.rules import exit_codes
from ftrun.core.rules.fault_history import DAY, NO_CODE, TIMES, Clock, Occurrence, age, noted
from ftrun.core.rules.policy import Policy, exhausted
from ftrun.core.text import durations, sentences

HARMLESS = "warning"  # the severity of what is only recorded
AFTERMATH = 60.0  # s; training that still moves so long after a fault of its own did not end of it


def faulted(job: Job, phase: Starting | Running | Suspect, event: ev.FaultReported, policy: Policy) -> Outcome:
    """A fault alone kills nothing that can go on: warnings, unknown codes and faults of severity `user` are only
    recorded."""
    fault, attempt = event.fault, phase.attempt
    job, attempt, written = _noted(job, attempt, event, policy)
    if not fault.acts or fault.mark in phase.attempt.known or fault.device in job.ledger.removed:
        return job._replace(phase=phase._replace(attempt=attempt)), written
    return _act(job, attempt, fault, event.now, policy, written)


def _act(job: Job, attempt: Attempt, fault: Fault, now: float, policy: Policy, written: Effects) -> Outcome:
    """End the attempt for this fault: to heal it, to do without the device, or to leave the node.  At once: on a device
    that is at fault nothing can be finished, and a checkpoint of it would be worse than none."""
    policy = policy._replace(grace=0.0)
    why = f"device {fault.device} reports {fault.code} ({fault.severity}{': ' if fault.why else ''}{fault.why})"
    hopeless = _hopeless(job, fault, policy)
    if hopeless is None or fault.by_user:
        return trouble(job, attempt, "fault", why, now, policy, written, fault=fault)
    why += hopeless
    shed = _shed(job, fault, policy)
    if shed is not None and not exhausted(job.ledger, "fault", policy):
        job, removed = shed
        why += ", going on without it"
        return trouble(job, attempt, "fault", why, now, policy, (*written, removed))
    want = finish_with(exit_codes.NODE_FAULT, why, fault.device)
    written += (escalation("fault", want),)
    said = sentences.sentence(why, sentences.killing({}), ending(want))
    return stop(job._replace(want=want), attempt, now, policy, written, said)


def _noted(job: Job, attempt: Attempt, event: ev.FaultReported, policy: Policy) -> tuple[Job, Attempt, Effects]:
    """Written down; counted once an attempt, if it is one that counts."""
    fault = event.fault
    counts = (fault.acts or fault.by_user) and fault.mark not in attempt.known
    written: Effects = (do.Persist("fault", _fields(fault), durable=counts),)
    if not counts:
        return job, attempt, written
    ledger = job.ledger
    if fault.code != NO_CODE:  # faults without a code are not the same fault
        one = Occurrence(policy.node, *fault.place, fault.severity, event.clock, ledger.job)
        # ModelArts counts only schedules without a clear fault of a node or chip: one that the program caused is none.
        clear = ledger.faulted or not fault.by_user
        ledger = ledger._replace(occurrences=noted(ledger.occurrences, (one,)), faulted=clear)
    attempt = attempt._replace(known=(*attempt.known, fault.mark))
    if not fault.acts:
        attempt = attempt._replace(fault=fault, fault_at=event.now)
    return job._replace(ledger=ledger), attempt, written


def _fields(fault: Fault) -> tuple[tuple[str, object], ...]:
    return tuple((name, value) for name, value in fault._asdict().items() if value)


def blamed(attempt: Attempt, policy: Policy) -> Fault | None:
    """The user-induced fault that this attempt ends of: training has not gone on for long after it."""
    moved = max((r.moved_at for r in attempt.ranks if r.moved_at is not None), default=0.0)
    if attempt.fault is None or "fault" not in policy.restart_on or moved > attempt.fault_at + AFTERMATH:
        return None
    return attempt.fault


def faulted_ending(job: Job, phase: Stopping | Pending | Healing, event: ev.FaultReported, policy: Policy) -> Outcome:
    """A GPU that falls off the bus often shows first as a hang: what is found before the next start comes before it,
    and outweighs a verdict that would send the job back to this node."""
    fault, want = event.fault, job.want
    attempt = phase.attempt if isinstance(phase, Stopping) else None
    known = attempt.known if attempt else tuple(f.mark for f in want.faults) if isinstance(want, Restart) else ()
    job, noted_in, written = _noted(job, Attempt(job.ledger.start_cnt, known=known), event, policy)
    if isinstance(phase, Stopping):
        job = job._replace(phase=phase._replace(attempt=phase.attempt._replace(known=noted_in.known)))
    if not fault.acts or fault.mark in known or fault.device in job.ledger.removed:
        return job, written
    hopeless = _hopeless(job, fault, policy)
    if isinstance(want, Restart) and hopeless is None:
        return job._replace(want=want._replace(faults=(*want.faults, fault))), written
    shed = _shed(job, fault, policy) if isinstance(want, Restart) and not fault.by_user else None
    if shed is not None:
        return shed[0], (*written, shed[1])
    back = (
        isinstance(want, Finish) and want.verdict == exit_codes.HANG_LIMIT.name
    )  # the job would come to this node again
    if hopeless is None or not (isinstance(want, Restart) or back):
        return job, written
    why = f"device {fault.device} reports {fault.code} ({fault.severity}){hopeless}"
    if fault.by_user:
        verdict = unless_schedules_exhausted(job, finish_with(exit_codes.USER_FAULT_LIMIT, why, fault.device))
    else:
        verdict = finish_with(exit_codes.NODE_FAULT, why, fault.device)
    if isinstance(phase, Stopping):
        return job._replace(want=verdict), (*written, escalation("fault", verdict))
    return conclude(job, verdict, written)


def _hopeless(job: Job, fault: Fault, policy: Policy) -> str | None:
    """Why healing is not tried."""
    if fault.severity == "critical":
        return ""
    return (
        f", for the {sentences.ordinal(TIMES)} time in 24 hours" if times_in_words(job.ledger, fault, policy) else None
    )


def _shed(job: Job, fault: Fault, policy: Policy, first: bool = False) -> tuple[Job, do.Persist] | None:
    """The job without this device, if enough are left and it is one of them.  Before the `first` start that is no
    restart, and one that nobody can name is left out by naming the others."""
    removed = tuple(dict.fromkeys((*job.ledger.removed, fault.device)))
    left = [device for device in job.devices if device.id not in removed]
    if policy.min_devices is None or len(left) < policy.min_devices:
        return None
    if not first and ("fault" not in policy.restart_on or fault.device not in [device.id for device in job.devices]):
        return None
    if isinstance(job.want, Restart):
        still = tuple(f for f in job.want.faults if f.device != fault.device)
        job = job._replace(want=job.want._replace(faults=still))
    ledger = job.ledger._replace(removed=removed, visible=(left[0].variable, *(device.word for device in left)))
    record = do.Persist("removed", (("device", fault.device), ("left", len(left))), durable=True)
    return job._replace(ledger=ledger, removed_devices=(*job.removed_devices, fault.device)), record


# --- before the first start -------------------------------------------------------------------------------------------


def standing(job: Job, event: ev.FaultReported, policy: Policy) -> Outcome:
    """A fault that a device has before the first start.  A critical one ends the job before anything runs, or the job
    does without that device; what could heal was there before us, kills nothing, and is only recorded."""
    attempt = Attempt(job.ledger.start_cnt)
    if event.fault.severity != "critical" or event.fault.device in job.ledger.removed:
        job, _, written = _noted(job, attempt, event._replace(fault=event.fault._replace(severity=HARMLESS)), policy)
        return job, written
    fault, device = event.fault, event.fault.device
    job, _, written = _noted(job, attempt, event, policy)
    why = f"device {device} cannot be used, it reports {fault.code} before the first start"
    why += f" ({fault.severity}{': ' if fault.why else ''}{fault.why})"
    shed = _shed(job, fault, policy, first=True)
    if shed is not None:
        return shed[0], (*written, shed[1], do.LogLine(sentences.sentence(why, "going on without it")))
    return isolate(job, why, written, device=device)


def late(event: ev.FaultReported) -> ev.FaultReported:
    """The same where the look at the devices came too late for the first start: only what is critical still acts."""
    if not event.standing or event.fault.severity == "critical":
        return event
    return event._replace(fault=event.fault._replace(severity=HARMLESS))


def unhealed(job: Job, event: ev.FaultReported, policy: Policy) -> bool:
    """Whether the device has reported this fault, or a critical one, in an earlier schedule of the last day, on this
    node: it still reports one, so it has not healed since."""
    place, fault = (policy.node, event.fault.device), event.fault
    return any(
        one.on == place and age(one.at, event.clock) <= DAY and (one.code == fault.code or one.severity == "critical")
        for one in job.ledger.occurrences
    )


# --- before the next start --------------------------------------------------------------------------------------------


def has_to_wait(job: Job) -> bool:
    return job.held is not None or (isinstance(job.want, Restart) and bool(job.want.faults))


def heal(job: Job, attempt: Attempt | None, now: float, policy: Policy, written: Effects = ()) -> Outcome:
    """The tree is dead: have the next fault cured, then wait for the platform's permission."""
    fault = job.want.faults[0] if isinstance(job.want, Restart) and job.want.faults else None
    job = job._replace(phase=Healing(fault, now + policy.heal_timeout, attempt))
    if fault is None:
        most = durations.seconds(policy.heal_timeout)
        waits = f"the platform permits no start: {job.held}; waiting for it, {most} at most"
        return job, (*written, do.Persist("healing", (("why", job.held),)), do.LogLine(waits), do.Heal(None))
    return job, (*written, do.Persist("healing", _fields(fault)), do.Heal(fault))


def given_back(job: Job, event: ev.DevicesReleased | ev.DevicesChecked, policy: Policy) -> tuple[Job, Effects]:
    """The next start has the devices again that were taken out and are seen to be well.

    Not in the restart that a device is taken out for, and not a device that keeps failing (`_keeps_failing`): there the
    word of the driver that it is well has been wrong.
    """
    if isinstance(job.want, Finish):
        return job, ()
    back = [
        device.id
        for device in job.devices
        if device.id in job.ledger.removed
        and device.id in event.well
        and device.id not in job.removed_devices
        and not _keeps_failing(job, device.id, event.clock, policy)
    ]
    if not back:
        return job, ()
    out = tuple(device for device in job.ledger.removed if device not in back)
    used = [device for device in job.devices if device.id not in out]
    visible = (used[0].variable, *(device.word for device in used)) if out else ()  # empty: as the command was given it
    written: Effects = ()
    for device in back:
        why = "its driver calls it healthy, and reports no fault of it"
        record = do.Persist("returned", (("device", device), ("devices", len(used)), ("why", why)), durable=True)
        written += (record, do.LogLine(f"device {device} is used again: {why}"))
    return job._replace(ledger=job.ledger._replace(removed=out, visible=visible)), written


def _keeps_failing(job: Job, device: str, now: Clock, policy: Policy) -> bool:
    """Whether faults of this device on this node have ended attempts `TIMES` times within the last day."""
    return (
        sum(
            one.on == (policy.node, device) and fault.acts and not fault.by_user and age(one.at, now) <= DAY
            for one in job.ledger.occurrences
            for fault in [Fault(one.device, one.code, one.severity)]
        )
        >= TIMES
    )


def cured(job: Job, device: str) -> Job:
    """Without the faults of this device: it was seen to be well, whatever it had been said to have."""
    if isinstance(job.want, Restart):
        still = tuple(fault for fault in job.want.faults if fault.device != device)
        return job._replace(want=job.want._replace(faults=still))
    return job


def given_up(job: Job, phase: Healing, policy: Policy) -> tuple[Job, do.Persist] | None:
    """The fault did not heal: the job without that device, where it can do without."""
    return None if phase.fault is None else _shed(job, phase.fault, policy)


def not_healed(job: Job, phase: Healing, why: str | None) -> Outcome:
    if phase.fault is None and job.leaving:  # which says nothing of this node
        return conclude(
            job,
            unless_schedules_exhausted(job, finish_with(exit_codes.HANG_LIMIT, f"the platform wants this: {job.held}")),
        )
    if phase.fault is None:
        return isolate(job, f"the platform permits no start: {job.held}")
    device, reason = phase.fault.device, f" ({why})" if why else ""
    return isolate(job, f"device {device} did not heal from {phase.fault.code}{reason}", device=device)
