"""Whether training moves: a pure check of the heartbeats that the ranks last wrote.

A rank is *alive* with any heartbeat.  It *moves* with a step that advances or a heartbeat from the main thread; only
moving counts.

Two rules are for what no proof covers (ADR 39): a rank that computes for an hour in one and the same function, of which
nothing can be seen outside (helpers/evidence/spinning.py), and ranks that wait for their devices or for each other
while no device works (helpers/evidence/device_waits.py), so that nobody is left who could end the wait.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from ftrun.core.machine.values import TOUCH, Attempt, Finding, Rank, Rule, Section, Spin
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules.idle import idle_for, unchanged_for

# Heartbeats are read at least this often within the shortest limit.  A freeze between two reads goes unnoticed, so it
# must be small against the limit; the touch file has no trustworthy clock, so its heartbeat is timed by the read.
LOOKS_PER_LIMIT = 8
STILL = 15.0  # s without a movement, from which on looks are taken (looks.py)
SPIN_LIMITS: Final[Mapping[Rule, float]] = {"spin": 3600.0, "device-wait": 45.0}  # s
DEVICE_WAIT_WITHIN: Final = 90.0  # s from the last step, in which a wait for devices is found: the looks begin later
SPIN_OTHERS: Final = 0.05  # cores that its other threads and its descendants may use: watchdogs, keep-alives


class Limits(NamedTuple):
    """In seconds; None: no such time was given.  `start` applies to any command from its spawn.  `auto`: no hang
    timeout was given, so that looks prove hangs (looks.py).  `idle`: for how long the whole tree may do nothing; unless
    it was given (`idle_given`), it applies to a job that uses an accelerator, and with `auto` to one that has given
    heartbeats.  `idle_together`: in a group, where others may work for this member, only an idle time of all members
    counts, unless it was given.  `section`: for a section that the program opened without a timeout of its own;
    `automatic`: for one that the hooks opened themselves."""

    hang: float | None
    start: float | None
    section: float | None
    auto: bool = False
    idle: float | None = None
    idle_given: bool = False
    automatic: float | None = None
    idle_together: bool = False
    # How long the rest may take.
    grace: float = 10.0
    stop_grace: float | None = None  # None: wait without a limit
    kill_timeout: float = 60.0  # a process that SIGKILL has not ended by then cannot be killed
    device_timeout: float | None = None  # for devices to be free after a kill; None: that is not checked
    heal_timeout: float = 300.0
    evidence_timeout: float = 30.0
    recover_timeout: float = 60.0  # for a rank to come to the next round
    link_timeout: float | None = None  # how long the library's own retries after a link fault take; None: not waited
    link_library: str = ""  # the name of that library, where it is known


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


def assess(attempt: Attempt, now: float, limits: Limits, suspected: Finding | None = None) -> Assessment:
    """The finding that is furthest over its limit, or the suspected one if it still holds, and when to check again.

    A rank whose process is gone is not waited for; those that reported `done` have to end (`awaited_ranks`).  While a
    section is open, its deadline replaces the deadline of the step, unless the section belongs to a thread that does
    not train.  An outer section that is overdue is a hang, however much time its inner sections have left.  Nothing is
    concluded from the silence of a rank whose heartbeats may be unseen.
    """
    awaited = awaited_ranks(attempt)
    findings, spans = _spawn(attempt, now, limits) + _idle(attempt, now, limits) + _proved(attempt, now), list[float]()
    findings += _unproved(awaited, attempt, now, limits) if limits.auto else []
    for rank in awaited:
        findings += [] if rank.unseen else _sections(rank, attempt, now, limits)
        if limits.automatic is not None and rank.moved_at is not None:
            spans.append(limits.automatic)  # such a section may open before the next read
        silence = _silence(rank, attempt, now, limits)
        if silence is not None:
            spans.append(silence.limit)  # also within a section, since its end sends no event
            if not rank.unseen and all(section.side for section in rank.sections):
                findings.append(silence)
    overdue = [f for f in findings if f.age >= f.limit]
    if overdue:
        return Assessment(max(overdue, key=lambda f: (is_same(f, suspected), f.age - f.limit)), None)
    spans += [f.limit for f in findings]
    if limits.auto and awaited:
        spans.append(2 * STILL)  # otherwise a freeze between two reads would count as a silence
    if not spans:
        return Assessment(None, None)
    upcoming = min(findings, key=lambda f: f.limit - f.age, default=None)
    due = spans[0] if upcoming is None else upcoming.limit - upcoming.age
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
        limit = section_limit(section, limits)
        if limit is not None:
            age = time_awake(section.started, now, attempt.aways)
            found.append(Finding("section", rank.rank, age, limit, rank.step, section.name, rank.pid))
    return found


def section_limit(section: Section, limits: Limits) -> float | None:
    """For how many seconds a rank may be in that section."""
    if section.timeout is not None:
        return section.timeout
    return limits.automatic if section.automatic else limits.section


def has_own_limit(rank: Rank, limits: Limits) -> bool:
    """Whether it is in a section that says how long it may take."""
    return any(not section.side and section_limit(section, limits) is not None for section in rank.sections)


def _silence(rank: Rank, attempt: Attempt, now: float, limits: Limits) -> Finding | None:
    """The finding for the rank's silence since its last movement, overdue or not; None: it has no limit."""
    rule: Rule = "start" if rank.moved_at is None else "step"
    since, limit = (rank.claimed_at, limits.start) if rank.moved_at is None else (rank.moved_at, limits.hang)
    if limit is None:
        return None
    age = time_awake(since, now, attempt.aways) - rank.credit
    return Finding(rule, rank.rank, age, limit, rank.step, None, rank.pid)


def _spawn(attempt: Attempt, now: float, limits: Limits) -> list[Finding]:
    """The finding for a start without a heartbeat: a given start limit holds from the spawn, whether or not the program
    ever calls a hook.  A later round of recovery is such a start if no process is left of those that had moved before
    it.
    """
    ranks, since = attempt.ranks, attempt.spawned_at
    if attempt.rounds.number > 1 and attempt.moved:
        since = attempt.rounds.began
        ranks = tuple(r for r in ranks if r.present or (r.moved_at is not None and r.moved_at > since))
    if limits.start is None or attempt.cannot_beat:
        return []
    if any(r.moved_at is not None or (r.sections and r.present) for r in ranks):
        return []
    credit = max((r.credit for r in ranks), default=0.0)
    age = time_awake(since, now, attempt.aways) - credit
    return [Finding("start", None, age, limits.start, pid=attempt.pid)]


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
    return [Finding("deadlock", number, age, STILL, step, None, pid, closed.mechanism)]


def waits_for_devices(attempt: Attempt, now: float, limits: Limits) -> bool:
    """Whether all ranks here have waited for their devices, or each other, for as long as that rule allows."""
    alone = _unproved(awaited_ranks(attempt), attempt, now, limits._replace(idle_together=False)) if limits.auto else []
    return any(found.rule == "device-wait" and found.age >= found.limit for found in alone)


def _unproved(awaited: list[Rank], attempt: Attempt, now: float, limits: Limits) -> list[Finding]:
    """The finding for a rank that computes, or for ranks that wait for their devices, overdue or not.  In a group the
    other members may be what a device waits for, unless their ranks wait as well."""
    found, seen = spinning(attempt, awaited), attempt.look.spin
    if found is None or seen is None or has_own_limit(found[1], limits):
        return []
    rule, rank, since = found
    if rule == "device-wait" and limits.idle_together and not attempt.group_awaits_devices:
        return []
    age = time_awake(since, now, attempt.aways) - rank.credit
    return [Finding(rule, rank.rank, age, SPIN_LIMITS[rule], rank.step, None, rank.pid, seen.why)]


def _idle(attempt: Attempt, now: float, limits: Limits) -> list[Finding]:
    """The finding for a tree that does nothing.  A movement counts as work, also that of a rank that has ended since; a
    section with a limit of its own announces a silence."""
    idle, begun, raised = attempt.idle, attempt.idle.idle_since, attempt.idle.raised
    if attempt.group_is_idle and unchanged_for(idle, now):
        begun, raised = idle.unchanged_since, idle.unchanged_raised
    elif not idle_for(idle, now) or (limits.idle_together and not limits.idle_given and not attempt.group_is_idle):
        begun = None
    if limits.idle is None or begun is None:
        return []
    beats = limits.auto and (attempt.moved or attempt.first_beat is not None)
    if not (limits.idle_given or idle.accelerator or beats):
        return []
    if any(has_own_limit(rank, limits) for rank in attempt.ranks if rank.present):
        return []
    since = max([begun, attempt.spawned_at, *(r.moved_at for r in attempt.ranks if r.moved_at is not None)])
    age = time_awake(since, now, attempt.aways) - max((rank.credit for rank in attempt.ranks), default=0.0)
    return [Finding("idle", None, age, max(limits.idle, raised), pid=attempt.pid)]


# --- what no proof covers ---------------------------------------------------------------------------------------------


def follow_spin(before: Spin | None, seen: Spin | None) -> Spin | None:
    """What looks in a row have shown: the first of those that found the same, or the last one."""
    if before is None or seen is None:
        return seen
    same = _comparable(before) == _comparable(seen)
    quiet = seen.others - before.others <= SPIN_OTHERS * max(1.0, seen.since - before.since)
    launches = "" not in (before.launched, seen.launched) and before.launched != seen.launched
    return before if same and quiet and not launches else seen


def _comparable(seen: Spin) -> Spin:
    return seen._replace(since=0.0, why="", others=0.0, launched="")


def spinning(attempt: Attempt, awaited: Iterable[Rank]) -> tuple[Rule, Rank, float] | None:
    """The rule and the rank that are found once the limit of the rule has passed, and since when it was seen so.
    `awaited`: the ranks that have to move."""
    found, still, idle = attempt.look.spin, attempt.look.still, attempt.idle
    if found is None or still is None:
        return None
    rank = next((rank for rank in awaited if rank.rank == found.rank and rank.pid == found.pid), None)
    if rank is None or rank.rank <= TOUCH or rank.unseen or rank.moved_at is None or rank.moved_at > still.since:
        return None
    return ("device-wait", rank, found.since) if found.on_device else ("spin", rank, max(found.since, idle.active_at))
