"""What is known about the ranks that ftrun itself started, besides their heartbeats; and which ranks are stragglers.
Pure."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final

from ftrun.core.machine.values import LocalRank
from ftrun.core.rules.stragglers import LEAST, SLOWER
from ftrun.core.text import sentences, states
from ftrun.core.text.durations import seconds, step_duration
from ftrun.views.snapshot import RankNow

LATE_STEPS: Final = 3  # step times without a step
LATE: Final = 5.0  # s beyond those
ENDED: Final = states.ENDED_RANKS


def with_processes(ranks: Sequence[RankNow], processes: Iterable[LocalRank], up: float) -> tuple[RankNow, ...]:
    """`ranks`, of which each has sent a heartbeat, and those of `processes` that have not, by their numbers.  `up`:
    seconds since the start of the attempt."""
    found = {rank.rank: rank for rank in ranks}
    for process in processes:
        rank = found.get(process.rank) or RankNow(process.rank, process.pid, "starting", age=up)
        rank = rank._replace(local_rank=process.local_rank)
        if process.exited_at is not None:
            state = "done" if process.code == 0 else "exited"
            rank = rank._replace(state=state, exit=_exit(process), rule=None, age=None, limit=None)
        found[process.rank] = rank
    return tuple(found[number] for number in sorted(found))


def _exit(process: LocalRank) -> str:
    how = sentences.signal(process.signal) if process.signal is not None else f"code {process.code}"
    return f"{how}: {process.exception}" if process.exception else how


def with_stragglers(ranks: Sequence[RankNow]) -> tuple[RankNow, ...]:
    """The same ranks; each that is slow against the median of the others says why.

    A rank is a straggler if its steps take 1.5 times as long, or if its last step is older than three of the others'
    step times and five seconds while the others step.  Nothing is killed for it.
    """
    stepping = [rank for rank in ranks if rank.step_time and rank.moved is not None and rank.state not in ENDED]
    if len(stepping) < LEAST:
        return tuple(ranks)
    return tuple(
        rank._replace(straggler=_why_slow(rank, [r for r in stepping if r is not rank])) if rank in stepping else rank
        for rank in ranks
    )


def _why_slow(rank: RankNow, others: Sequence[RankNow]) -> str | None:
    usual = median(other.step_time or 0.0 for other in others)
    moved = median(other.moved or 0.0 for other in others)
    if (rank.step_time or 0.0) > SLOWER * usual:
        return f"{step_duration(rank.step_time or 0.0)} per step, the others {step_duration(usual)}"
    if rank.state != "section" and (rank.moved or 0.0) > max(moved, LATE_STEPS * usual) + LATE:
        return f"no step for {seconds(rank.moved or 0.0)}, the others step every {step_duration(usual)}"
    return None
