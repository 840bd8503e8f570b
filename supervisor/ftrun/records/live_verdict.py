"""What `core/rules/liveness.py` finds now, and what it would find if nothing moved from now on."""

from collections.abc import Iterator
from typing import Any, Final

from ftrun.core.machine.notices import idle_condition
from ftrun.core.machine.values import Attempt, Finding, LocalRank, LookState, Rank, Spin, Standstill
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.ranks.table import Rounds
from ftrun.core.rules import liveness
from ftrun.core.rules.idle import SAMPLES, Idle, TreeSample
from ftrun.core.rules.liveness import Limits, assess, awaited_ranks
from ftrun.records.snapshot import PROVED, Limit, RankNow

LONG: Final = 1e10  # s; longer than any limit
QUIET_SAMPLES: Final = (TreeSample(0.0, 0.0, 0.0, 0.0),) * SAMPLES


class LiveVerdict(NamedTuple):
    """`now`: the present, or for a paused or stopped command the instant since when no timeout runs."""

    attempt: Attempt
    limits: Limits
    now: float

    def first(self) -> Finding | None:
        """The first finding if nothing moved from now on."""
        return _first(self.attempt, self)

    def first_of_each(self) -> Iterator[Finding | None]:
        """The same for each rank alone; None for those that are not waited for."""
        attempt = self.attempt._replace(idle=Idle(active_at=self.attempt.idle.active_at), cannot_beat=True)
        awaited = {(rank.rank, rank.pid): rank for rank in awaited_ranks(self.attempt)}
        for rank in self.attempt.ranks:
            waits = awaited.get((rank.rank, rank.pid))
            yield None if waits is None else _first(attempt._replace(ranks=(waits,)), self)


def _first(attempt: Attempt, live: LiveVerdict) -> Finding | None:
    found = assess(attempt, live.now + LONG, live.limits).finding
    return found and found._replace(age=max(0.0, found.age - LONG))


def attempt(found: dict[str, Any], ranks: tuple[Rank, ...]) -> Attempt:
    """From `now.attempt` of `state.json`; TypeError, ValueError or KeyError if it is malformed."""
    since = found["idle_since"]
    # The number of quiet samples is not in the file; a silence that is near its limit has had enough of them.
    idle = Idle(
        since,
        float(found["idle_raised"]),
        () if since is None else QUIET_SAMPLES,
        accelerator=found["accelerator"],
        active_at=float(found.get("active_at", 0.0)),
    )
    return Attempt(
        number=int(found["number"]),
        pid=int(found["pid"]),
        spawned_at=float(found["spawned_at"]),
        ranks=ranks,
        aways=tuple((float(start), float(end)) for start, end in found["aways"]),
        stopped_at=found["stopped_at"],
        idle=idle,
        first_beat=found.get("first_beat"),
        stalled=_standstill(found.get("stalled")),
        rounds=_rounds(found.get("rounds")),
        processes=_processes(found),
        look=_look(found.get("spin"), ranks),
    )


def _standstill(found: list[Any] | None) -> Standstill | None:
    return None if found is None else Standstill(int(found[0]), float(found[1]))


def _look(found: list[Any] | None, ranks: tuple[Rank, ...]) -> LookState:
    """What the looks have shown, as far as a limit follows from it."""
    if found is None:
        return LookState()
    number, still, since, why, *on_device = found
    pid = next((rank.pid for rank in ranks if rank.rank == number), 0)
    seen = Spin(float(since), why, "", number, pid, on_device=any(on_device))
    return LookState(Standstill(number, float(still)), spin=seen)


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
    if first is None and rank.present and not rank.done and rank.moved_at is not None:
        age = max(0.0, now - rank.moved_at - rank.credit)
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
    condition = "" if configured.idle_given or idle is None else f", {_idle_condition(live)}"
    raised = max(idle, live.attempt.idle.raised) if idle is not None else None
    more = "; raised because evidence showed that the command works" if raised != idle else ""
    return (
        *_hang(live, sources.get("hang-timeout", "default")),
        *_given("start", configured.start, sources.get("start-timeout", "default")),
        *_given("section", configured.section, sources.get("section-timeout", "default"), ", unless it has its own"),
        *_automatic(live, sources),
        Limit("idle", raised, sources.get("idle-timeout", "default") + condition + more),
    )


def _idle_condition(live: LiveVerdict) -> str:
    scope = "; for all members of the group together" if live.limits.idle_together else ""
    if live.attempt.idle.accelerator:
        return f"since the job uses an accelerator{scope}"
    if live.limits.auto and (live.attempt.moved or live.attempt.first_beat is not None):
        return f"since the job has given heartbeats{scope}"
    return idle_condition(live.limits) + scope


def _hang(live: LiveVerdict, source: str) -> Iterator[Limit]:
    if not live.limits.auto:
        yield Limit("hang", live.limits.hang, source)
        return
    yield Limit("hang", None, f"{source}: {PROVED}")
    yield Limit(
        "device-wait", liveness.SPIN_LIMITS["device-wait"], f"{source}: once all ranks wait and no device works"
    )
    yield Limit("spin", liveness.SPIN_LIMITS["spin"], f"{source}: for a rank that computes in one function")


def _given(name: str, seconds: float | None, source: str, more: str = "") -> Iterator[Limit]:
    if seconds is not None or source != "default":
        yield Limit(name, seconds, source + more)


def _automatic(live: LiveVerdict, sources: dict[str, str]) -> Iterator[Limit]:
    """Of sections that the hooks open by themselves."""
    if live.limits.automatic != live.limits.section:
        source = sources.get("hang-timeout", "default")
        yield Limit("automatic section", live.limits.automatic, f"{source}: the hang timeout")
