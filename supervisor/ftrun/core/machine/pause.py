"""Time that does not count as silence: pauses by the operator, as for a debugger, and other such periods."""

from collections.abc import Callable

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.states import Done, Job, Paused, Watched
from ftrun.core.machine.stopping import Effects, Outcome
from ftrun.core.machine.values import Attempt
from ftrun.core.rules import looks
from ftrun.core.rules.policy import Policy

MOST_WAITING = 64  # faults
NOTED = 10.0  # s for which ftrun did not run; from then on it is recorded, and lost time
TableStep = Callable[[Job, ev.Event, Policy], Outcome]


def excuse(attempt: Attempt, since: float, now: float) -> Attempt:
    """The attempt after a time that does not count as silence.  What was seen before it proves nothing after it."""
    away, rounds = (*attempt.aways[-63:], (since, now)), attempt.rounds
    if rounds.is_under_way:
        rounds = rounds.shifted(now - since)
    return looks.forget(attempt._replace(aways=away, rounds=rounds), now)


def is_over(job: Job, now: float) -> bool:
    """Whether the pause has reached its end."""
    return job.paused is not None and job.paused.until is not None and now >= job.paused.until


def seconds_still(paused: Paused, attempt: Attempt, now: float) -> float | None:
    """For how many seconds no rank has moved in this pause, as in a debugger; None: no rank ever moved, so that it is
    unknown whether the command works."""
    moved = [rank.moved_at for rank in attempt.ranks if rank.moved_at is not None]
    return max(0.0, now - max(*moved, paused.since, attempt.spawned_at)) if moved else None


def lift(job: Job, attempt: Attempt, now: float) -> tuple[Job, Attempt, Effects]:
    """The pause ends, and its time does not count as silence."""
    assert job.paused is not None
    written = do.Persist("resumed", (("stood", seconds_still(job.paused, attempt, now)),))
    attempt = excuse(attempt, max(job.paused.since, attempt.spawned_at), now)
    return job._replace(paused=None), attempt, (written, do.LogLine("verdicts are on again"))


def step_with_pause(step: TableStep, job: Job, event: ev.Event, policy: Policy) -> Outcome:
    """Run `step` and maintain the pause: it ends when no attempt is watched any more, and the faults that waited for
    its end are handled then.  They come before the exit of a command that ended in the pause, maybe because of them.
    """
    paused = job.paused
    if paused is None:
        return step(job, event, policy)
    if isinstance(event, ev.CommandExited) and paused.faults:
        job, written = _handle_each(step, job._replace(paused=None), paused.faults, event.now, policy)
        job, effects = step_with_pause(step, job._replace(paused=paused._replace(faults=())), event, policy)
        return job, written + effects
    after, effects = step(job, event, policy)
    if after.paused is not None and isinstance(after.phase, Watched):
        return after, effects
    if is_over(after, event.now) and not isinstance(after.phase, Done):  # no attempt is watched, so `check` did not run
        after, effects = after._replace(paused=None), (do.Persist("resumed", (("stood", None),)), *effects)
    waiting = (after.paused or paused).faults
    after = after._replace(paused=after.paused and after.paused._replace(faults=()))
    after, written = _handle_each(step, after, waiting, event.now, policy)
    return after, effects + written


def _handle_each(
    step: TableStep, job: Job, faults: tuple[ev.FaultReported, ...], now: float, policy: Policy
) -> Outcome:
    """Handle the faults one after the other, as if they were reported now."""
    written: Effects = ()
    for fault in faults:
        job, effects = step_with_pause(step, job, fault._replace(now=now), policy)
        written += effects
    return job, written


def postpone_fault(job: Job, event: ev.FaultReported) -> Outcome:
    """Keep a fault that is reported in a pause until the pause ends."""
    assert job.paused is not None
    if event.fault in [waiting.fault for waiting in job.paused.faults]:
        return job, ()
    paused = job.paused._replace(faults=(*job.paused.faults, event)[-MOST_WAITING:])
    what = f"device {event.fault.device} reports {event.fault.code}; ftrun acts on it when the pause is over"
    return job._replace(paused=paused), (do.Persist("problem", (("what", what),)), do.LogLine(what))
