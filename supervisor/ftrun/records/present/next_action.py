"""What ftrun will do next, and when, as a sentence."""

from typing import Final

from ftrun.core.machine.values import Finding
from ftrun.core.rules import liveness
from ftrun.core.rules.exit_codes import NODE_FAULT
from ftrun.core.rules.hang_rules import RULES, mechanism
from ftrun.core.rules.looks import LOOKS
from ftrun.core.text import durations, sentences
from ftrun.messages.run_state import JobStatus
from ftrun.records.present.live_verdict import LiveVerdict
from ftrun.records.present.snapshot import Limit

NextAction = tuple[float | None, str | None]  # seconds until then; what happens, a sentence
UNSTARTED: Final = "no time was given for the first heartbeat (--start-timeout), so that its absence is no hang"
NO_TIME: Final = "no time was given after which it would be suspected"
ORIGINS: Final = {  # of an option's value, `Limit.source`
    "option": "set by --{}-timeout",
    "environment": "set by FTRUN_{}_TIMEOUT",
    "annotations": "set by a pod annotation",
    "config file": "set in the config file",
    "default": "the default",
}
ANSWERS: Final = {  # that the first start waits for
    "platform": "the platform permits it",
    "devices": "the devices are checked",
    "history": "the state dir is read",
}


def next_action(
    status: JobStatus, phase: str, live: LiveVerdict | None, limits: tuple[Limit, ...], now: float
) -> NextAction:
    """`live` is None where no hang rule is active."""
    seconds, what = _next_action(status, phase, live, limits, now)
    return seconds, None if what is None else f"{what[0].upper()}{what[1:]}."


def _next_action(
    status: JobStatus, phase: str, live: LiveVerdict | None, limits: tuple[Limit, ...], now: float
) -> NextAction:
    left = None if status.deadline is None else max(0.0, status.deadline - now)
    if phase == "done":
        return None, None
    if phase == "spare":
        return None, "the place of a lost member, or a further one, at the next restart of all"
    if phase == "finished":
        return left, "the end, once the commands of the other members have ended"
    if phase == "waiting":
        return _waiting(status, left)
    if phase == "stopping":
        return _stopping(status, left)
    if phase == "healing":
        if status.held:
            return _within(f"the platform does not permit a start: {status.held}; given up", left)
        return _within("healing is given up", left, f", and ftrun exits with {NODE_FAULT.code}")
    if status.paused is not None:
        until = status.paused.until
        resumes = None if until is None else max(0.0, until - now)
        then = "" if resumes is None else f"; verdicts resume in {durations.seconds(resumes)}"
        return resumes, f"paused: hangs and faults are not acted on{then}"
    if phase == "launching" or live is None:
        return None, "the command is being executed" if phase == "launching" else None
    if live.attempt.stopped_at is not None:
        return None, "the command is stopped by job control: no timeout runs until it continues"
    if phase == "suspect":
        return _within(_proof(status.finding), left, " at the latest; evidence is being collected")
    rounds = None if status.attempt is None else status.attempt.rounds
    if rounds is not None and rounds.stage in ("settling", "meeting"):  # nobody is expected to move
        otherwise = "" if left is None else f", or the next level of recovery in {durations.seconds(left)}"
        return left, f"the next round of the ranks{otherwise}"
    return _suspicion(live, limits, status.attempt is not None and bool(status.attempt.wait))


def _suspicion(live: LiveVerdict, limits: tuple[Limit, ...], waits: bool) -> NextAction:
    """`waits`: a look has shown that the job stands still, and for what it waits."""
    first = live.first()
    if first is None:
        return None, _no_active_timeout(live, waits)
    left = max(0.0, first.limit - first.age)
    sources = {limit.name: limit.source for limit in limits}
    source = sources.get(first.rule if first.rule in liveness.SPIN_LIMITS else RULES[first.rule].timeout, "default")
    when = durations.seconds(left) + _sooner(live, left)
    return left, f"{sentences.rank(first.rank)} would be suspected in {when}: {_silence(first, source)}"


def _proof(finding: Finding | None) -> str:
    """`the verdict on rank 1 follows`, after what was proved."""
    who = sentences.rank(None if finding is None else finding.rank)
    if finding is None or not finding.mechanism:
        return f"the verdict on {who} follows"
    if finding.rule in liveness.SPIN_LIMITS:  # nothing is proved, and the evidence may still clear it
        return f"{finding.mechanism}; the verdict follows"
    return f"{who} was proved to be deadlocked: {mechanism(finding.mechanism)}; the verdict follows"


def _sooner(live: LiveVerdict, left: float) -> str:
    """A deadlock is proved by looks, without a timeout."""
    return ", or sooner if it is deadlocked" if live.proves and left > LOOKS[-1] else ""


def _silence(found: Finding, source: str) -> str:
    """`26s without a step (timeout 38s, set by --hang-timeout)`."""
    age, limit, rule = durations.seconds(found.age), durations.seconds(found.limit), RULES[found.rule]
    # A section may have a timeout of its own, so the source of the general one is not named.
    origin = "" if rule.several else f", {_origin(source, rule.timeout)}"
    return f"{age} {rule.missing(found)} (timeout {limit}{origin})"


def _origin(source: str, timeout: str) -> str:
    """`set by --hang-timeout` for `option`; anything after the origin stays."""
    for origin, text in ORIGINS.items():
        if source.startswith(origin):
            name = timeout.upper() if origin == "environment" else timeout
            return text.format(name) + source.removeprefix(origin)
    return source


def _no_active_timeout(live: LiveVerdict, waits: bool) -> str:
    """Why no timeout runs now."""
    attempt, idle = live.attempt, live.limits.idle
    beats = live.limits.auto and (attempt.moved or attempt.first_beat is not None)
    if idle is not None and (live.limits.idle_given or attempt.idle.accelerator or beats):
        timeout = durations.seconds(idle)
        where = " on any member" if live.limits.idle_together and not live.limits.idle_given else ""
        after = f"after {timeout} without any work{where}"
        works = "" if waits else "the command works; "
        return f"{works}it would be suspected {after} (--idle-timeout){_sooner(live, idle)}"
    if any(rank.present and not rank.done for rank in attempt.ranks):
        sooner = "; a deadlock is found without one" if live.proves else ""
        return f"{NO_TIME}{sooner}" if live.limits.auto else UNSTARTED
    if attempt.ranks:
        return "every process that has sent heartbeats is done or gone: a hang of the others would not be noticed"
    return sentences.DEADLOCKS_DETECTED if live.proves else sentences.HANGS_UNDETECTED


def _waiting(status: JobStatus, left: float | None) -> NextAction:
    if left is None and status.group is not None:
        return None, "the next start, once all members of the group are ready"
    if status.want.want == "again":
        return _within("restart", left, " (backoff)")
    if not status.awaits:
        return _within("the first start", left)
    answers = " and ".join(ANSWERS.get(name, name) for name in status.awaits)
    return _within(f"the first start, once {answers}, or", left, " without an answer")


def _stopping(status: JobStatus, left: float | None) -> NextAction:
    stage = status.stage
    if stage == "asked" and left is None:
        return None, "a signal from outside asked the command to exit; its exit is awaited"
    if stage == "verdict" and left is None:
        return None, "the verdict of the group, which is awaited"
    what, more = {
        "kill": ("the node is declared unusable", f" ({NODE_FAULT.code}) if processes survive SIGKILL"),
        "inspect": ("the processes that survived SIGKILL are recorded", ""),
        "devices": ("the node is declared unusable", f" ({NODE_FAULT.code}) unless its devices become free"),
        "verdict": ("the other members of this job are asked for the verdict; it follows", " at the latest"),
    }.get(str(stage), ("SIGKILL", ""))
    return _within(what, left, more)


def _within(what: str, left: float | None, more: str = "") -> NextAction:
    return left, what + ("" if left is None else f" in {durations.seconds(left)}") + more
