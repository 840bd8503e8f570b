"""What ftrun says of an attempt that runs and is in no trouble: what is watched, and that nothing can be.

Pure; times are CLOCK_MONOTONIC seconds.
"""

from typing import Final, NamedTuple

from ftrun.core.machine.states import Job, Running, Starting
from ftrun.core.machine.values import Attempt
from ftrun.core.rules.liveness import Limits, start_limit
from ftrun.core.rules.policy import Policy
from ftrun.core.text import durations, sentences

# s after the exec.  The output of a command that ends sooner stays that of the bare command, as the first promise says:
# scripts compare the stderr of a short program, or take any line on it for an error.
INTRODUCED: Final = 30.0
# s after the exec without a heartbeat: loading a model takes minutes, and whoever reads this should not have to learn
# that it was said too early.
UNWATCHED: Final = 300.0


class GivenNotices(NamedTuple):
    """What was said before: each once in the life of an ftrun."""

    introduced: bool = False
    unwatched: bool = False


class Notices(NamedTuple):
    """The lines that are due, in `told` as said; `due`: when the next may be, None: no more of this attempt."""

    told: GivenNotices
    lines: tuple[str, ...] = ()
    due: float | None = None


def notices(job: Job, policy: Policy, told: GivenNotices, run_dir: str, now: float) -> Notices:
    """What is to be said now.  Nothing while the command is stopped or the verdicts are paused."""
    phase = job.phase
    if not isinstance(phase, Starting | Running) or job.paused is not None or phase.attempt.stopped_at is not None:
        return Notices(told)
    attempt, lines, due = phase.attempt, list[str](), list[float]()
    if not told.introduced:
        due.append(attempt.spawned_at + INTRODUCED)
        if now >= due[-1]:
            lines.append(introduction(policy.limits, attempt, run_dir))
            told, due = told._replace(introduced=True), []
    if not told.unwatched and _unwatched(attempt, policy.limits):
        due.append(attempt.spawned_at + UNWATCHED)
        if now >= due[-1]:
            lines.append(unwatched(now - attempt.spawned_at))
            told = told._replace(unwatched=True)
            due.pop()
    return Notices(told, tuple(lines), min(due, default=None))


def introduction(limits: Limits, attempt: Attempt, run_dir: str) -> str:
    """Which timeouts are armed, and where the records are: `watched: heartbeats (...); run dir: ...`."""
    hang = "timeout learned from them" if limits.auto else _timeout(limits.hang)
    watched = [f"heartbeats ({hang})"] if limits.auto or limits.hang is not None else []
    start, _ = start_limit(attempt, limits)
    if start is not None:
        watched.append(f"the time to the first heartbeat ({_timeout(start)})")
    if limits.idle is not None:
        once = "" if limits.idle_given else ", once an accelerator is used"
        watched.append(f"idleness ({_timeout(limits.idle)}{once})")
    return sentences.sentence(
        f"watched: {', '.join(watched) or 'nothing, all timeouts are off'}", f"run dir: {run_dir}"
    )


def unwatched(age: float) -> str:
    return (
        f"no heartbeat in the first {durations.seconds(age)}: ftrun cannot tell whether this command works or hangs. "
        "PyTorch programs give heartbeats by themselves (optimizer steps); others by ftrun_hooks.beat(step) or by "
        "touching $FTRUN_BEAT_DIR/touch; --start-timeout and --idle-timeout need none"
    )


def _unwatched(attempt: Attempt, limits: Limits) -> bool:
    """Whether no rule holds for it: it has not announced itself, in this attempt or an earlier one, and no timeout was
    given that needs no heartbeats.  Where all timeouts are off that is the user's wish."""
    if attempt.ranks or attempt.first_beat is not None or attempt.barred or limits.start_given or limits.idle_given:
        return False
    if limits.idle is not None and attempt.idle.accelerator:
        return False
    return limits.auto or limits.hang is not None or limits.start is not None or limits.idle is not None


def _timeout(seconds: float | None) -> str:
    return "off" if seconds is None else f"timeout {durations.seconds(seconds)}"
