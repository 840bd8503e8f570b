"""Whether training moves: a pure check of the heartbeats that the ranks last wrote.

A rank is *alive* with any heartbeat.  It *moves* with a step that advances or a heartbeat from the main thread; only
moving counts.
"""

from collections.abc import Iterable

from ftrun.core.machine.values import TOUCH, Attempt, Finding, LearnedTimeouts, Rank, Rule, Section
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules import adaptive_timeout
from ftrun.core.rules.hang_rules import RULES
from ftrun.core.rules.idle import idle_for, unchanged_for
from ftrun.core.rules.spin import spin_limit

# Heartbeats are read at least this often within the shortest limit.  A freeze between two reads goes unnoticed, so it
# must be small against the limit; the touch file has no trustworthy clock, so its heartbeat is timed by the read.
LOOKS_PER_LIMIT = 8
FOREVER = 1e12  # s
STILL = 15.0  # s without a movement, from which on looks are taken (looks.py)


class Limits(NamedTuple):
    """In seconds; None switches a rule off.  `start_given`: the start limit was configured, and applies to any command
    from its spawn.  `auto`: the hang limit is learned.  `idle`: for how long the whole tree may do nothing; unless it
    was configured (`idle_given`), it applies only to a job that uses an accelerator.  `section`: for a section that the
    program opened without a timeout of its own.  `automatic`: for a section that the hooks opened themselves; with
    `automatic_learned` it is the upper bound of what is learned from earlier sections of that name."""

    hang: float | None
    start: float | None
    start_given: bool
    section: float | None
    auto: bool = False
    idle: float | None = None
    idle_given: bool = False
    automatic: float | None = None
    automatic_learned: bool = False


class Assessment(NamedTuple):
    """`deadline`: when to check again; None: no rule applies.  `upcoming`: without a finding, the one whose limit
    passes next if nothing moves, at `due`."""

    finding: Finding | None
    deadline: float | None
    upcoming: Finding | None = None
    due: float = 0.0


def time_awake(since: float, now: float, aways: Iterable[tuple[float, float]]) -> float:
    """Seconds from `since` to `now` without the periods `aways`, which do not count as silence."""
    away, reached = 0.0, since
    for start, end in sorted(aways):  # they may overlap: Ctrl-Z, then the machine sleeps, then fg
        length = min(end, now) - max(start, reached)
        if length > 0:
            away, reached = away + length, min(end, now)
    return max(0.0, now - since - away)


def assess(
    attempt: Attempt,
    now: float,
    limits: Limits,
    learned: LearnedTimeouts | None = None,
    suspected: Finding | None = None,
) -> Assessment:
    """The finding that is furthest over its limit, or the suspected one if it still holds, and when to check again.

    A rank whose process is gone is not waited for; those that reported `done` have to end (`awaited_ranks`).  While a
    section is open, its deadline replaces that of the step, unless the section belongs to a thread that does not train.
    An outer section that is overdue is a hang, however much time its inner sections have left.
    """
    awaited = awaited_ranks(attempt)
    findings, spans = _spawn(attempt, now, limits) + _idle(attempt, now, limits) + _proved(attempt, now), list[float]()
    findings += _spinning(attempt, now, learned)
    for rank in awaited:
        findings += _sections(rank, attempt, now, limits)
        if limits.automatic is not None and not limits.automatic_learned and rank.moved_at is not None:
            spans.append(limits.automatic)  # such a section may open before the next read
        silence = _silence(rank, attempt, now, limits, learned)
        if silence is not None:
            spans.append(silence.limit)  # also within a section, since its end sends no event
            if all(section.side for section in rank.sections):
                findings.append(silence)
    overdue = [f for f in findings if f.age >= f.limit]
    if overdue:
        return Assessment(max(overdue, key=lambda f: (is_same(f, suspected), f.age - f.limit)), None)
    spans += [f.limit for f in findings]
    if not spans:
        return Assessment(None, None)
    upcoming = min(findings, key=lambda f: f.limit - f.age, default=None)
    due = spans[0] if upcoming is None else upcoming.limit - upcoming.age
    if limits.auto and any(r.moved_at is not None and r.intervals < adaptive_timeout.ENOUGH for r in awaited):
        spans.append(adaptive_timeout.FLOOR)  # otherwise a freeze between two reads would be learned as a silence
    return Assessment(None, now + min(due, min(spans) / LOOKS_PER_LIMIT), upcoming, now + due)


def awaited_ranks(attempt: Attempt) -> list[Rank]:
    """The ranks that have to move, or, once all that are left have reported `done`, to end: until then one that is done
    may wait for those that still train.  In a later round of recovery each of them starts again, like a new process."""
    present = [rank for rank in attempt.ranks if rank.present]
    awaited = [rank for rank in present if not rank.done]
    if not awaited:
        last = max((rank.moved_at for rank in attempt.ranks if rank.moved_at is not None), default=None)
        awaited = [rank._replace(moved_at=last) for rank in present]
    return awaited if attempt.rounds.number == 1 else [_in_round(rank, attempt.rounds.began) for rank in awaited]


def _in_round(rank: Rank, began: float) -> Rank:
    if rank.moved_at is None or rank.moved_at > began:
        return rank._replace(claimed_at=max(rank.claimed_at, began))
    return rank._replace(moved_at=None, claimed_at=max(rank.claimed_at, began), credit=0.0)


def is_same(one: Finding, other: Finding | None) -> bool:
    """Whether both findings are about the same silence."""
    return other is not None and (one.rule, one.rank, one.section) == (other.rule, other.rank, other.section)


def _sections(rank: Rank, attempt: Attempt, now: float, limits: Limits) -> list[Finding]:
    """A finding for each open section with a limit, overdue or not."""
    found = []
    for section in rank.sections:
        limit, learned = section_limit(section, rank, attempt, limits)
        if limit is not None:
            age = time_awake(section.started, now, attempt.aways)
            found.append(Finding("section", rank.rank, age, limit, rank.step, section.name, rank.pid, learned))
    return found


def section_limit(section: Section, rank: Rank, attempt: Attempt, limits: Limits) -> tuple[float | None, bool]:
    """For how many seconds a rank may be in that section, and whether evidence may still raise that limit."""
    if section.timeout is not None:
        return section.timeout, False
    if not section.automatic:
        return limits.section, False
    most = limits.automatic
    if most is None or not limits.automatic_learned or section.longest is None:
        return most, False
    seconds = _raise(adaptive_timeout.section(section.longest), rank, attempt)
    return (seconds, True) if seconds < most else (most, False)


def _silence(
    rank: Rank, attempt: Attempt, now: float, limits: Limits, learned: LearnedTimeouts | None
) -> Finding | None:
    """The finding for the rank's silence since its last movement, overdue or not; None: it has no limit."""
    if rank.moved_at is None:
        rule: Rule = "start"
        since, limit, by_learning = rank.claimed_at, limits.start, False
    else:
        rule, since = "step", rank.moved_at
        limit, by_learning = hang_limit(rank, attempt, limits, learned)
    if limit is None:
        return None
    age = time_awake(since, now, attempt.aways) - rank.credit
    return Finding(rule, rank.rank, age, limit, rank.step, None, rank.pid, by_learning)


def hang_limit(
    rank: Rank, attempt: Attempt, limits: Limits, learned: LearnedTimeouts | None
) -> tuple[float | None, bool]:
    """For how many seconds a rank that has moved may be silent, and whether evidence may still raise that limit.

    Nothing is learned from the touch file, since it does not record its intervals.
    """
    if not limits.auto:
        return limits.hang, False
    if rank.rank == TOUCH:
        return limits.start, False
    taken = 0.0 if rank.moved_at is None else max(0.0, rank.moved_at - attempt.spawned_at)
    limit = adaptive_timeout.limit(rank, learned, limits.start, taken)
    if limit.seconds is None or not limit.learned:
        return limit.seconds, False
    seconds = _raise(limit.seconds, rank, attempt)
    if limit.most is not None and seconds >= limit.most:
        return limit.most, False
    return seconds, True


def _raise(seconds: float, rank: Rank, attempt: Attempt) -> float:
    """A learned limit, raised by hangs in a row and by evidence about this rank."""
    return max([seconds * attempt.patience, *(r.limit for r in attempt.raised if r.rank == rank.rank)])


def longest_cleared_age(finding: Finding, limits: Limits) -> float | None:
    """The age in seconds up to which this finding is cleared if something outside the job may end the wait.

    None: it is never cleared, since the limit was configured.  A job that is cleared may be silent for as long as a
    start may take.
    """
    if RULES[finding.rule].by_work:
        return None if limits.idle_given else FOREVER if limits.start is None else limits.start
    if not finding.learned:
        return None
    return FOREVER if limits.start is None else max(limits.start, adaptive_timeout.LONGEST_TIMES * finding.limit)


def _spawn(attempt: Attempt, now: float, limits: Limits) -> list[Finding]:
    """The finding for a start without a heartbeat.  A configured start limit holds from the spawn, whether or not the
    program ever calls a hook.  Otherwise the limit follows from how long the first heartbeat took in earlier attempts.
    A later round of recovery is such a start if no process is left of those that had moved before it.
    """
    limit, by_learning = start_limit(attempt, limits)
    ranks, since = attempt.ranks, attempt.spawned_at
    if attempt.rounds.number > 1 and attempt.moved:
        limit, by_learning, since = limits.start, False, attempt.rounds.began
        ranks = tuple(r for r in ranks if r.present or (r.moved_at is not None and r.moved_at > since))
    if limit is None or attempt.barred:
        return []
    if any(r.moved_at is not None or (r.sections and r.present) for r in ranks):
        return []
    credit = max((r.credit for r in ranks), default=0.0)
    age = time_awake(since, now, attempt.aways) - credit
    return [Finding("start", None, age, limit, pid=attempt.pid, learned=by_learning)]


def start_limit(attempt: Attempt, limits: Limits) -> tuple[float | None, bool]:
    """How many seconds after the spawn the first movement may take, and whether that limit was learned.  A learned one
    kills only with evidence, however often evidence has raised it."""
    if limits.start is None or limits.start_given:
        return limits.start, False
    if attempt.first_beat is None or not (limits.auto or limits.hang is not None):
        return None, False
    # The hang before the first restart tells nothing about the length of a start; only further hangs in a row do.
    patience = max(1, attempt.patience // 2)
    return max(adaptive_timeout.start_limit(attempt.first_beat) * patience, attempt.start_raised), True


def _proved(attempt: Attempt, now: float) -> list[Finding]:
    """The finding that looks have proved, without a timeout.  Where the process at the end of the chain is no rank, it
    is about the rank that stands still."""
    still, closed = attempt.look.still, attempt.look.closed
    if still is None or closed is None or not attempt.look.proved:
        return []
    number = still.rank if closed.rank is None else closed.rank
    rank = next((rank for rank in attempt.ranks if rank.rank == number), None)
    step, pid = (None, closed.pid or attempt.pid) if rank is None else (rank.step, rank.pid or closed.pid)
    age = max(STILL, time_awake(still.since, now, attempt.aways))
    return [Finding(closed.rule, number, age, STILL, step, None, pid, True, closed.mechanism)]


def _spinning(attempt: Attempt, now: float, learned: LearnedTimeouts | None) -> list[Finding]:
    """The finding that looks support without a proof, overdue or not.  Where there is a limit, there is that rank."""
    still, confined = attempt.look.still, attempt.look.confined
    limit = spin_limit(attempt, learned)
    if still is None or confined is None or limit is None:
        return []
    rank = next(rank for rank in attempt.ranks if rank.rank == confined.rank)
    if rank.moved_at is None or rank.moved_at > still.since:  # the first to stand still is another one
        return []
    age = time_awake(still.since, now, attempt.aways) - rank.credit
    return [Finding("spin", rank.rank, age, limit, rank.step, None, rank.pid, True, confined.why)]


def _idle(attempt: Attempt, now: float, limits: Limits) -> list[Finding]:
    """The finding for a tree that does nothing.  A movement counts as work, also that of a rank that has ended since; a
    section announces a silence."""
    idle, begun, raised = attempt.idle, attempt.idle.idle_since, attempt.idle.raised
    if attempt.everywhere and unchanged_for(idle, now):
        begun, raised = idle.unchanged_since, idle.unchanged_raised
    elif not idle_for(idle, now):
        begun = None
    if limits.idle is None or begun is None:
        return []
    if not (limits.idle_given or idle.accelerator):
        return []
    present = [rank for rank in attempt.ranks if rank.present]
    if any(not section.side for rank in present for section in rank.sections):
        return []
    since = max([begun, attempt.spawned_at, *(r.moved_at for r in attempt.ranks if r.moved_at is not None)])
    age = time_awake(since, now, attempt.aways) - max((rank.credit for rank in attempt.ranks), default=0.0)
    return [Finding("idle", None, age, max(limits.idle, raised), pid=attempt.pid)]
