"""The ranks as `core.liveness` judges them now, and what it would find if nothing moved from now on."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ftrun.core import learning, words
from ftrun.core.idle import SAMPLES, Idle, Sample
from ftrun.core.learning import ENOUGH
from ftrun.core.liveness import Limits, hang_limit, judge
from ftrun.core.values import Attempt, Finding, Learned, Raised, Rank
from ftrun.views.snapshot import Limit, RankNow

LONG: Final = 1e10  # s; longer than any limit
_QUIET: Final = (Sample(0.0, 0.0, 0.0, 0.0),) * SAMPLES


class Judged(NamedTuple):
    """`now`: when the judging stopped, for one that is paused or was stopped; else the present."""

    attempt: Attempt
    limits: Limits
    learned: Learned | None
    now: float

    def first(self) -> Finding | None:
        """What would be found first if nothing moved any more."""
        return _first(self.attempt, self)

    def first_of_each(self) -> Iterator[Finding | None]:
        """The same of each rank alone."""
        alone = self._replace(limits=self.limits._replace(start_given=False))
        attempt = self.attempt._replace(idle=Idle())
        return (_first(attempt._replace(ranks=(rank,)), alone) for rank in self.attempt.ranks)


def _first(attempt: Attempt, by: Judged) -> Finding | None:
    found = judge(attempt, by.now + LONG, by.limits, by.learned).finding
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
        raised=tuple(Raised(int(rank), float(limit)) for rank, limit in found["raised"]),
        idle=idle,
        patience=int(found["patience"]),
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


def limits(judged: Judged, sources: dict[str, str]) -> tuple[Limit, ...]:
    """Those in force, each with where it comes from."""
    given, idle = judged.limits, judged.limits.idle
    used = "since" if judged.attempt.idle.accelerator else "once"
    needs = "" if given.idle_given or idle is None else f", {used} the job uses an accelerator"
    raised = max(idle, judged.attempt.idle.raised) if idle is not None else None
    more = "; raised, evidence spoke for the command" if raised != idle else ""
    return (
        _hang(judged, sources.get("hang-timeout", "default")),
        Limit("start", given.start, sources.get("start-timeout", "default")),
        Limit("section", given.section, "default, where a section has none of its own"),
        Limit("idle", raised, sources.get("idle-timeout", "default") + needs + more),
    )


def _hang(judged: Judged, source: str) -> Limit:
    """The longest that holds for any rank."""
    known, attempt = judged.limits, judged.attempt
    if not known.auto:
        return Limit("hang", known.hang, source)
    moving = [rank for rank in attempt.ranks if rank.present and not rank.done and rank.moved_at is not None]
    held = [(hang_limit(rank, attempt, known, judged.learned), rank) for rank in moving or [Rank(0)]]
    (seconds, learned), rank = max(held, key=lambda one: one[0][0] or LONG)
    if seconds is None:
        return Limit("hang", None, source)
    if not learned:
        return Limit("hang", seconds, f"{source}: as the start timeout, until it is learned")
    why = learning.reason(_taught(rank, judged.learned, seconds))
    more = f"; times {attempt.patience}, after hangs in a row" if attempt.patience > 1 else ""
    more += "; raised, evidence spoke for it" if any(r.rank == rank.rank for r in attempt.raised) else ""
    return Limit("hang", seconds, f"learned: {why}{more}")


def _taught(rank: Rank, before: Learned | None, seconds: float) -> Learned:
    if rank.intervals < ENOUGH and before is not None:
        return before
    longest = max(rank.longest, before.longest if before is not None else 0.0)
    return Learned(seconds, rank.usual, longest, rank.intervals, rank.slowest_start)


def silence(found: Finding, source: str) -> str:
    """`26s without a step of 38s (learned: ...)`."""
    age, limit = words.seconds(found.age), words.seconds(found.limit)
    if found.rule == "section":
        return f"{age} in section {found.section!r} of {limit}"
    what = {"start": "without a first beat", "idle": "without any work"}.get(found.rule)
    return f"{age} {what or ('without a beat' if found.step is None else 'without a step')} of {limit} ({source})"
