"""The current state of a job for other programs: the `now` of `state.json`."""

from typing import Any

from ftrun.core.machine.states import Finish, Job, KeepRunning, Restart, Stopping, Suspect
from ftrun.core.machine.values import Attempt


def dump(job: Job) -> dict[str, Any]:
    """The JSON representation.  Times are CLOCK_MONOTONIC seconds.  The ranks are in the beat folder."""
    phase = job.phase
    attempt: Attempt | None = getattr(phase, "attempt", None)
    return {
        "phase": type(phase).__name__.lower(),
        "stage": phase.stage if isinstance(phase, Stopping) else None,
        "deadline": phase.deadline,
        "want": _want(job.want),
        "held": job.held,
        "paused": None if job.paused is None else {"since": job.paused.since, "until": job.paused.until},
        "finding": phase.finding._asdict() if isinstance(phase, Suspect) else None,
        "group": None if job.order is None else {"what": job.order.what, "why": job.order.why},
        "attempt": None if attempt is None else _attempt(attempt),
    }


def _want(want: KeepRunning | Restart | Finish) -> dict[str, Any]:
    if isinstance(want, Restart):
        return {"want": "again", "reason": want.reason, "consecutive": want.consecutive}
    if isinstance(want, Finish):
        return {"want": "finish", "code": want.code, "verdict": want.verdict, "why": want.message}
    return {"want": "keep"}


def _attempt(attempt: Attempt) -> dict[str, Any]:
    """The facts that the beat folder does not have."""
    return {
        "number": attempt.number,
        "pid": attempt.pid,
        "spawned_at": attempt.spawned_at,
        "moved": attempt.moved,
        "stopped_at": attempt.stopped_at,
        "aways": attempt.aways,
        "raised": [tuple(one) for one in attempt.raised],
        "patience": attempt.patience,
        "first_beat": attempt.first_beat,
        "start_raised": attempt.start_raised,
        "idle_since": attempt.idle.since,
        "idle_raised": attempt.idle.raised,
        "accelerator": attempt.idle.accelerator,
    }
