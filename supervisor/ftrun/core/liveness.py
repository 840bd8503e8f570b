"""Whether training moves: pure judgement over what the ranks last wrote.

*Alive* is any beat, *moving* is a step that advances or a beat from the main thread; only moving counts.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ftrun.core.values import Attempt, Finding, Rank

# A look at least this often in the shortest limit: a freeze that falls between two looks is not seen as such, so it
# must stay small against the limit; the touch file has no clock that we may trust, so its beat is timed by the look.
LOOKS_PER_LIMIT = 8


class Limits(NamedTuple):
    """In seconds; None switches a rule off.  `start_given`: the start limit is armed at the spawn, for any command."""

    hang: float | None
    start: float | None
    start_given: bool
    section: float | None


class Judgement(NamedTuple):
    finding: Finding | None
    deadline: float | None  # when to look again; None: nothing is being judged


def awake(since: float, now: float, aways: Iterable[tuple[float, float]]) -> float:
    """Seconds from `since` to `now` without those in which nobody could be judged."""
    away, reached = 0.0, since
    for start, end in sorted(aways):  # they may overlap: Ctrl-Z, then the machine sleeps, then fg
        length = min(end, now) - max(start, reached)
        if length > 0:
            away, reached = away + length, min(end, now)
    return max(0.0, now - since - away)


def judge(attempt: Attempt, now: float, limits: Limits) -> Judgement:
    """The finding that is furthest over its limit, and when to look again.

    A rank that said `done`, or whose process is gone, is not waited for.  While a section is open its own deadline
    holds in place of the step's; an outer section that is overdue is a hang whatever its inner ones still have.
    """
    awaited = [rank for rank in attempt.ranks if rank.present and not rank.done]
    findings = [found for rank in awaited for found in _rank(rank, attempt, now, limits)]
    findings += _spawn(attempt, now, limits)
    overdue = [f for f in findings if f.age >= f.limit]
    if overdue:
        return Judgement(max(overdue, key=lambda f: f.age - f.limit), None)
    if not findings:
        return Judgement(None, None)
    due = now + min(f.limit - f.age for f in findings)
    look = now + min(f.limit for f in findings) / LOOKS_PER_LIMIT
    return Judgement(None, min(due, look))


def _rank(rank: Rank, attempt: Attempt, now: float, limits: Limits) -> list[Finding]:
    """What this rank is being measured by, overdue or not."""

    def finding(rule: str, age: float, limit: float, section: str | None = None) -> Finding:
        return Finding(rule, rank.rank, age, limit, rank.step, section, rank.pid)

    if rank.sections:
        timed = [(s, limits.section if s.timeout is None else s.timeout) for s in rank.sections]
        return [finding("section", awake(s.started, now, attempt.aways), t, s.name) for s, t in timed if t is not None]
    if rank.moved_at is not None:
        age = awake(rank.moved_at, now, attempt.aways) - rank.credit
        return [] if limits.hang is None else [finding("step", age, limits.hang)]
    age = awake(rank.claimed_at, now, attempt.aways) - rank.credit
    return [] if limits.start is None else [finding("start", age, limits.start)]


def _spawn(attempt: Attempt, now: float, limits: Limits) -> list[Finding]:
    """A start limit that was given holds from the spawn, whether or not the program ever calls a hook."""
    if limits.start is None or not limits.start_given:
        return []
    if any(r.moved_at is not None or r.done or (r.sections and r.present) for r in attempt.ranks):
        return []
    credit = max((r.credit for r in attempt.ranks), default=0.0)
    age = awake(attempt.spawned_at, now, attempt.aways) - credit
    return [Finding("start", None, age, limits.start, pid=attempt.pid)]
