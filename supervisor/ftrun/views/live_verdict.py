"""The ranks as `core.liveness` judges them now, and what it would find if nothing moved from now on."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ftrun.core.machine.values import Attempt, Finding, LearnedTimeouts, RaisedLimit, Rank
from ftrun.core.rules import adaptive_timeout
from ftrun.core.rules.adaptive_timeout import ENOUGH
from ftrun.core.rules.hang_rules import RULES
from ftrun.core.rules.idle import SAMPLES, Idle, TreeSample
from ftrun.core.rules.liveness import Limits, assess, hang_limit, section_limit, start_limit
from ftrun.core.text import durations
from ftrun.views.snapshot import Limit, RankNow

LONG: Final = 1e10  # s; longer than any limit
_QUIET: Final = (TreeSample(0.0, 0.0, 0.0, 0.0),) * SAMPLES


class LiveVerdict(NamedTuple):
    """`now`: when the judging stopped, for one that is paused or was stopped; else the present."""

    attempt: Attempt
    limits: Limits
    learned: LearnedTimeouts | None
    now: float

    def first(self) -> Finding | None:
        """What would be found first if nothing moved any more."""
        return _first(self.attempt, self)

    def first_of_each(self) -> Iterator[Finding | None]:
        """The same of each rank alone."""
        alone = self._replace(limits=self.limits._replace(start_given=False))
        attempt = self.attempt._replace(idle=Idle())
        return (_first(attempt._replace(ranks=(rank,)), alone) for rank in self.attempt.ranks)


def _first(attempt: Attempt, by: LiveVerdict) -> Finding | None:
    found = assess(attempt, by.now + LONG, by.limits, by.learned).finding
    return found and found._replace(age=max(0.0, found.age - LONG))


def attempt(found: dict[str, Any], ranks: tuple[Rank, ...]) -> Attempt:
    """From `now.attempt` of `state.json`; TypeError, ValueError or KeyError where that is none."""
    since = found["idle_since"]
    # How many samples were quiet is not told; those of a silence that is near its limit were enough.
    idle = Idle(since, float(found["idle_raised"]), () if since is None else _QUIET, accelerator=found["accelerator"])
    return Attempt(
        number=int(found["number"]),
        pid=int(found["pid"]),
        spawned_at=float(found["spawned_at"]),
        ranks=ranks,
        aways=tuple((float(start), float(end)) for start, end in found["aways"]),
        stopped_at=found["stopped_at"],
        raised=tuple(RaisedLimit(int(rank), float(limit)) for rank, limit in found["raised"]),
        idle=idle,
        patience=int(found["patience"]),
        first_beat=found.get("first_beat"),
        start_raised=float(found.get("start_raised", 0.0)),
    )


def rank_now(rank: Rank, first: Finding | None, now: float, step_time: float | None) -> RankNow:
    """`first`: what would be found first of it."""
    rule, age, limit = (None, None, None) if first is None else (first.rule, first.age, first.limit)
    moved = None if rank.moved_at is None else max(0.0, now - rank.moved_at)
    alive = None if rank.alive_at is None else max(0.0, now - rank.alive_at)
    inside = rank.sections[-1].name if rank.sections else None
    return RankNow(rank.rank, rank.pid, _state(rank), rank.step, moved, alive, inside, rule, age, limit, step_time)


def _state(rank: Rank) -> str:
    if rank.done:
        return "done"
    if not rank.present:
        return "gone"
    if rank.sections:
        return "section"
    return "starting" if rank.moved_at is None else "moving"


def limits(judged: LiveVerdict, sources: dict[str, str]) -> tuple[Limit, ...]:
    """Those in force, each with where it comes from."""
    given, idle = judged.limits, judged.limits.idle
    used = "since" if judged.attempt.idle.accelerator else "once"
    needs = "" if given.idle_given or idle is None else f", {used} the job uses an accelerator"
    raised = max(idle, judged.attempt.idle.raised) if idle is not None else None
    more = "; raised, evidence spoke for the command" if raised != idle else ""
    return (
        _hang(judged, sources.get("hang-timeout", "default")),
        _start(judged, sources.get("start-timeout", "default")),
        Limit("section", given.section, f"{sources.get('section-timeout', 'default')}, where it has none of its own"),
        *_automatic(judged, sources),
        Limit("idle", raised, sources.get("idle-timeout", "default") + needs + more),
    )


def _automatic(judged: LiveVerdict, sources: dict[str, str]) -> Iterator[Limit]:
    """In sections that the hooks opened by themselves; the longest that holds for any of those that are open."""
    given = judged.limits
    ranks = [rank for rank in judged.attempt.ranks if rank.present and not rank.done]
    held = [section_limit(s, rank, judged.attempt, given) for rank in ranks for s in rank.sections if s.automatic]
    seconds, learned = max(held, key=lambda one: one[0] or LONG, default=(given.automatic, False))
    if learned:
        yield Limit("automatic section", seconds, "learned from earlier ones of that name")
    elif given.automatic_learned:
        yield Limit("automatic section", seconds, "default, until earlier ones of that name have taught it")
    elif given.automatic != given.section:
        yield Limit("automatic section", seconds, f"{sources.get('hang-timeout', 'default')}, as the hang timeout")


def _start(judged: LiveVerdict, source: str) -> Limit:
    """That of the whole command where it has one; else that of a rank, from its announcement to its first beat."""
    known, attempt = judged.limits, judged.attempt
    if known.start is None or known.start_given or attempt.ranks:
        seconds, learned = (known.start, False) if attempt.moved else start_limit(attempt, known)
        return _learned_start(attempt, seconds) if learned else Limit("start", known.start, source)
    seconds, learned = start_limit(attempt, known)
    if learned:
        return _learned_start(attempt, seconds)
    return Limit(
        "start", None, f"until the command's hooks are loaded; then {durations.seconds(known.start)} ({source})"
    )


def _learned_start(attempt: Attempt, seconds: float | None) -> Limit:
    least, slowest = durations.seconds(adaptive_timeout.PROVISIONAL_FLOOR), durations.seconds(attempt.first_beat or 0.0)
    raised = "; raised, evidence spoke for it" if attempt.start_raised else ""
    why = f"learned: {adaptive_timeout.START_TIMES} times the slowest start so far, {slowest}; at least {least}"
    return Limit("start", seconds, why + raised)


def _hang(judged: LiveVerdict, source: str) -> Limit:
    """The longest that holds for any rank."""
    known, attempt = judged.limits, judged.attempt
    if not known.auto:
        return Limit("hang", known.hang, source)
    moving = [rank for rank in attempt.ranks if rank.present and not rank.done and rank.moved_at is not None]
    if not moving:
        return Limit("hang", None, f"until the first beat; then it is learned from the steps ({source})")
    held = [(hang_limit(rank, attempt, known, judged.learned), rank) for rank in moving]
    (seconds, learned), rank = max(held, key=lambda one: one[0][0] or LONG)
    if seconds is None:
        return Limit("hang", None, source)
    if not learned:
        return Limit("hang", seconds, f"{source}: as the start timeout, until it is learned")
    if rank.intervals < ENOUGH and judged.learned is None:
        why = f"provisional: {adaptive_timeout.provisional_reason(rank)}"
    else:
        why = f"learned: {adaptive_timeout.reason(_taught(rank, judged.learned, seconds))}"
    more = f"; times {attempt.patience}, after hangs in a row" if attempt.patience > 1 else ""
    more += "; raised, evidence spoke for it" if any(r.rank == rank.rank for r in attempt.raised) else ""
    return Limit("hang", seconds, why + more)


def _taught(rank: Rank, before: LearnedTimeouts | None, seconds: float) -> LearnedTimeouts:
    if rank.intervals < ENOUGH and before is not None:
        return before
    longest = max(rank.longest, before.longest if before is not None else 0.0)
    return LearnedTimeouts(seconds, rank.usual, longest, rank.intervals, rank.slowest_start)


def silence(found: Finding, source: str) -> str:
    """`26s without a step of 38s (learned: ...)`."""
    age, limit, rule = durations.seconds(found.age), durations.seconds(found.limit), RULES[found.rule]
    own = "" if found.rule == "section" else f" ({source})"  # a section may have a limit of its own
    return f"{age} {rule.missing(found)} of {limit}{own}"
