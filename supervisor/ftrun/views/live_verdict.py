"""What `core/rules/liveness.py` finds now, and what it would find if nothing moved from now on."""

from collections.abc import Iterator
from typing import Any, Final

from ftrun.core.machine.values import (
    Attempt,
    Confined,
    Finding,
    LearnedTimeouts,
    LocalRank,
    LookState,
    RaisedLimit,
    Rank,
    Standstill,
)
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.ranks.table import Rounds
from ftrun.core.rules import adaptive_timeout, spin
from ftrun.core.rules.adaptive_timeout import ENOUGH
from ftrun.core.rules.idle import SAMPLES, Idle, TreeSample
from ftrun.core.rules.liveness import Limits, assess, awaited_ranks, hang_limit, section_limit, start_limit
from ftrun.core.text import durations
from ftrun.views.snapshot import Limit, RankNow

LONG: Final = 1e10  # s; longer than any limit
QUIET_SAMPLES: Final = (TreeSample(0.0, 0.0, 0.0, 0.0),) * SAMPLES


class LiveVerdict(NamedTuple):
    """`now`: the present, or for a paused or stopped command the instant since when no timeout runs."""

    attempt: Attempt
    limits: Limits
    learned: LearnedTimeouts | None
    now: float

    def first(self) -> Finding | None:
        """The first finding if nothing moved from now on."""
        return _first(self.attempt, self)

    def first_of_each(self) -> Iterator[Finding | None]:
        """The same for each rank alone; None for those that are not waited for."""
        alone = self._replace(limits=self.limits._replace(start_given=False))
        attempt = self.attempt._replace(idle=Idle())
        awaited = {(rank.rank, rank.pid): rank for rank in awaited_ranks(self.attempt)}
        for rank in self.attempt.ranks:
            waits = awaited.get((rank.rank, rank.pid))
            yield None if waits is None else _first(attempt._replace(ranks=(waits,)), alone)


def _first(attempt: Attempt, live: LiveVerdict) -> Finding | None:
    found = assess(attempt, live.now + LONG, live.limits, live.learned).finding
    return found and found._replace(age=max(0.0, found.age - LONG))


def attempt(found: dict[str, Any], ranks: tuple[Rank, ...]) -> Attempt:
    """From `now.attempt` of `state.json`; TypeError, ValueError or KeyError if it is malformed."""
    since = found["idle_since"]
    # The number of quiet samples is not in the file; a silence that is near its limit has had enough of them.
    idle = Idle(
        since, float(found["idle_raised"]), () if since is None else QUIET_SAMPLES, accelerator=found["accelerator"]
    )
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
        rounds=_rounds(found.get("rounds")),
        processes=_processes(found),
        look=_look(found.get("spin"), ranks),
    )


def _look(found: list[Any] | None, ranks: tuple[Rank, ...]) -> LookState:
    """What the looks have shown, as far as a limit follows from it."""
    if found is None:
        return LookState()
    number, since, why = found
    pid = next((rank.pid for rank in ranks if rank.rank == number), 0)
    return LookState(Standstill(number, float(since)), confined=Confined(why, why, "", number, pid, spin.LOOKS))


def _rounds(found: dict[str, Any] | None) -> Rounds:
    """Only what decides when the ranks have to move."""
    return Rounds() if found is None else Rounds(number=int(found["number"]), began=float(found["began"]))


def _processes(found: dict[str, Any]) -> tuple[LocalRank, ...]:
    """The ranks that ftrun started.  How each failed is kept apart, since a text is no number."""
    exceptions = iter(found.get("exceptions", ()))
    return tuple(LocalRank(*one)._replace(exception=next(exceptions, "")) for one in found.get("processes", ()))


def rank_now(rank: Rank, first: Finding | None, now: float, step_time: float | None) -> RankNow:
    """`first`: the first finding about this rank if it did not move again."""
    rule, age, limit = (None, None, None) if first is None else (first.rule, first.age, first.limit)
    moved = None if rank.moved_at is None else max(0.0, now - rank.moved_at)
    alive = None if rank.alive_at is None else max(0.0, now - rank.alive_at)
    section = rank.sections[-1].name if rank.sections else None
    return RankNow(rank.rank, rank.pid, _state(rank), rank.step, moved, alive, section, rule, age, limit, step_time)


def _state(rank: Rank) -> str:
    if rank.done:
        return "done"
    if not rank.present:
        return "gone"
    if rank.sections:
        return "section"
    return "starting" if rank.moved_at is None else "moving"


def limits(live: LiveVerdict, sources: dict[str, str]) -> tuple[Limit, ...]:
    """The timeouts in force, each with the source of its value."""
    configured, idle = live.limits, live.limits.idle
    since = "since" if live.attempt.idle.accelerator else "once"
    condition = "" if configured.idle_given or idle is None else f", {since} the job uses an accelerator"
    raised = max(idle, live.attempt.idle.raised) if idle is not None else None
    more = "; raised because evidence showed that the command works" if raised != idle else ""
    return (
        _hang(live, sources.get("hang-timeout", "default")),
        _start(live, sources.get("start-timeout", "default")),
        Limit(
            "section",
            configured.section,
            f"{sources.get('section-timeout', 'default')}, unless the section has its own",
        ),
        *_automatic(live, sources),
        Limit("idle", raised, sources.get("idle-timeout", "default") + condition + more),
    )


def _automatic(live: LiveVerdict, sources: dict[str, str]) -> Iterator[Limit]:
    """Of sections that the hooks open by themselves: the longest limit of those that are open."""
    configured = live.limits
    ranks = [rank for rank in live.attempt.ranks if rank.present]
    candidates = [
        section_limit(s, rank, live.attempt, configured) for rank in ranks for s in rank.sections if s.automatic
    ]
    seconds, learned = max(candidates, key=lambda one: one[0] or LONG, default=(configured.automatic, False))
    if learned:
        yield Limit("automatic section", seconds, "learned from earlier sections of that name")
    elif configured.automatic_learned:
        yield Limit("automatic section", seconds, "default, until it is learned from earlier sections of that name")
    elif configured.automatic != configured.section:
        yield Limit("automatic section", seconds, f"{sources.get('hang-timeout', 'default')}: the hang timeout")


def _start(live: LiveVerdict, source: str) -> Limit:
    """That of the command if it has one; else that of a rank, from its registration to its first heartbeat."""
    configured, attempt = live.limits, live.attempt
    if configured.start is None or configured.start_given or attempt.ranks:
        seconds, learned = (configured.start, False) if attempt.moved else start_limit(attempt, configured)
        return _learned_start(attempt, seconds) if learned else Limit("start", configured.start, source)
    seconds, learned = start_limit(attempt, configured)
    if learned:
        return _learned_start(attempt, seconds)
    return Limit(
        "start", None, f"until the command's hooks are loaded; then {durations.seconds(configured.start)} ({source})"
    )


def _learned_start(attempt: Attempt, seconds: float | None) -> Limit:
    least, slowest = durations.seconds(adaptive_timeout.PROVISIONAL_FLOOR), durations.seconds(attempt.first_beat or 0.0)
    raised = "; raised because evidence showed that it works" if attempt.start_raised else ""
    why = f"learned: {adaptive_timeout.START_TIMES} times the slowest start so far, {slowest}; at least {least}"
    return Limit("start", seconds, why + raised)


def _hang(live: LiveVerdict, source: str) -> Limit:
    """The longest hang timeout of any rank."""
    configured, attempt = live.limits, live.attempt
    if not configured.auto:
        return Limit("hang", configured.hang, source)
    moving = [rank for rank in attempt.ranks if rank.present and rank.moved_at is not None]
    if not moving:
        return Limit("hang", None, f"until the first heartbeat; then it is learned from the steps ({source})")
    candidates = [(hang_limit(rank, attempt, configured, live.learned), rank) for rank in moving]
    (seconds, learned), rank = max(candidates, key=lambda one: one[0][0] or LONG)
    if seconds is None:
        return Limit("hang", None, source)
    if not learned:
        return Limit("hang", seconds, f"{source}: the start timeout, until a hang timeout is learned")
    if rank.intervals < ENOUGH and live.learned is None:
        why = f"provisional: {adaptive_timeout.provisional_reason(rank)}"
    else:
        why = f"learned: {adaptive_timeout.reason(_learned_values(rank, live.learned, seconds))}"
    more = f"; multiplied by {attempt.patience} after consecutive hangs" if attempt.patience > 1 else ""
    more += "; raised because evidence showed that it works" if any(r.rank == rank.rank for r in attempt.raised) else ""
    return Limit("hang", seconds, why + more)


def _learned_values(rank: Rank, before: LearnedTimeouts | None, seconds: float) -> LearnedTimeouts:
    if rank.intervals < ENOUGH and before is not None:
        return before
    longest = max(rank.longest, before.longest if before is not None else 0.0)
    return LearnedTimeouts(seconds, rank.usual, longest, rank.intervals, rank.slowest_start)
