"""How an attempt, or the job, is stopped: restart within the restart budget, otherwise escalate."""

from collections.abc import Mapping
from typing import Final

from ftrun.core.machine import effects as do
from ftrun.core.machine.states import Blame, Done, Finish, Job, Restart, Stage, Stopping
from ftrun.core.machine.values import Attempt, Cause, Fault, Ledger
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules import exit_codes
from ftrun.core.rules.fault_history import TIMES, times_in_a_row, vain_schedules
from ftrun.core.rules.policy import LIMIT, Policy, backoff, extent, has_ended_before, is_exhausted
from ftrun.core.text import durations, sentences

ORDINARY = (exit_codes.SUCCEEDED, exit_codes.FAILED)  # the job ends as without ftrun; their record need not be durable
INPUT_SPENT: Final = (
    "no restart can run the same program, because the command has read from the pipe on its standard input"
)
Effects = tuple[do.Effect, ...]
Outcome = tuple[Job, Effects]


class AttemptEnd(NamedTuple):
    """Why an attempt ends, `at` this time: `why` is a sentence, and `cause` the restart budget that a restart uses up.
    `status`: of a command that has ended by itself.  `incurable`: why no restart helps.  `evidence`: of a hang.
    `grace`: seconds for the tree to end after SIGTERM; None: those of the policy.  `is_external`: the program has not
    failed, so that it is restarted whatever --restart-on has."""

    at: float
    cause: Cause
    why: str
    status: int | None = None
    fault: Fault | None = None
    incurable: str | None = None
    evidence: Mapping[str, object] = {}
    grace: float | None = None
    is_external: bool = False

    def may_restart(self, policy: Policy) -> bool:
        """Whether the policy has restarts for this cause at all."""
        return self.is_external or self.cause in policy.restart_on


def restart_or_escalate(job: Job, attempt: Attempt, end: AttemptEnd, policy: Policy, so_far: Effects) -> Outcome:
    """Restart within the restart budget, otherwise escalate."""
    cause, fault, verdict = end.cause, end.fault, _verdict(job, attempt, end, policy)
    troubles, again = job.ledger.troubles, ""
    if cause != "fault":
        from ftrun.core.text import recurrences  # most commands never hang or fail

        place = recurrences.place(str(end.evidence.get("why") or "") if cause == "hang" else end.why)
        troubles, again = recurrences.remembered(troubles, cause, place)
    job = job._replace(ledger=job.ledger._replace(troubles=troubles))
    job = job._replace(blame=Blame(end.at, cause, sentences.sentence(end.why, again)))
    killing = sentences.killing(end.evidence) if end.status is None else ""
    if verdict is not None:
        job = job._replace(want=verdict)
        if verdict.verdict == exit_codes.FAILED and not end.may_restart(policy):
            return stop(job, attempt, end.at, policy, so_far, grace=end.grace)  # as without ftrun: no log line
        why = sentences.reason(verdict.message)
        message = sentences.sentence(
            why, again, killing, _why_no_restart(job, end, policy), exit_text(verdict), sentences.report(end.evidence)
        )
        return stop(
            job, attempt, end.at, policy, (*so_far, escalation_record(cause, verdict)), message, grace=end.grace
        )
    ledger = job.ledger.counted(cause)
    if after_end := cause == "hang" and attempt.is_at_end:
        ledger = ledger._replace(ended_at=extent(ledger))
    heal = (fault,) if fault is not None and fault.acts else ()  # after a fault of severity `user` nothing is to heal
    most = 1 if after_end else policy.max_restarts
    want = Restart(cause, ledger.count(cause), backoff(ledger, cause, policy), heal, end.status)
    job = job._replace(ledger=ledger, want=want)
    message = sentences.sentence(
        sentences.reason(end.why),
        again,
        killing,
        _healing_text(want, policy),
        _restart_text(want, most),
        sentences.report(end.evidence),
    )
    return stop(job, attempt, end.at, policy, so_far, message, grace=end.grace)


def _verdict(job: Job, attempt: Attempt, end: AttemptEnd, policy: Policy) -> Finish | None:
    """The verdict with which the job ends; None: it is restarted."""
    cause, why, fault = end.cause, end.why, end.fault
    if attempt.fatal is not None or end.incurable is not None:
        return finish_with(exit_codes.NON_RECOVERABLE, attempt.fatal or end.incurable or why)
    if fault is not None and fault.by_user and is_third_in_a_day(job.ledger, fault, policy):
        why = f"{why}, for the {sentences.ordinal(TIMES)} time in 24 hours"
        return unless_schedules_exhausted(job, finish_with(exit_codes.USER_FAULT_LIMIT, why, fault.device))
    may_restart = end.may_restart(policy) and not job.input_spent and not is_exhausted(job.ledger, cause, policy)
    if cause == "hang" and (has_ended_before(job.ledger) or (attempt.is_at_end and not may_restart)):
        # There is nothing left to train, so that neither another restart nor another schedule gets further (ADR 39).
        if not attempt.is_at_end:
            why += ", in a restart of a training that had reached its end or its exit"
        elif has_ended_before(job.ledger):
            why += "; the same happened before the last restart"
        return finish_with(exit_codes.SHUTDOWN_HANG, why)
    if may_restart:
        return None
    if cause == "failure" and (not end.may_restart(policy) or policy.unconditional or job.input_spent):
        return unless_schedules_exhausted(job, Finish(end.status or 1, exit_codes.FAILED, why))
    limit = _limit_verdict(cause, fault, policy)
    if fault is not None and not fault.by_user and limit is exit_codes.USER_FAULT_LIMIT:
        number = job.ledger.fault + 1
        why += f", the {sentences.ordinal(number)} device fault in a row without progress; together they blame no node"
    return unless_schedules_exhausted(job, finish_with(limit, why, fault and fault.device))


def _limit_verdict(cause: Cause, fault: Fault | None, policy: Policy) -> exit_codes.Verdict:
    """The verdict where no restart in place is left.

    ModelArts isolates a node where healing fails and where the same code recurs, whatever the number of restarts:
    different faults in a row do not point at one node, so the job is rescheduled without isolation.  Where faults are
    not restarted in place at all, a fault of a chip leads to rescheduling with isolation ("Comparison of recovery
    policies").
    """
    in_place = cause in policy.restart_on and policy.max_restarts != 0
    if fault is not None and (fault.by_user or in_place):
        return exit_codes.USER_FAULT_LIMIT
    if cause == "hang" and policy.limit_fails:
        # ModelArts ("Restart upon Suspension", degradation policies): after three in a row the job is ended as failed.
        return exit_codes.FAILURE_LIMIT
    return LIMIT[cause]


def is_third_in_a_day(ledger: Ledger, fault: Fault, policy: Policy) -> bool:
    """Whether the last occurrence of this fault on this node was the third in a row within a day
    (`fault_history.times_in_a_row`).  Faults without a code are not counted, since they need not be the same."""
    same = [o for o in ledger.occurrences if o.key == (policy.membership.node, *fault.key)]
    return bool(same) and times_in_a_row(ledger.occurrences, same[-1]) >= TIMES


def unless_schedules_exhausted(job: Job, want: Finish) -> Finish:
    """The given verdict, or `failure-limit` where this is the fourth schedule in a row without progress.

    ModelArts ("Unconditional Job-Level Rescheduling", degradation policies) reschedules three times in a row; if the
    fourth schedule has the same problem and there is no clear fault of a node or chip, it assumes an error in the
    user's code and the job fails.  A verdict that isolates no node means that there is no such fault.
    """
    vain, clear = vain_schedules(job.past), job.ledger.faulted and want.code != exit_codes.USER_FAULT_LIMIT.code
    if job.ledger.reached or clear or vain < TIMES:
        return want
    which = f"the {sentences.ordinal(vain + 1)} schedule in a row"
    why = f"{want.message}; this is {which}, and it got no further than the first"
    return finish_with(exit_codes.FAILURE_LIMIT, why)


def escalation_record(cause: str, want: Finish) -> do.Persist:
    fields = (("cause", cause), ("verdict", want.verdict), ("exit_code", want.code), ("why", want.message))
    return do.Persist("escalated", fields, durable=True)


def finish_with(verdict: exit_codes.Verdict, why: str, device: str | None = None) -> Finish:
    return Finish(verdict.code, verdict.name, why, device=device)


def exit_text(want: Finish) -> str:
    return f"ending with {want.code} ({want.verdict})"


def _why_no_restart(job: Job, end: AttemptEnd, policy: Policy) -> str:
    """Why the policy permits no further restart; empty where another reason prevents it."""
    if not end.may_restart(policy):
        return f"a {end.cause} causes no restart (--restart-on)"
    if job.input_spent and policy.max_restarts != 0:
        return INPUT_SPENT
    if not is_exhausted(job.ledger, end.cause, policy):
        return ""
    limit = policy.max_restarts or 0
    if not limit:
        return "restarts are off (--max-restarts 0)"
    return f"{sentences.several(limit, 'restart')} in a row without progress"


def _healing_text(want: Restart, policy: Policy) -> str:
    if not want.faults:
        return ""
    return f"healing {want.faults[0].device} first, for at most {durations.seconds(policy.limits.heal_timeout)}"


def _restart_text(want: Restart, most: int | None) -> str:
    of = f" of {most}" if most is not None else ""
    after = f", in {durations.seconds(want.delay)}" if want.delay else ""
    return f"restart {want.consecutive}{of} without progress{after}"


def stop(
    job: Job,
    attempt: Attempt,
    now: float,
    policy: Policy,
    so_far: Effects = (),
    say: str | None = None,
    in_turn: bool = False,
    grace: float | None = None,
) -> Outcome:
    """Stop the whole tree by decision of ftrun, with the log line `say`.  `in_turn`: see `do.Terminate`.  `grace`:
    seconds from SIGTERM to SIGKILL; None: those of the policy."""
    log_lines, grace = () if say is None else (do.LogLine(say),), policy.limits.grace if grace is None else grace
    if grace <= 0:
        job, effects = kill(job, attempt, now, policy)
        return job, (*so_far, effects[0], *log_lines, *effects[1:])
    written = do.Persist("stopping", (("by", "SIGTERM"), ("grace", grace)))
    job = job._replace(phase=Stopping(attempt, "term", now + grace))
    return job, (*so_far, written, *log_lines, do.Terminate(in_turn))


def stop_leftovers(job: Job, phase: Stopping, now: float, policy: Policy, so_far: Effects, handled: bool) -> Outcome:
    """The command has ended after it was asked to from outside.  A shell does not handle the signal and leaves the
    program that it has started, which only now learns of the request: it has what is left of `--stop-grace` then, and
    always `--grace`."""
    rest = 0.0 if handled or phase.deadline is None else phase.deadline - now
    grace = rest if 0 < policy.limits.grace < rest else policy.limits.grace
    return stop(job, phase.attempt, now, policy, so_far, in_turn=True, grace=grace)


def kill(job: Job, attempt: Attempt, now: float, policy: Policy) -> Outcome:
    """Kill the whole tree with SIGKILL."""
    killing = Stopping(attempt, "kill", now + policy.limits.kill_timeout)
    return job._replace(phase=killing), (do.Persist("stopping", (("by", "SIGKILL"),)), do.Kill())


def await_end(job: Job, attempt: Attempt, now: float, grace: float | None) -> Job:
    """The command was asked from outside to end; it gets `grace` seconds, or (None) as long as it needs."""
    return await_stage(job, attempt, "asked", deadline_after(now, grace))


def await_stage(job: Job, attempt: Attempt, stage: Stage, deadline: float | None) -> Job:
    """Wait for what ends this stage."""
    return job._replace(phase=Stopping(attempt, stage, deadline))


def finish(job: Job, want: Finish) -> Outcome:
    """End the job.  The restart budget is for one run: a scheduler that starts ftrun again after a verdict grants a new
    one."""
    ledger = job.ledger._replace(hang=0, fault=0, failure=0, ended_at=())
    if want.verdict == exit_codes.USER_FAULT_LIMIT.name:
        ledger = ledger._replace(faulted=False)  # so that such schedules count, and do not repeat without end
    fields = (("verdict", want.verdict), ("exit_code", want.code), ("why", want.message))
    written = do.Persist("ended", fields, want.verdict not in ORDINARY)
    job = done_with(job._replace(ledger=ledger), want)
    return job, (written, do.Exit(want.code, want.verdict, want.message, want.node, want.device))


def done_with(job: Job, want: Finish) -> Job:
    """The job after its last effect."""
    return job._replace(phase=Done(want.code), want=want)


def isolate(job: Job, why: str, so_far: Effects = (), cause: str = "fault", device: str | None = None) -> Outcome:
    """The tree is dead, and this node is to be isolated."""
    return conclude(job, finish_with(exit_codes.NODE_FAULT, why, device), so_far, cause)


def conclude(job: Job, want: Finish, so_far: Effects = (), cause: str = "fault") -> Outcome:
    """The tree is dead: end with this verdict and log it."""
    job, effects = finish(job, want)
    return job, (
        *so_far,
        escalation_record(cause, want),
        do.LogLine(sentences.sentence(want.message, exit_text(want))),
        *effects,
    )


def stopped_by(signal: int) -> Finish:
    return Finish(
        128 + signal, exit_codes.STOPPED, f"stopped from outside by {sentences.signal(signal)}", own=True, asked=True
    )


def deadline_after(now: float, duration: float | None) -> float | None:
    return None if duration is None else now + duration
