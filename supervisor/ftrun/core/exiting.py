"""The command ended by itself: what that means, and whether another start can help."""

from typing import TYPE_CHECKING

from ftrun.core import effects as do
from ftrun.core import events as ev
from ftrun.core import exitcode, words
from ftrun.core.ending import Outcome, stop, trouble
from ftrun.core.faulting import blamed
from ftrun.core.policy import Policy
from ftrun.core.states import Finish, Job, Launching, Running, Starting, Suspect
from ftrun.core.watching import credit

if TYPE_CHECKING:
    from ftrun.core.failures import Judgement

BY_TERMINAL = (1, 2, 3)  # SIGHUP, SIGINT, SIGQUIT: they reach the command's group past us


def exited(job: Job, phase: Launching | Starting | Running | Suspect, event: ev.Exited, policy: Policy) -> Outcome:
    """What the command left behind is ended too, then its status decides."""
    attempt, status = phase.attempt, exitcode.own(event.code, event.signal)
    job, attempt, written = credit(job, attempt, event.now, policy)
    by_request = event.signal is not None and (event.signal in attempt.forwarded or event.signal in BY_TERMINAL)
    if attempt.fatal is None and (status == 0 or by_request or isinstance(job.want, Finish)):
        verdict = exitcode.SUCCEEDED if status == 0 else exitcode.STOPPED if by_request else exitcode.FAILED
        job = job._replace(want=Finish(status, verdict, _ending(event)))
        return stop(job, attempt, event.now, policy, (*written, exit_record(event)))
    found = _judged(event)
    why = _ending(event) if found is None else found.why
    if not why.startswith(_ending(event)):
        why = f"{_ending(event)}: {why}"
    written += (exit_record(event, found),)
    fault = blamed(attempt, policy)
    if fault is not None:
        why = f"{why}, after device {fault.device} reported {fault.code}"
        return trouble(job, attempt, "fault", why, event.now, policy, written, status, fault)
    incurable = why if found is not None and not found.recoverable and "failure" in policy.restart_on else None
    return trouble(job, attempt, "failure", why, event.now, policy, written, status, incurable=incurable)


def _judged(event: ev.Exited) -> "Judgement | None":
    if event.ending is None:
        return None
    from ftrun.core import failures  # its rules are many, and most commands never fail

    return failures.judge(event.ending)


def exit_record(event: ev.Exited, found: "Judgement | None" = None) -> do.Persist:
    fields: tuple[tuple[str, object], ...] = (
        (("code", event.code),) if event.signal is None else (("signal", event.signal),)
    )
    if found is not None and event.ending is not None:
        fields += (("why", found.why), ("rule", found.rule))
        fields += (("oom_kills", event.ending.oom_kills),) if event.ending.oom_kills else ()
    return do.Persist("exited", fields)


def _ending(event: ev.Exited) -> str:
    if event.signal is not None:
        return f"{words.signal(event.signal)} ended the command"
    return f"the command exited with {event.code}"
