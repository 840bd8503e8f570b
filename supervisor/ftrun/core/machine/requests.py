"""Requests of the operator and of the platform, and how each phase handles them.

Every request of the operator is recorded and answered.  The platform's requests are those of MindCluster in
`reset.json` (helpers/reset_file/contents.py), GracefulExit and RetryTime: they are explicit, so ftrun follows them even
if the command is healthy.  No request uses up the restart budget.
"""

import signal
from collections.abc import Callable
from typing import Any, Final

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.pause import lift
from ftrun.core.machine.restarting import heal_or_release, is_spare, start_or_finish
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
    Watched,
)
from ftrun.core.machine.stopping import INPUT_SPENT, Effects, Outcome, await_end, deadline_after, stop
from ftrun.core.machine.watching import check, cleared_record
from ftrun.core.rules import exit_codes
from ftrun.core.rules.policy import Policy
from ftrun.core.text import durations, sentences

OperatorEvent = ev.RestartRequested | ev.StopRequested | ev.PauseRequested | ev.ResumeRequested
MOST_KEPT = 64  # events that wait for the exec
GRACE: Final = 600.0  # s from SIGTERM to SIGKILL that MindCluster's own agent gives the processes (taskd, GracefulExit)
Handler = Callable[[Job, Any, Any, Policy], Outcome]


def refuse_late(handler: Handler) -> Handler:
    """The handler, except that a request is refused once its sender has given up waiting for the answer."""

    def handle_in_time(job: Job, phase: Any, event: Any, policy: Policy) -> Outcome:
        if event.requester is not None and event.now >= event.requester.until:
            return job, _answer(event, False, "the request arrived too late")
        return handler(job, phase, event, policy)

    return handle_in_time


def request_event(verb: str, requester: ev.Requester, lasting: float | None, now: float) -> OperatorEvent:
    """The event for a request with this verb; ValueError for an unknown verb."""
    match verb:
        case "restart":
            return ev.RestartRequested(now, requester)
        case "stop":
            return ev.StopRequested(now, requester)
        case "pause":
            return ev.PauseRequested(now, requester, None if lasting is None else float(lasting))
        case "resume":
            return ev.ResumeRequested(now, requester)
    raise ValueError(verb)


@refuse_late
def on_restart_requested(job: Job, phase: Phase, event: ev.RestartRequested, policy: Policy) -> Outcome:
    """Restart the command; this uses up no restart budget."""
    match phase:
        case Launching():
            return keep_until_exec(job, phase, event, policy)
        case Starting() | Running() | Suspect() if job.input_spent:
            return job, _answer(event, False, INPUT_SPENT)
        case Starting() | Running() | Suspect():
            line = f"restart requested by {_requester(event)}"
            job = job._replace(want=Restart("manual"), blame=Blame(event.now, "manual", line))
            answer = _answer(event, True, "the command is being stopped and will be started again")
            return stop(job, phase.attempt, event.now, policy, answer, line)
        case Pending() if is_spare(job, policy):
            return job, _answer(event, False, "this member waits as a spare: restart one that works")
        case Pending() if isinstance(job.want, Restart):
            job, effects = start_or_finish(job._replace(want=job.want._replace(delay=0.0)), None, event.now, policy)
            waits = "the command starts as soon as the platform permits it and its devices are healthy"
            if isinstance(job.phase, Pending):
                waits = "the command starts as soon as all members of the group can start it"
            why = "the command starts without further delay" if isinstance(job.phase, Launching) else waits
            return job, _answer(event, True, why) + effects
        case Stopping() | Healing() if isinstance(job.want, Restart):
            return job, _answer(event, True, "a restart is already under way")
        case Pending() | Healing() if isinstance(job.want, KeepRunning):  # before the first start
            return job, _answer(event, True, "nothing is to be stopped: the command starts as soon as it can")
    return job, _answer(event, False, "the job is ending")


@refuse_late
def on_stop_requested(job: Job, phase: Phase, event: ev.StopRequested, policy: Policy) -> Outcome:
    """SIGTERM to the whole tree, the grace, then SIGKILL; ftrun ends with the command's own code where it has one."""
    want = Finish(128 + signal.SIGTERM, exit_codes.STOPPED, "stopped by an operator", own=True)
    answer, line = _answer(event, True, "the command is being stopped"), f"stop requested by {_requester(event)}"
    match phase:
        case Launching():
            return keep_until_exec(job, phase, event, policy)
        case Starting() | Running() | Suspect():
            return stop(job._replace(want=want), phase.attempt, event.now, policy, answer, line)
        case Stopping(stage="asked"):  # the command has not ended yet after a signal from outside
            job = job._replace(want=want) if isinstance(job.want, Restart) else job
            return stop(job, phase.attempt, event.now, policy, answer, line)
        case Stopping() if isinstance(job.want, Restart):
            return job._replace(want=want._replace(own=False)), answer
        case Stopping() | Done():
            return job, _answer(event, True, "the job is already ending")
    job, effects = start_or_finish(job._replace(want=want), None, event.now, policy)
    return job, answer + effects


@refuse_late
def on_pause_requested(job: Job, phase: Phase, event: ev.PauseRequested, policy: Policy) -> Outcome:
    """Pause all verdicts.  A current suspicion is dropped; a tree that is already being stopped is still stopped."""
    if isinstance(phase, Done):
        return job, _answer(event, False, "the job is ending")
    before = job.paused or Paused(event.now)
    by = "" if event.requester is None else _requester(event)
    job = job._replace(paused=before._replace(until=deadline_after(event.now, event.lasting), by=by))
    job = job._replace(announced_pause=None if event.requester is None else _announcement(job, event.lasting))
    until = "until it is resumed" if event.lasting is None else f"for {durations.seconds(event.lasting)}"
    effects: Effects = _answer(event, True, f"no verdicts {until}")
    effects += (do.Persist("paused", (("for", event.lasting), ("by", by))),)
    effects += (do.LogLine(f"paused by {by or 'another member'}: no verdicts {until}"),)
    if isinstance(phase, Watched):
        return check(job, phase.attempt, event.now, policy, effects + cleared_record(phase, "paused"))
    return job, effects


def _announcement(job: Job, lasting: float | None) -> float:
    """How long the pause lasts, for the other members.  If that is as long as the last one, it differs by a trifle, so
    that they see that it is another."""
    found = float("inf") if lasting is None else lasting
    while found < float("inf") and found in (job.announced_pause, job.order and job.order.paused):
        found += max(1e-6, found * 1e-9)
    return found


@refuse_late
def on_resume_requested(job: Job, phase: Phase, event: ev.ResumeRequested, policy: Policy) -> Outcome:
    if not isinstance(phase, Done):
        job = job._replace(announced_pause=None if event.requester is None else 0.0)
    if job.paused is None:
        return job, _answer(event, True, "the job was not paused")
    answer = _answer(event, True, "verdicts are on again")
    if isinstance(phase, Watched):
        job, attempt, effects = lift(job, phase.attempt, event.now)
        return check(job, attempt, event.now, policy, answer + effects)
    return job._replace(paused=None), (*answer, do.Persist("resumed", (("stood", None),)))


def on_start_permission(job: Job, phase: Phase, event: ev.StartPermission, policy: Policy) -> Outcome:
    """Where the platform requests the end of the command: SIGTERM and the grace of a stop from outside
    (`--stop-grace`), or `GRACE`, so that the command can save.  ftrun itself keeps running, since its end would count
    as the end of the job, and starts nothing until the platform permits it."""
    job = job._replace(held=event.why, leaving=event.ends)
    if isinstance(phase, Healing) and phase.fault is None and event.why is None:
        return heal_or_release(job, phase, event.now, policy)
    if not event.ends or event.why is None:
        return job, ()
    if isinstance(phase, Launching):
        return keep_until_exec(job, phase, event, policy)
    if not isinstance(phase, Watched):
        return job, ()
    grace = GRACE if policy.limits.stop_grace is None else policy.limits.stop_grace
    why = f"requested by the platform: {event.why}"
    return await_end(job._replace(want=Restart("peer")), phase.attempt, event.now, grace), (
        do.Persist("platform", (("what", "end"), ("why", event.why))),
        do.Persist("stopping", (("by", "platform"), ("signal", int(signal.SIGTERM)))),
        do.LogLine(sentences.sentence(why, "stopping the command, ftrun keeps running")),
        do.Forward(signal.SIGTERM),
    )


def on_rescheduled(job: Job, phase: Watched, event: ev.Rescheduled, policy: Policy) -> Outcome:
    """Restart the command, since the other pods wait for this one."""
    written = do.Persist("platform", (("what", "restart"), ("why", event.why)))
    line = sentences.sentence(event.why, "restarting the command together with the other pods")
    return stop(job._replace(want=Restart("peer")), phase.attempt, event.now, policy, (written,), line)


def keep_until_exec(job: Job, phase: Launching, event: ev.Event, policy: Policy) -> Outcome:
    """Keep the event until the exec, which is reported within milliseconds."""
    return job._replace(phase=phase._replace(early=(*phase.early[1 - MOST_KEPT :], event))), ()


def _requester(event: ev.RestartRequested | ev.StopRequested | ev.PauseRequested) -> str:
    return (event.requester.by if event.requester else "") or "the operator"


def _answer(event: OperatorEvent, ok: bool, why: str) -> Effects:
    if event.requester is None:
        return ()
    what = type(event).__name__.removesuffix("Requested").lower()
    fields = (("what", what), ("id", event.requester.id), ("by", event.requester.by), ("ok", ok), ("why", why))
    return do.Persist("order", fields), do.AnswerOperator(event.requester.id, ok, why)
