"""Device faults: what acts at once, what is only remembered, and how a fault is cured before the next start."""

from ftrun.core import effects as do
from ftrun.core import events as ev
from ftrun.core import exitcode, words
from ftrun.core.ending import Effects, Outcome, ending, escalation, finish_with, isolate, often, stop, trouble
from ftrun.core.history import TIMES, Occurrence, noted
from ftrun.core.policy import Policy, exhausted
from ftrun.core.states import Again, Healing, Job, Pending, Running, Starting, Stopping, Suspect
from ftrun.core.values import Attempt, Fault

AFTERMATH = 60.0  # s; training that still moves so long after a fault of its own did not end of it


def faulted(job: Job, phase: Starting | Running | Suspect, event: ev.Faulted, policy: Policy) -> Outcome:
    """A fault alone kills nothing that can go on: warnings, unknown codes and the user's own are only written down."""
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
    if hopeless is None:
        return trouble(job, attempt, "fault", why, now, policy, written, fault=fault)
    why += hopeless
    shed = _shed(job, fault, policy)
    if shed is not None and not exhausted(job.ledger, "fault", policy):
        job, removed = shed
        why += ", going on without it"
        return trouble(job, attempt, "fault", why, now, policy, (*written, removed))
    want = finish_with(exitcode.NODE_FAULT, why, fault.device)
    written += (escalation("fault", want),)
    said = words.sentence(why, words.killing({}), ending(want))
    return stop(job._replace(want=want), attempt, now, policy, written, said)


def _noted(job: Job, attempt: Attempt, event: ev.Faulted, policy: Policy) -> tuple[Job, Attempt, Effects]:
    """Written down; counted once an attempt, if it is one that counts."""
    fault = event.fault
    counts = (fault.acts or fault.severity == "user") and fault.mark not in attempt.known
    written: Effects = (do.Persist("fault", _fields(fault), durable=counts),)
    if not counts:
        return job, attempt, written
    one = Occurrence(policy.node, *fault.place, fault.severity, event.clock)
    ledger = job.ledger._replace(occurrences=noted(job.ledger.occurrences, (one,)), faulted=True)
    attempt = attempt._replace(known=(*attempt.known, fault.mark))
    if fault.severity == "user":
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


def faulted_ending(job: Job, phase: Stopping | Pending | Healing, event: ev.Faulted, policy: Policy) -> Outcome:
    """A GPU that falls off the bus often shows first as a hang: what is found before the next start comes before it,
    and outweighs a verdict that would send the job back to this node."""
    fault, want = event.fault, job.want
    attempt = phase.attempt if isinstance(phase, Stopping) else None
    known = attempt.known if attempt else tuple(f.mark for f in want.faults) if isinstance(want, Again) else ()
    job, noted_in, written = _noted(job, Attempt(job.ledger.start_cnt, known=known), event, policy)
    if isinstance(phase, Stopping):
        job = job._replace(phase=phase._replace(attempt=phase.attempt._replace(known=noted_in.known)))
    if not fault.acts or fault.mark in known or fault.device in job.ledger.removed:
        return job, written
    hopeless = _hopeless(job, fault, policy)
    if isinstance(want, Again) and hopeless is None:
        return job._replace(want=want._replace(faults=(*want.faults, fault))), written
    shed = _shed(job, fault, policy) if isinstance(want, Again) else None
    if shed is not None:
        return shed[0], (*written, shed[1])
    if hopeless is None or not (isinstance(want, Again) or want[:2] == exitcode.HANG_LIMIT[1::-1]):
        return job, written
    why = f"device {fault.device} reports {fault.code} ({fault.severity}){hopeless}"
    want = finish_with(exitcode.NODE_FAULT, why, fault.device)
    job = job._replace(want=want)
    if isinstance(phase, Stopping):
        return job, (*written, escalation("fault", want))
    return isolate(job, why, written, device=fault.device)


def _hopeless(job: Job, fault: Fault, policy: Policy) -> str | None:
    """Why healing is not tried."""
    if fault.severity == "critical":
        return ""
    return f", for the {words.ordinal(TIMES)} time in 24 hours" if often(job.ledger, fault, policy) else None


def _shed(job: Job, fault: Fault, policy: Policy) -> tuple[Job, do.Persist] | None:
    """The job without this device, if enough are left and it is one of them."""
    removed = tuple(dict.fromkeys((*job.ledger.removed, fault.device)))
    left = [device for device in job.devices if device.id not in removed]
    if policy.min_devices is None or "fault" not in policy.restart_on or len(left) < policy.min_devices:
        return None
    if fault.device not in [device.id for device in job.devices]:
        return None
    if isinstance(job.want, Again):
        still = tuple(f for f in job.want.faults if f.device != fault.device)
        job = job._replace(want=job.want._replace(faults=still))
    ledger = job.ledger._replace(removed=removed, visible=(left[0].variable, *(device.word for device in left)))
    record = do.Persist("removed", (("device", fault.device), ("left", len(left))), durable=True)
    return job._replace(ledger=ledger), record


# --- before the next start --------------------------------------------------------------------------------------------


def has_to_wait(job: Job) -> bool:
    return job.held is not None or (isinstance(job.want, Again) and bool(job.want.faults))


def heal(job: Job, attempt: Attempt | None, now: float, policy: Policy, written: Effects = ()) -> Outcome:
    """The tree is dead: have the next fault cured, then wait for the platform's permission."""
    fault = job.want.faults[0] if isinstance(job.want, Again) and job.want.faults else None
    job = job._replace(phase=Healing(fault, now + policy.heal_timeout, attempt))
    if fault is None:
        waits = (
            f"the platform permits no start: {job.held}; waiting for it, {words.seconds(policy.heal_timeout)} at most"
        )
        return job, (*written, do.Persist("healing", (("why", job.held),)), do.Say(waits), do.Heal(None))
    return job, (*written, do.Persist("healing", _fields(fault)), do.Heal(fault))


def cured(job: Job, device: str) -> Job:
    """Without the faults of this device: it was seen to be well, whatever it had been said to have."""
    if isinstance(job.want, Again):
        still = tuple(fault for fault in job.want.faults if fault.device != device)
        return job._replace(want=job.want._replace(faults=still))
    return job


def given_up(job: Job, phase: Healing, policy: Policy) -> tuple[Job, do.Persist] | None:
    """The fault did not heal: the job without that device, where it can do without."""
    return None if phase.fault is None else _shed(job, phase.fault, policy)


def not_healed(job: Job, phase: Healing, why: str | None) -> Outcome:
    if phase.fault is None:
        return isolate(job, f"the platform permits no start: {job.held}")
    device, reason = phase.fault.device, f" ({why})" if why else ""
    return isolate(job, f"device {device} did not heal from {phase.fault.code}{reason}", device=device)
