"""Requests of the operator, and how each phase handles them.  Every request is recorded and answered."""

from collections.abc import Callable
from typing import Any

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.pause import lifted
from ftrun.core.machine.restarting import again
from ftrun.core.machine.states import (
    Blame,
    Done,
    Finish,
    Healing,
    Job,
    KeepRunning,
    Launching,
    Paused,
    Pending,
    Phase,
    Restart,
    Running,
    Starting,
    Stopping,
    Suspect,
)
from ftrun.core.machine.stopping import Effects, Outcome, after, stop
from ftrun.core.machine.watching import dropped, watch
from ftrun.core.rules import exit_codes
from ftrun.core.rules.policy import Policy
from ftrun.core.text import durations

Asked = ev.RestartRequested | ev.StopRequested | ev.PauseRequested | ev.ResumeRequested
EARLY = 64  # events that wait for the exec
TERMINATED = 128 + 15
Handler = Callable[[Job, Any, Any, Policy], Outcome]


def timely(handler: Handler) -> Handler:
    """The handler, except that a request is refused once its sender has given up waiting for the answer."""

    def checked(job: Job, phase: Any, event: Any, policy: Policy) -> Outcome:
        if event.order is not None and event.now >= event.order.until:
            return job, _answer(event, False, "the request arrived too late")
        return handler(job, phase, event, policy)

    return checked


def asked(verb: str, order: ev.OperatorRequest, lasting: float | None, now: float) -> Asked:
    """The event for a request with this verb; ValueError for an unknown verb."""
    match verb:
        case "restart":
            return ev.RestartRequested(now, order)
        case "stop":
            return ev.StopRequested(now, order)
        case "pause":
            return ev.PauseRequested(now, order, None if lasting is None else float(lasting))
        case "resume":
            return ev.ResumeRequested(now, order)
    raise ValueError(verb)


def restart_asked(job: Job, phase: Phase, event: ev.RestartRequested, policy: Policy) -> Outcome:
    """Restart the command; this uses up no restart budget."""
    match phase:
        case Launching():
            return early(job, phase, event, policy)
        case Starting() | Running() | Suspect():
            line = f"restart requested by {_who(event)}"
            job = job._replace(want=Restart("manual"), blame=Blame(event.now, "manual", line))
            answer = _answer(event, True, "the command is being stopped and will be started again")
            return stop(job, phase.attempt, event.now, policy, answer, line)
        case Pending() if isinstance(job.want, Restart):
            job, effects = again(job._replace(want=job.want._replace(delay=0.0)), None, event.now, policy)
            waits = "the command starts as soon as the platform permits it and its devices are healthy"
            why = "the command starts without further delay" if isinstance(job.phase, Launching) else waits
            return job, _answer(event, True, why) + effects
        case Stopping() | Healing() if isinstance(job.want, Restart):
            return job, _answer(event, True, "a restart is already under way")
        case Pending() if isinstance(job.want, KeepRunning):
            return job, _answer(event, True, "the command is about to be started")
    return job, _answer(event, False, "the job is ending")


def stop_asked(job: Job, phase: Phase, event: ev.StopRequested, policy: Policy) -> Outcome:
    """SIGTERM to the whole tree, the grace, then SIGKILL; ftrun ends with the command's own code where it has one."""
    want = Finish(TERMINATED, exit_codes.STOPPED, "stopped by an operator", own=True)
    answer = _answer(event, True, "the command is being stopped")
    match phase:
        case Launching():
            return early(job, phase, event, policy)
        case Starting() | Running() | Suspect():
            return stop(
                job._replace(want=want),
                phase.attempt,
                event.now,
                policy,
                answer,
                say=f"stop requested by {_who(event)}",
            )
        case Stopping(stage="asked"):  # the command has not ended yet after a signal from outside
            job = job._replace(want=want) if isinstance(job.want, Restart) else job
            return stop(job, phase.attempt, event.now, policy, answer, say=f"stop requested by {_who(event)}")
        case Stopping() if isinstance(job.want, Restart):
            return job._replace(want=want._replace(own=False)), answer
        case Stopping() | Done():
            return job, _answer(event, True, "the job is already ending")
    job, effects = again(job._replace(want=want), None, event.now, policy)
    return job, answer + effects


def pause_asked(job: Job, phase: Phase, event: ev.PauseRequested, policy: Policy) -> Outcome:
    """Pause all verdicts.  A current suspicion is dropped; a tree that is already being stopped is still stopped."""
    if isinstance(phase, Done):
        return job, _answer(event, False, "the job is ending")
    before = job.paused or Paused(event.now)
    job = job._replace(paused=before._replace(until=after(event.now, event.lasting)))
    if event.order is not None:
        job = job._replace(announced_pause=float("inf") if event.lasting is None else event.lasting)
    until = "until it is resumed" if event.lasting is None else f"for {durations.seconds(event.lasting)}"
    effects: Effects = _answer(event, True, f"no verdicts {until}")
    effects += (do.Persist("paused", (("for", event.lasting),)), do.LogLine(f"paused: no verdicts {until}"))
    if isinstance(phase, Starting | Running | Suspect):
        return watch(job, phase.attempt, event.now, policy, effects + dropped(phase, "paused"))
    return job, effects


def resume_asked(job: Job, phase: Phase, event: ev.ResumeRequested, policy: Policy) -> Outcome:
    if event.order is not None and not isinstance(phase, Done):
        job = job._replace(announced_pause=0.0)
    if job.paused is None:
        return job, _answer(event, True, "the job was not paused")
    answer = _answer(event, True, "verdicts are on again")
    if isinstance(phase, Starting | Running | Suspect):
        job, attempt, effects = lifted(job, phase.attempt, event.now)
        return watch(job, attempt, event.now, policy, answer + effects)
    return job._replace(paused=None), (*answer, do.Persist("resumed", (("stood", None),)))


def early(job: Job, phase: Launching, event: ev.Event, policy: Policy) -> Outcome:
    """Keep the event until the exec, which is reported within milliseconds."""
    return job._replace(phase=phase._replace(early=(*phase.early[1 - EARLY :], event))), ()


def _who(event: ev.RestartRequested | ev.StopRequested) -> str:
    return (event.order.by if event.order else "") or "the operator"


def _answer(event: Asked, ok: bool, why: str) -> Effects:
    if event.order is None:
        return ()
    what = type(event).__name__.removesuffix("Requested").lower()
    fields = (("what", what), ("id", event.order.id), ("by", event.order.by), ("ok", ok), ("why", why))
    return do.Persist("order", fields), do.Answer(event.order.id, ok, why)
