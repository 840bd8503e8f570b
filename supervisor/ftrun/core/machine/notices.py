"""What ftrun writes of its own accord: a line at the start, a warning if no rule can find a hang, and a record where no
command has run for long.

Pure; times are CLOCK_MONOTONIC seconds.
"""

from typing import Final

from ftrun.core.machine.restarting import is_spare
from ftrun.core.machine.states import Finish, Healing, Job, Pending, Running, Starting, Stopping
from ftrun.core.machine.values import Attempt
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules import liveness
from ftrun.core.rules.liveness import Limits
from ftrun.core.rules.policy import Policy
from ftrun.core.text import durations, sentences

# Seconds after the exec without a heartbeat: loading a model takes minutes, and an earlier warning would be wrong too
# often.
UNWATCHED: Final = 300.0
UNSEEN: Final = 60.0  # the same where it is known that no heartbeat will come by itself
WAITING: Final = 300.0  # s without a command until a wait is recorded


class LongWait(NamedTuple):
    """No command has run for so many seconds, and why."""

    seconds: float
    why: str


class GivenNotices(NamedTuple):
    """Which lines were written before: each comes once in the life of an ftrun.  `idle_since`: since when no command
    has run, and something is waited for; `waiting`: that wait is recorded."""

    started: bool = False
    unwatched: bool = False
    idle_since: float | None = None
    waiting: bool = False


class Notices(NamedTuple):
    """What is due now.  `given` includes it; `due` is when the next may be, or None."""

    given: GivenNotices
    lines: tuple[str, ...] = ()
    due: float | None = None
    wait: LongWait | None = None


def notices(job: Job, policy: Policy, given: GivenNotices, run_dir: str, now: float) -> Notices:
    """The warning waits while the command is stopped or the operator has paused the verdicts."""
    phase = job.phase
    if (why := _waits_for(job, policy)) is not None:
        return _long_wait(why, given, now)
    given = given._replace(idle_since=None, waiting=False)
    if not isinstance(phase, Starting | Running):
        return Notices(given)
    attempt, lines, due = phase.attempt, list[str](), None
    if not given.started:
        lines.append(start_line(attempt, policy, run_dir))
        given = given._replace(started=True)
    waits = job.paused is not None or attempt.stopped_at is not None
    if not given.unwatched and not waits and _is_unwatched(attempt, policy.limits):
        from ftrun.core.text import heartbeats  # not before the command was started

        due = attempt.spawned_at + (UNSEEN if heartbeats.needs_call(attempt.frameworks) else UNWATCHED)
        if now >= due:
            remedy = heartbeats.remedy(attempt.frameworks)
            proves = policy.limits.auto and not attempt.look.failed
            lines.append(unwatched_line(now - attempt.spawned_at, proves, remedy))
            given, due = given._replace(unwatched=True), None
    return Notices(given, tuple(lines), due)


def _waits_for(job: Job, policy: Policy) -> str | None:
    """Why no command runs, where that may take long; None: it runs, or is ended at the moment."""
    match job.phase:
        case Healing(fault) if fault is not None:
            return f"device {fault.device} is not healed yet: {fault.why or fault.code}"
        case Healing() | Pending() if job.held is not None:
            return f"the platform does not permit a start: {job.held}"
        case Pending() if is_spare(job, policy):
            return None
        case Pending(deadline=None) if policy.membership.group:
            return (job.order.why if job.order is not None else "") or "the other members of the group are not ready"
        case Pending() | Healing():
            return "the next start is not due yet"
        case Stopping(stage="verdict") if isinstance(job.want, Finish) and job.want.code:
            return f"the verdict of the other members is awaited: {job.want.message}"
    return None


def _long_wait(why: str, given: GivenNotices, now: float) -> Notices:
    since = now if given.idle_since is None else given.idle_since
    given = given._replace(idle_since=since)
    if given.waiting or now < since + WAITING:
        return Notices(given, due=None if given.waiting else since + WAITING)
    return Notices(given._replace(waiting=True), wait=LongWait(now - since, why))


def start_line(attempt: Attempt, policy: Policy, run_dir: str) -> str:
    """`attempt 1 started; run dir /tmp/ftrun-...; watched: heartbeats (timeout 60s)`."""
    limits = policy.limits
    watched = ["deadlocks (no timeout)"] if limits.auto else []
    if limits.auto:  # the rows of docs/hangs.md that apply to a rank that has stepped
        found = f"waits for devices (within {durations.seconds(liveness.DEVICE_WAIT_WITHIN)})"
        hour = durations.seconds(liveness.SPIN_LIMITS["spin"])
        watched.append(f"{found} and computations that show nothing (after {hour}) once ranks step")
    if limits.hang is not None:
        watched.append(f"heartbeats (timeout {durations.seconds(limits.hang)})")
    if limits.start is not None:
        watched.append(f"the time to the first heartbeat (timeout {durations.seconds(limits.start)})")
    if limits.idle is not None:
        condition = "" if limits.idle_given else f", {idle_condition(limits)}"
        watched.append(f"idleness (timeout {durations.seconds(limits.idle)}{condition})")
    return (f"phase {policy.membership.phase} " if policy.membership.phase else "") + sentences.sentence(
        f"attempt {attempt.number} started",
        f"run dir {run_dir}",
        f"watched: {', '.join(watched) or 'nothing, all timeouts are off'}",
    )


def idle_condition(limits: Limits) -> str:
    """From when on the idle rule applies, unless its timeout was given."""
    return "once there are heartbeats or an accelerator is used" if limits.auto else "once an accelerator is used"


def unwatched_line(age: float, proves: bool, remedy: str) -> str:
    """`proves`: a deadlock is found all the same.  `remedy`: what adds heartbeats."""
    unless = "unless it is deadlocked, " if proves else ""
    return (
        f"no heartbeat in the first {durations.seconds(age)}: {unless}ftrun cannot tell whether this command works or "
        f"hangs. {remedy[0].upper()}{remedy[1:]}; --start-timeout and --idle-timeout need none"
    )


def _is_unwatched(attempt: Attempt, limits: Limits) -> bool:
    """Whether no hang rule can apply to the attempt: no rank has given a heartbeat, in this attempt or an earlier one,
    and no timeout was given that needs no heartbeats.  Where all timeouts are off, that is the user's wish."""
    if limits.start is not None or limits.idle_given:
        return False
    if attempt.ranks or attempt.first_beat is not None or attempt.cannot_beat:
        return False
    if limits.idle is not None and attempt.idle.accelerator:
        return False
    return limits.auto or limits.hang is not None or limits.idle is not None
