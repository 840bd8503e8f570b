"""What comes next, and when, in words."""

from typing import Any

from ftrun.core.rules.exit_codes import NODE_FAULT
from ftrun.core.rules.hang_rules import RULES
from ftrun.core.text import durations, sentences
from ftrun.views.live_verdict import LiveVerdict, silence
from ftrun.views.snapshot import Limit

Coming = tuple[float | None, str | None]  # in so many seconds; what


def next_action(
    standing: dict[str, Any], phase: str, judged: LiveVerdict | None, limits: tuple[Limit, ...], now: float
) -> Coming:
    """`standing` is the `now` of `state.json`."""
    paused, deadline = standing.get("paused"), standing.get("deadline")
    left = None if deadline is None else max(0.0, float(deadline) - now)
    if phase == "done":
        return None, None
    if phase == "waiting":
        return _waiting(standing, left)
    if phase == "stopping":
        return _stopping(standing, left)
    if phase == "healing":
        if standing.get("held"):
            return _by("waits for the platform: " + str(standing["held"]) + "; given up", left)
        return _by("healing given up", left, f", with {NODE_FAULT.code}")
    if paused:
        until = paused.get("until")
        resumes = None if until is None else max(0.0, float(until) - now)
        return resumes, "paused: no verdicts" + (
            "" if resumes is None else f"; resumes in {durations.seconds(resumes)}"
        )
    if phase == "launching" or judged is None:
        return None, "the command is being executed" if phase == "launching" else None
    if judged.attempt.stopped_at is not None:
        return None, "the command is stopped by job control: nothing is judged until it goes on"
    if phase == "suspect":
        who = sentences.rank((standing.get("finding") or {}).get("rank"))
        return _by(f"the verdict on {who}: evidence is being taken;", left, " at the latest")
    return _suspicion(judged, limits)


def _suspicion(judged: LiveVerdict, limits: tuple[Limit, ...]) -> Coming:
    first = judged.first()
    if first is None:
        return None, _unjudged(judged)
    left = max(0.0, first.limit - first.age)
    sources = {limit.name: limit.source for limit in limits}
    source = sources.get(RULES[first.rule].timeout, "default")
    return left, f"{sentences.rank(first.rank)} is a suspect in {durations.seconds(left)}: {silence(first, source)}"


def _unjudged(judged: LiveVerdict) -> str:
    """Why no limit runs now."""
    attempt, idle = judged.attempt, judged.limits.idle
    if idle is not None and (judged.limits.idle_given or attempt.idle.accelerator):
        timeout = durations.seconds(idle)
        return f"the command works; if it did nothing for {timeout}, it would be a suspect (--idle-timeout)"
    if attempt.ranks:
        return "no process that has sent a heartbeat is waited for: a hang of the rest would not be noticed"
    return sentences.UNWATCHED


def _waiting(standing: dict[str, Any], left: float | None) -> Coming:
    want = standing.get("want") or {}
    if left is None and standing.get("group") is not None:
        return None, "the next start, once all members of the group can"
    if want.get("want") == "again":
        return _by("restart", left, " (backoff)")
    return _by("the first start, once the platform permits it,", left)


def _stopping(standing: dict[str, Any], left: float | None) -> Coming:
    stage = standing.get("stage")
    if stage == "asked" and left is None:
        return None, "asked to end from outside; waits for the command to do so"
    what, more = {
        "kill": ("what SIGKILL does not end makes this node unusable", f" ({NODE_FAULT.code})"),
        "inspect": ("looks at what SIGKILL did not end;", ""),
        "devices": ("devices that are not free make this node unusable", f" ({NODE_FAULT.code})"),
        "verdict": ("waits for what the others of this job say;", " at the latest"),
    }.get(str(stage), ("SIGKILL", ""))
    return _by(what, left, more)


def _by(what: str, left: float | None, more: str = "") -> Coming:
    return left, what + ("" if left is None else f" in {durations.seconds(left)}") + more
