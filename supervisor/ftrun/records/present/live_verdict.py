"""What `core/rules/liveness.py` finds now, and what it would find if nothing moved from now on."""

from collections.abc import Iterator, Mapping
from typing import Final

from ftrun.core.machine.notices import idle_condition
from ftrun.core.machine.values import Attempt, Finding, LookState, Rank, Spin, Standstill
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.ranks.table import Rounds
from ftrun.core.rules import liveness
from ftrun.core.rules.idle import SAMPLES, Idle, TreeSample
from ftrun.core.rules.liveness import Limits, assess, awaited_ranks
from ftrun.messages.run_state import AttemptStatus
from ftrun.records.present.snapshot import PROVED, Limit, RankNow

LONG: Final = 1e10  # s; longer than any limit
QUIET_SAMPLES: Final = (TreeSample(0.0, 0.0, 0.0, 0.0),) * SAMPLES


class LiveVerdict(NamedTuple):
    """`now`: the present, or for a paused or stopped command the instant since when no timeout runs."""

    attempt: Attempt
    limits: Limits
    now: float

    @property
    def proves(self) -> bool:
        """Whether a deadlock is found without a timeout: not while looks fail."""
        return self.limits.auto and not self.attempt.look.failed

    def first(self) -> Finding | None:
        """The first finding if nothing moved from now on."""
        found = assess(self.attempt, self.now + LONG, self.limits).finding
        return found and found._replace(age=max(0.0, found.age - LONG))

    def first_of_each(self) -> Iterator[Finding | None]:
        """The first finding for each rank alone; None for ranks that are not waited for."""
        attempt = self.attempt._replace(idle=Idle(active_at=self.attempt.idle.active_at), cannot_beat=True)
        awaited = {(rank.rank, rank.pid): rank for rank in awaited_ranks(self.attempt)}
        for rank in self.attempt.ranks:
            waits = awaited.get((rank.rank, rank.pid))
            yield None if waits is None else self._replace(attempt=attempt._replace(ranks=(waits,))).first()


def attempt(found: AttemptStatus, ranks: tuple[Rank, ...]) -> Attempt:
    # The number of quiet samples is not in the file; a silence that is near its limit has had enough of them.
    quiet = () if found.idle_since is None else QUIET_SAMPLES
    look, rounds = LookState(failed=found.look_failed), Rounds()
    if found.spin is not None:
        number, still, since, why, on_device = found.spin
        pid = next((rank.pid for rank in ranks if rank.rank == number), 0)
        spin = Spin(since, why, "", number, pid, on_device=on_device)
        look = look._replace(still=Standstill(number, still), spin=spin)
    if found.rounds is not None:
        rounds = Rounds(number=found.rounds.number, began=found.rounds.began)
    return Attempt(
        number=found.number,
        pid=found.pid,
        spawned_at=found.spawned_at,
        ranks=ranks,
        aways=found.aways,
        stopped_at=found.stopped_at,
        idle=Idle(found.idle_since, found.idle_raised, quiet, accelerator=found.accelerator, active_at=found.active_at),
        first_beat=found.first_beat,
        stalled=found.stalled,
        rounds=rounds,
        processes=found.processes,
        look=look,
    )


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


def limits(live: LiveVerdict, sources: Mapping[str, str]) -> tuple[Limit, ...]:
    """The timeouts in force, each with the source of its value."""
    configured, idle = live.limits, live.limits.idle
    names = ("hang", "start", "section", "idle")
    hang, start, section, of_idle = (sources.get(f"{name}-timeout", "default") for name in names)
    found = [Limit("hang", configured.hang, hang)]
    if configured.auto:
        alike, loop = liveness.SPIN_LIMITS["device-wait"], liveness.SPIN_LIMITS["spin"]
        found = [
            Limit("hang", None, f"{hang}: {PROVED}"),
            Limit("device-wait", alike, f"{hang}: once all ranks wait and no device works"),
            Limit("spin", loop, f"{hang}: for a rank that computes in one function"),
        ]
    if configured.start is not None or start != "default":
        found.append(Limit("start", configured.start, start))
    if configured.section is not None or section != "default":
        found.append(Limit("section", configured.section, f"{section}, unless it has its own"))
    if configured.automatic != configured.section:
        found.append(Limit("automatic section", configured.automatic, f"{hang}: the hang timeout"))
    raised = None if idle is None else max(idle, live.attempt.idle.raised)
    if idle is not None and not configured.idle_given:
        of_idle += f", {_idle_condition(live)}"
    if raised != idle:
        of_idle += "; raised because evidence showed that the command works"
    return (*found, Limit("idle", raised, of_idle))


def _idle_condition(live: LiveVerdict) -> str:
    scope = "; for all members of the group together" if live.limits.idle_together else ""
    if live.attempt.idle.accelerator:
        return f"since the job uses an accelerator{scope}"
    if live.limits.auto and (live.attempt.moved or live.attempt.first_beat is not None):
        return f"since the job has given heartbeats{scope}"
    return idle_condition(live.limits) + scope
