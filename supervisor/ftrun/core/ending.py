"""How an attempt, or the job, is brought to its end: restart within the budget, else escalate."""

from ftrun.core import effects as do
from ftrun.core import exitcode, words
from ftrun.core.policy import LIMIT, Policy, exhausted, wait
from ftrun.core.states import Again, Done, Finish, Job, Stopping
from ftrun.core.values import Attempt, Cause, Fault, Ledger

ORDINARY = (exitcode.SUCCEEDED, exitcode.FAILED)  # ends as without ftrun: nothing hangs on their record
Effects = tuple[do.Effect, ...]
Outcome = tuple[Job, Effects]


def trouble(
    job: Job,
    attempt: Attempt,
    cause: Cause,
    why: str,
    now: float,
    policy: Policy,
    so_far: Effects,
    own: int | None = None,
    fault: Fault | None = None,
) -> Outcome:
    """Restart within the budget, else escalate; `own` is the command's status if it has ended by itself."""
    want: Again | Finish
    if attempt.fatal is not None:
        want = finish_with(exitcode.NON_RECOVERABLE, attempt.fatal)
    elif cause == "failure" and cause not in policy.restart_on:
        want = Finish(own or 0, exitcode.FAILED, why)
    elif cause not in policy.restart_on or exhausted(job.ledger, cause, policy):
        by_user = fault is not None and fault.severity == "user"
        verdict = exitcode.USER_FAULT_LIMIT if by_user else LIMIT[cause]
        want = finish_with(verdict, why)
    else:
        ledger = job.ledger.counted(cause)
        job = job._replace(ledger=ledger)
        heal = fault if fault is not None and fault.severity != "user" else None  # there is nothing to heal in that one
        want = Again(cause, ledger.count(cause), wait(ledger, cause, policy), heal)
    job = job._replace(want=want)
    if (
        isinstance(want, Finish) and want.verdict == exitcode.FAILED
    ):  # an ordinary failure with nobody to restart it needs no words of ours
        return stop(job, attempt, now, policy, so_far)
    if isinstance(want, Finish):
        so_far += (escalation(cause, want),)
    return stop(job, attempt, now, policy, so_far, _announcement(why, want, policy))


def escalation(cause: str, want: Finish) -> do.Persist:
    fields = (("cause", cause), ("verdict", want.verdict), ("exit_code", want.code), ("why", want.message))
    return do.Persist("escalated", fields, durable=True)


def finish_with(verdict: exitcode.Verdict, why: str) -> Finish:
    return Finish(verdict.code, verdict.name, why)


def _announcement(why: str, want: Again | Finish, policy: Policy) -> str:
    if isinstance(want, Finish):
        return f"{why}; ending with {want.code} ({want.verdict})"
    of = f" of {policy.max_restarts}" if policy.max_restarts is not None else ""
    after = f" in {words.seconds(want.delay)}" if want.delay else ""
    return f"{why}; restart {want.consecutive}{of} without progress{after}"


def stop(
    job: Job, attempt: Attempt, now: float, policy: Policy, so_far: Effects = (), say: str | None = None
) -> Outcome:
    """End the whole tree by our own decision."""
    said = () if say is None else (do.Say(say),)
    if policy.grace <= 0:
        written = do.Persist("stopping", (("by", "SIGKILL"),))
        return job._replace(phase=Stopping(attempt, "kill", now + policy.kill_timeout)), (
            *so_far,
            written,
            *said,
            do.Kill(),
        )
    written = do.Persist("stopping", (("by", "SIGTERM"), ("grace", policy.grace)))
    return job._replace(phase=Stopping(attempt, "term", now + policy.grace)), (*so_far, written, *said, do.Terminate())


def finish(job: Job, code: int, verdict: str, message: str) -> Outcome:
    """Budgets are for one run: whoever starts us again after a verdict has decided to give it new ones."""
    ledger: Ledger = job.ledger._replace(hang=0, fault=0, failure=0)
    written = do.Persist(
        "ended", (("verdict", verdict), ("exit_code", code), ("why", message)), verdict not in ORDINARY
    )
    return Job(Done(code), Finish(code, verdict, message), ledger), (written, do.Exit(code, verdict, message))


def stopped_by(signal: int) -> Finish:
    return Finish(128 + signal, exitcode.STOPPED, f"stopped from outside by signal {signal}", own=True)


def after(now: float, duration: float | None) -> float | None:
    return None if duration is None else now + duration
