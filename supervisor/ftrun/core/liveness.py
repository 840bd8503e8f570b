"""Whether training moves: pure judgement over what the ranks last wrote.

*Alive* is any beat, *moving* is a step that advances or a beat from the main thread; only moving counts.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ftrun.core import learning
from ftrun.core.idle import quiet_for, still_for
from ftrun.core.values import TOUCH, Attempt, Finding, Learned, Rank

# A look at least this often in the shortest limit: a freeze that falls between two looks is not seen as such, so it
# must stay small against the limit; the touch file has no clock that we may trust, so its beat is timed by the look.
LOOKS_PER_LIMIT = 8


class Limits(NamedTuple):
    """In seconds; None switches a rule off.  `start_given`: the start limit is armed at the spawn, for any command.
    `auto`: the hang limit is learned.  `idle`: for how long the whole tree may do nothing; unless it is `idle_given`
    that is asked only of a job that uses an accelerator."""

    hang: float | None
    start: float | None
    start_given: bool
    section: float | None
    auto: bool = False
    idle: float | None = None
    idle_given: bool = False


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


def judge(
    attempt: Attempt, now: float, limits: Limits, learned: Learned | None = None, suspected: Finding | None = None
) -> Judgement:
    """The finding that is furthest over its limit, or the suspected one if it still holds, and when to look again.

    A rank that said `done`, or whose process is gone, is not waited for.  While a section is open its own deadline
    holds in place of the step's, unless a thread is in it that does not train; an outer section that is overdue is a
    hang whatever its inner ones still have.
    """
    awaited = [rank for rank in attempt.ranks if rank.present and not rank.done]
    findings, spans = _spawn(attempt, now, limits) + _idle(attempt, now, limits), list[float]()
    for rank in awaited:
        findings += _sections(rank, attempt, now, limits)
        silence = _silence(rank, attempt, now, limits, learned)
        if silence is not None:
            spans.append(silence.limit)  # in any case: the end of a section tells nobody
            if all(section.side for section in rank.sections):
                findings.append(silence)
    overdue = [f for f in findings if f.age >= f.limit]
    if overdue:
        return Judgement(max(overdue, key=lambda f: (same(f, suspected), f.age - f.limit)), None)
    spans += [f.limit for f in findings]
    if not spans:
        return Judgement(None, None)
    due = min((f.limit - f.age for f in findings), default=spans[0])
    return Judgement(None, now + min(due, min(spans) / LOOKS_PER_LIMIT))


def same(one: Finding, other: Finding | None) -> bool:
    """Whether both are about the same silence."""
    return other is not None and (one.rule, one.rank, one.section) == (other.rule, other.rank, other.section)


def _sections(rank: Rank, attempt: Attempt, now: float, limits: Limits) -> list[Finding]:
    """The deadlines of its open sections, overdue or not."""
    timed = [(s, limits.section if s.timeout is None else s.timeout) for s in rank.sections]
    ages = [(s.name, awake(s.started, now, attempt.aways), limit) for s, limit in timed if limit is not None]
    return [Finding("section", rank.rank, age, limit, rank.step, name, rank.pid) for name, age, limit in ages]


def _silence(rank: Rank, attempt: Attempt, now: float, limits: Limits, learned: Learned | None) -> Finding | None:
    """What its steps are measured by, overdue or not."""
    if rank.moved_at is None:
        rule, since, limit, by_learning = "start", rank.claimed_at, limits.start, False
    else:
        rule, since = "step", rank.moved_at
        limit, by_learning = hang_limit(rank, attempt, limits, learned)
    if limit is None:
        return None
    age = awake(since, now, attempt.aways) - rank.credit
    return Finding(rule, rank.rank, age, limit, rank.step, None, rank.pid, by_learning)


def hang_limit(rank: Rank, attempt: Attempt, limits: Limits, learned: Learned | None) -> tuple[float | None, bool]:
    """For how long, in seconds, a rank that has moved may be silent, and whether evidence may still raise that.

    The touch file says nothing of its intervals, so that there is nothing to learn from.
    """
    if not limits.auto:
        return limits.hang, False
    if rank.rank == TOUCH:
        return limits.start, False
    limit = learning.limit(rank, learned, limits.start)
    if limit.seconds is None or not limit.learned:
        return limit.seconds, False
    seconds = max([limit.seconds * attempt.patience, *(r.limit for r in attempt.raised if r.rank == rank.rank)])
    if limit.most is not None and seconds >= limit.most:
        return limit.most, False
    return seconds, True


def _spawn(attempt: Attempt, now: float, limits: Limits) -> list[Finding]:
    """A start limit that was given holds from the spawn, whether or not the program ever calls a hook."""
    if limits.start is None or not limits.start_given:
        return []
    if any(r.moved_at is not None or r.done or (r.sections and r.present) for r in attempt.ranks):
        return []
    credit = max((r.credit for r in attempt.ranks), default=0.0)
    age = awake(attempt.spawned_at, now, attempt.aways) - credit
    return [Finding("start", None, age, limits.start, pid=attempt.pid)]


def _idle(attempt: Attempt, now: float, limits: Limits) -> list[Finding]:
    """The whole tree does nothing.  A movement is work, also of a rank that has ended since; a section is a silence
    that was announced."""
    idle, begun, raised = attempt.idle, attempt.idle.since, attempt.idle.raised
    if attempt.everywhere and still_for(idle, now):
        begun, raised = idle.still, idle.still_raised
    elif not quiet_for(idle, now):
        begun = None
    if limits.idle is None or begun is None:
        return []
    if not (limits.idle_given or idle.accelerator):
        return []
    present = [rank for rank in attempt.ranks if rank.present and not rank.done]
    if any(not section.side for rank in present for section in rank.sections):
        return []
    since = max([begun, attempt.spawned_at, *(r.moved_at for r in attempt.ranks if r.moved_at is not None)])
    age = awake(since, now, attempt.aways) - max((rank.credit for rank in attempt.ranks), default=0.0)
    return [Finding("idle", None, age, max(limits.idle, raised), pid=attempt.pid)]
