"""Before the first start: what it waits for, and what prevents it."""

from typing import Final

from ftrun.core.machine import events as ev
from ftrun.core.machine.device_faults import faulted_ending, given_back, has_to_wait, heal, late, standing, unhealed
from ftrun.core.machine.group_member import at_barrier
from ftrun.core.machine.history_merge import remember
from ftrun.core.machine.restarting import ANSWER, launch
from ftrun.core.machine.states import Done, Job, KeepRunning, Pending
from ftrun.core.machine.stopping import Effects, Outcome
from ftrun.core.rules.policy import Policy

# s in which the devices must be checked before the first start.  The first call to a driver may take seconds, and a
# tool that asks 16 chips takes longer; a missing answer is not a fault, so a longer wait gains nothing.
CHECK: Final = 10.0


def begin(job: Job, phase: Pending, event: ev.Started, policy: Policy) -> Outcome:
    """Start at once, or after the platform, the probe and the state dir have answered or their time is over."""
    asked = (("platform", policy.asks_platform), ("devices", policy.checks_devices))
    awaits = frozenset(name for name, on in asked if on)
    if policy.checks_devices and policy.shared:
        awaits |= {"history"}  # it is needed only if a device has a fault
    if awaits:
        return job._replace(phase=Pending(event.now + (CHECK if policy.checks_devices else ANSWER), awaits)), ()
    return launch(job, event.now, policy, "started")


def launch_due(job: Job, phase: Pending, event: ev.DeadlineReached | ev.WokeLate, policy: Policy) -> Outcome:
    if isinstance(event, ev.WokeLate) and phase.awaits:
        # The helpers that have to answer were frozen as well: they get the rest of their time.
        later = None if phase.deadline is None else phase.deadline + (event.now - event.since)
        return job._replace(phase=phase._replace(deadline=later)), ()
    written: Effects = ()
    for fault in phase.standing:
        if unhealed(job, fault, policy):
            why = "; ".join(filter(None, (fault.fault.why, "it has not healed since an earlier schedule")))
            lasting = fault.fault._replace(severity="critical", why=why)
            job, more = standing(job, fault._replace(fault=lasting), policy)
            written += more
        if isinstance(job.phase, Done):
            return job, written
    if has_to_wait(job):
        return heal(job, None, event.now, policy, written)
    job, more = launch(job, event.now, policy, "started" if isinstance(job.want, KeepRunning) else "restart")
    return job, written + more


def held_pending(job: Job, phase: Pending, event: ev.StartHeld, policy: Policy) -> Outcome:
    """The platform's first answer."""
    job = job._replace(held=event.why, leaving=event.ends)
    if not isinstance(job.want, KeepRunning) or phase.deadline is None:
        return at_barrier(job, phase, event.now, policy, ())
    return _answered(job, phase, "platform", event.now, policy)


def checked(job: Job, phase: Pending, event: ev.DevicesChecked, policy: Policy) -> Outcome:
    """The devices were checked.  Devices that an earlier ftrun of this run dir removed may be used again."""
    written: Effects = ()
    if "devices" in phase.awaits:
        job, written = given_back(job, event, policy)
    if not phase.standing:
        phase = phase._replace(awaits=phase.awaits - {"history"})
    job, effects = _answered(job, phase, "devices", event.now, policy)
    return job, written + effects


def remembered_pending(job: Job, phase: Pending, event: ev.HistoryLoaded, policy: Policy) -> Outcome:
    return _answered(remember(job, event, policy.phase, policy.job), phase, "history", event.now, policy)


def faulted_pending(job: Job, phase: Pending, event: ev.FaultReported, policy: Policy) -> Outcome:
    if event.standing and isinstance(job.want, KeepRunning):
        job, written = standing(job, event, policy)
        if isinstance(job.phase, Pending) and phase.awaits and event.fault.acts and event.fault.severity != "critical":
            job = job._replace(phase=phase._replace(standing=(*phase.standing, event)))
        return job, written
    job, written = faulted_ending(job, phase, late(event), policy)
    return at_barrier(job, job.phase, event.now, policy, written)


def _answered(job: Job, phase: Pending, source: str, now: float, policy: Policy) -> Outcome:
    """One of the answers that the first start waits for has come."""
    if source not in phase.awaits:
        return job, ()
    phase = phase._replace(awaits=phase.awaits - {source})
    job = job._replace(phase=phase)
    return (job, ()) if phase.awaits else launch_due(job, phase, ev.DeadlineReached(now), policy)
