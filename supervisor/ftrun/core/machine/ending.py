"""How the command ends by itself: its status, and the cause of a failure."""

from typing import TYPE_CHECKING

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.device_faults import fault_that_ended
from ftrun.core.machine.states import Finish, Job, Launching, Watched
from ftrun.core.machine.stopping import AttemptEnd, Outcome, exit_text, restart_or_escalate, stop
from ftrun.core.machine.values import Attempt
from ftrun.core.machine.watching import record_progress
from ftrun.core.rules import exit_codes
from ftrun.core.rules.policy import Policy
from ftrun.core.text import sentences

if TYPE_CHECKING:
    from ftrun.core.rules.crash_causes import Diagnosis
    from ftrun.core.rules.first_death import EarlyLeave

BY_TERMINAL = (1, 2, 3)  # SIGHUP, SIGINT, SIGQUIT: the terminal sends them to the command's process group directly
INTERRUPTED = 130  # 128 + SIGINT: how a program exits that handles Ctrl-C, as a shell reports one that does not


def is_by_request(attempt: Attempt, event: ev.CommandExited | ev.RankExited) -> bool:
    """Whether a signal ended the command that ftrun forwarded, or that came from the terminal."""
    return event.code == INTERRUPTED or event.signal in attempt.forwarded or event.signal in BY_TERMINAL


def on_command_exited(job: Job, phase: Launching | Watched, event: ev.CommandExited, policy: Policy) -> Outcome:
    """Processes that the command left behind are ended too; then its status decides."""
    attempt, status = phase.attempt, exit_codes.shell_status(event.code, event.signal)
    job, attempt, written = record_progress(job, attempt, event.now, policy)
    by_request = is_by_request(attempt, event)
    if attempt.fatal is None and (status == 0 or by_request or isinstance(job.want, Finish)):
        verdict = exit_codes.SUCCEEDED if status == 0 else exit_codes.STOPPED if by_request else exit_codes.FAILED
        job = job._replace(want=Finish(status, verdict, status_text(event)))
        return stop(job, attempt, event.now, policy, (*written, exit_record(event)), in_turn=by_request)
    diagnosis = _diagnose(event)
    why = status_text(event) if diagnosis is None else diagnosis.why
    unnamed = status_text(event._replace(rank=None))
    if why.startswith(unnamed):
        why = status_text(event) + why.removeprefix(unnamed)
        diagnosis = diagnosis and diagnosis._replace(why=why)
    elif not why.startswith(status_text(event)):
        why = f"{status_text(event)}: {why}"
    if diagnosis is not None and (left := _left_early(event, attempt)) is not None:
        why, diagnosis = left.description + why, diagnosis._replace(why=left.description + diagnosis.why)
        event = event._replace(began=left.at, symptom=False)
    if diagnosis is not None and attempt.fatal is not None:
        diagnosis = diagnosis._replace(why=sentences.sentence(attempt.fatal, diagnosis.why))
    written += (exit_record(event, diagnosis),)
    fault = fault_that_ended(attempt, policy)
    if fault is not None:
        why = f"{why}, after device {fault.device} reported {fault.code}"
        return restart_or_escalate(job, attempt, AttemptEnd(event.now, "fault", why, status, fault), policy, written)
    if event.taken_port is not None:
        why = f"another program took port {event.taken_port}, which ftrun had chosen: {why}"
    end = AttemptEnd(event.now, "failure", why, status, is_external=event.taken_port is not None)
    if diagnosis is not None and not diagnosis.recoverable and end.may_restart(policy):
        end = end._replace(incurable=why)
    outcome = restart_or_escalate(job, attempt, end, policy, written)
    return _with_origin(_named(outcome, event, why, len(written), policy), event)


def _named(outcome: Outcome, event: ev.CommandExited, why: str, place: int, policy: Policy) -> Outcome:
    """Name the rank whose failure ends the job without a restart: its traceback may not say whose it is.  Members of a
    group name the first failure of the group."""
    job, effects = outcome
    silent = not any(isinstance(effect, do.LogLine) for effect in effects)
    if event.rank is None or policy.membership.group or not silent or not isinstance(job.want, Finish):
        return outcome
    line = do.LogLine(sentences.sentence(sentences.reason(why), exit_text(job.want)))
    return job, (*effects[:place], line, *effects[place:])


def _with_origin(outcome: Outcome, event: ev.CommandExited) -> Outcome:
    """In a group the failure that began first is the cause: what counts is when the exception was raised."""
    job, effects = outcome
    if job.blame is None:
        return outcome
    began = job.blame.at if event.began is None else min(event.began, job.blame.at)
    blame = job.blame._replace(at=began, rank=event.rank, symptom=event.symptom)
    return job._replace(blame=blame), effects


def _diagnose(event: ev.CommandExited) -> "Diagnosis | None":
    if event.ending is None:
        return None
    from ftrun.core.rules import crash_causes  # loaded late: it has many rules, and most commands never fail

    return crash_causes.diagnose(event.ending)


def _left_early(event: ev.CommandExited, attempt: Attempt) -> "EarlyLeave | None":
    """The rank that had left before, if the command died of what the end of another rank causes."""
    if not event.symptom or event.ending is None or event.ending.cause is None:
        return None
    from ftrun.core.rules import crash_causes, first_death

    cause = event.ending.cause
    if not crash_causes.is_symptom(cause.chain, crash_causes.OF_PEERS):
        return None
    return first_death.left_early(attempt.processes, attempt.ranks, cause.rank if event.rank is None else event.rank)


def exit_record(event: ev.CommandExited, diagnosis: "Diagnosis | None" = None) -> do.Persist:
    fields: do.Fields = (("code", event.code),) if event.signal is None else (("signal", event.signal),)
    fields += () if event.rank is None else (("rank", event.rank),)
    if diagnosis is not None and event.ending is not None:
        fields += (("why", diagnosis.why), ("rule", diagnosis.rule))
        fields += (("oom_kills", event.ending.oom_kills),) if event.ending.oom_kills else ()
        fields += (("output", dict(event.ending.output)),) if event.ending.output else ()
        fields += (("stack", event.ending.stack),) if event.ending.stack else ()
    return do.Persist("exited", fields)


def status_text(event: ev.CommandExited) -> str:
    who = "the command" if event.rank is None else sentences.rank(event.rank)
    if event.signal is not None:
        return f"{sentences.signal(event.signal)} ended {who}"
    return f"{who} exited with {event.code}"
