"""Orders of the operator, and what each phase makes of them.  Every order is written down and answered."""

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
    """The same, but who gave an order and has been told that nobody hears it is taken at that word."""

    def heard(job: Job, phase: Any, event: Any, policy: Policy) -> Outcome:
        if event.order is not None and event.now >= event.order.until:
            return job, _answer(event, False, "it was heard too late")
        return handler(job, phase, event, policy)

    return heard


def asked(verb: str, order: ev.OperatorRequest, lasting: float | None, now: float) -> Asked:
    """The event that an order is; ValueError for a verb that is none."""
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
    """Costs no budget."""
    match phase:
        case Launching():
            return early(job, phase, event, policy)
        case Starting() | Running() | Suspect():
            said = f"restart by order of {_who(event)}"
            job = job._replace(want=Restart("manual"), blame=Blame(event.now, "manual", said))
            answer = _answer(event, True, "the command is being ended, then started again")
            return stop(job, phase.attempt, event.now, policy, answer, said)
        case Pending() if isinstance(job.want, Restart):
            job, effects = again(job._replace(want=job.want._replace(delay=0.0)), None, event.now, policy)
            waits = "it is started as soon as the platform permits it, and its devices are well"
            why = "started without further waiting" if isinstance(job.phase, Launching) else waits
            return job, _answer(event, True, why) + effects
        case Stopping() | Healing() if isinstance(job.want, Restart):
            return job, _answer(event, True, "a restart is under way already")
        case Pending() if isinstance(job.want, KeepRunning):
            return job, _answer(event, True, "it is about to be started")
    return job, _answer(event, False, "it is ending")


def stop_asked(job: Job, phase: Phase, event: ev.StopRequested, policy: Policy) -> Outcome:
    """SIGTERM to the whole tree, the grace, SIGKILL; ends with the command's own code where it has one."""
    want = Finish(TERMINATED, exit_codes.STOPPED, "stopped by order of the operator", own=True)
    answer = _answer(event, True, "the command is being ended")
    match phase:
        case Launching():
            return early(job, phase, event, policy)
        case Starting() | Running() | Suspect():
            return stop(
                job._replace(want=want), phase.attempt, event.now, policy, answer, say=f"stop by order of {_who(event)}"
            )
        case Stopping(stage="asked"):  # it takes its time with the signal from outside
            job = job._replace(want=want) if isinstance(job.want, Restart) else job
            return stop(job, phase.attempt, event.now, policy, answer, say=f"stop by order of {_who(event)}")
        case Stopping() if isinstance(job.want, Restart):
            return job._replace(want=want._replace(own=False)), answer
        case Stopping() | Done():
            return job, _answer(event, True, "it is ending already")
    job, effects = again(job._replace(want=want), None, event.now, policy)
    return job, answer + effects


def pause_asked(job: Job, phase: Phase, event: ev.PauseRequested, policy: Policy) -> Outcome:
    """A suspicion under way is dropped; a tree that is being ended is not spared."""
    if isinstance(phase, Done):
        return job, _answer(event, False, "it is ending")
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
        return job, _answer(event, True, "it was not paused")
    answer = _answer(event, True, "judging again")
    if isinstance(phase, Starting | Running | Suspect):
        job, attempt, effects = lifted(job, phase.attempt, event.now)
        return watch(job, attempt, event.now, policy, answer + effects)
    return job._replace(paused=None), (*answer, do.Persist("resumed", (("stood", None),)))


def early(job: Job, phase: Launching, event: ev.Event, policy: Policy) -> Outcome:
    """What has to wait for the exec, which answers within milliseconds."""
    return job._replace(phase=phase._replace(early=(*phase.early[1 - EARLY :], event))), ()


def _who(event: ev.RestartRequested | ev.StopRequested) -> str:
    return (event.order.by if event.order else "") or "the operator"


def _answer(event: Asked, ok: bool, why: str) -> Effects:
    if event.order is None:
        return ()
    what = type(event).__name__.removesuffix("Requested").lower()
    fields = (("what", what), ("id", event.order.id), ("by", event.order.by), ("ok", ok), ("why", why))
    return do.Persist("order", fields), do.Answer(event.order.id, ok, why)
