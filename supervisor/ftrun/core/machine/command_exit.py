"""The command ended by itself: what its status means, and whether a restart can help."""

from typing import TYPE_CHECKING

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.device_faults import blamed
from ftrun.core.machine.states import Finish, Job, Launching, Running, Starting, Suspect
from ftrun.core.machine.stopping import Outcome, restart_or_escalate, stop
from ftrun.core.machine.watching import credit
from ftrun.core.rules import exit_codes
from ftrun.core.rules.policy import Policy
from ftrun.core.text import sentences

if TYPE_CHECKING:
    from ftrun.core.rules.crash_causes import Diagnosis

BY_TERMINAL = (1, 2, 3)  # SIGHUP, SIGINT, SIGQUIT: the terminal sends them to the command's process group directly


def exited(
    job: Job, phase: Launching | Starting | Running | Suspect, event: ev.CommandExited, policy: Policy
) -> Outcome:
    """Processes that the command left behind are ended too; then its status decides."""
    attempt, status = phase.attempt, exit_codes.own(event.code, event.signal)
    job, attempt, written = credit(job, attempt, event.now, policy)
    by_request = event.signal is not None and (event.signal in attempt.forwarded or event.signal in BY_TERMINAL)
    if attempt.fatal is None and (status == 0 or by_request or isinstance(job.want, Finish)):
        verdict = exit_codes.SUCCEEDED if status == 0 else exit_codes.STOPPED if by_request else exit_codes.FAILED
        job = job._replace(want=Finish(status, verdict, _ending(event)))
        return stop(job, attempt, event.now, policy, (*written, exit_record(event)))
    diagnosis = _diagnosis(event)
    why = _ending(event) if diagnosis is None else diagnosis.why
    if not why.startswith(_ending(event)):
        why = f"{_ending(event)}: {why}"
    written += (exit_record(event, diagnosis),)
    fault = blamed(attempt, policy)
    if fault is not None:
        why = f"{why}, after device {fault.device} reported {fault.code}"
        return restart_or_escalate(job, attempt, "fault", why, event.now, policy, written, status, fault)
    final = diagnosis is not None and not diagnosis.recoverable and "failure" in policy.restart_on
    incurable = why if final else None
    return restart_or_escalate(job, attempt, "failure", why, event.now, policy, written, status, incurable=incurable)


def _diagnosis(event: ev.CommandExited) -> "Diagnosis | None":
    if event.ending is None:
        return None
    from ftrun.core.rules import crash_causes  # loaded late: it has many rules, and most commands never fail

    return crash_causes.diagnose(event.ending)


def exit_record(event: ev.CommandExited, diagnosis: "Diagnosis | None" = None) -> do.Persist:
    fields: tuple[tuple[str, object], ...] = (
        (("code", event.code),) if event.signal is None else (("signal", event.signal),)
    )
    if diagnosis is not None and event.ending is not None:
        fields += (("why", diagnosis.why), ("rule", diagnosis.rule))
        fields += (("oom_kills", event.ending.oom_kills),) if event.ending.oom_kills else ()
    return do.Persist("exited", fields)


def _ending(event: ev.CommandExited) -> str:
    if event.signal is not None:
        return f"{sentences.signal(event.signal)} ended the command"
    return f"the command exited with {event.code}"
