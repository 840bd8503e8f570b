"""Devices that were taken out and are well again are used again at a checkpoint, where that is asked for.

The device comes back like at any other restart (`device_faults.return_devices`).  Here only the moment is decided; in a
group rank 0 decides it, since a checkpoint may have a part of each member (`_scale_out` in core/group/coordinator.py).
"""

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.device_faults import may_return
from ftrun.core.machine.states import Blame, Job, KeepRunning, Phase, Restart, Running, Starting
from ftrun.core.machine.stopping import Effects, Outcome, stop
from ftrun.core.machine.values import Attempt
from ftrun.core.rules.policy import Policy
from ftrun.core.text import sentences


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
    return stop(job, attempt, now, policy, (*so_far, record), line)


def spend(job: Job, attempt: Attempt) -> Job:
    """The job in which the devices that a checkpoint could have brought back have had their restart."""
    if not attempt.regain.armed:
        return job
    regained = tuple(dict.fromkeys((*job.ledger.regained, *attempt.regain.well)))
    return job._replace(ledger=job.ledger._replace(regained=regained))
