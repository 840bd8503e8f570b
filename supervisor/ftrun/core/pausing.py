"""Time in which nobody is judged: that of an operator's debugger, and any other."""

from ftrun.core import effects as do
from ftrun.core import events as ev
from ftrun.core.ending import Effects, Outcome
from ftrun.core.states import Job, Paused, Running, Starting, Suspect
from ftrun.core.values import Attempt

WAITING = 64  # faults


def forgiven(attempt: Attempt, since: float, now: float) -> Attempt:
    return attempt._replace(aways=(*attempt.aways[-63:], (since, now)))


def over(job: Job, now: float) -> bool:
    """Whether the pause has had its time."""
    return job.paused is not None and job.paused.until is not None and now >= job.paused.until


def stood(paused: Paused, attempt: Attempt, now: float) -> float | None:
    """For how many seconds nothing has moved in this pause, as in a debugger; None: nobody tells whether it works."""
    moved = [rank.moved_at for rank in attempt.ranks if rank.moved_at is not None]
    return max(0.0, now - max(*moved, paused.since, attempt.spawned_at)) if moved else None


def lifted(job: Job, attempt: Attempt, now: float) -> tuple[Job, Attempt, Effects]:
    """Judging again: the pause counts for nobody."""
    assert job.paused is not None
    written = do.Persist("resumed", (("stood", stood(job.paused, attempt, now)),))
    attempt = forgiven(attempt, max(job.paused.since, attempt.spawned_at), now)
    return job._replace(paused=None), attempt, (written, do.Say("judging again"))


def put_off(job: Job, phase: Starting | Running | Suspect, event: ev.Faulted) -> Outcome:
    """What is found in a pause is judged after it."""
    assert job.paused is not None
    if event.fault in [waiting.fault for waiting in job.paused.faults]:
        return job, ()
    paused = job.paused._replace(faults=(*job.paused.faults, event)[-WAITING:])
    what = f"device {event.fault.device} reports {event.fault.code}: judged when the pause is over"
    return job._replace(paused=paused), (do.Persist("problem", (("what", what),)), do.Say(what))
