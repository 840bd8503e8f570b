"""What is known about the ranks of this node besides their heartbeats: the processes that ftrun started, their paces
and devices, and which of them are stragglers.  Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ftrun.core.machine.values import LocalRank
from ftrun.core.rules.stragglers import Pace, stragglers
from ftrun.core.text import sentences, states
from ftrun.core.text.sentences import slower
from ftrun.records.present.snapshot import DeviceNow, RankNow, StalledRank

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
            how = sentences.signal(process.signal) if process.signal is not None else f"code {process.code}"
            how += f": {process.exception}" if process.exception else ""
            rank = rank._replace(state=state, exit=how, rule=None, age=None, limit=None)
        found[process.rank] = rank
    return tuple(found[number] for number in sorted(found))


def with_stall(ranks: Sequence[RankNow], stall: StalledRank | None) -> tuple[RankNow, ...]:
    """The same ranks; `stalled` is the one that stands still, and what has not moved for nearly as long."""
    least = float("inf") if stall is None else stall.age / 2
    return tuple(
        rank._replace(state="stalled") if rank.state == "moving" and (rank.moved or 0.0) >= least else rank
        for rank in ranks
    )


def with_paces(ranks: Sequence[RankNow], paces: Mapping[tuple[int, int], Pace]) -> tuple[RankNow, ...]:
    """The same ranks with what was measured lately, by rank and pid."""
    return tuple(
        rank._replace(step_time=pace.step_time, work=pace.work)
        if (pace := paces.get((rank.rank, rank.pid))) is not None
        else rank
        for rank in ranks
    )


def with_devices(ranks: Sequence[RankNow], devices: Sequence[DeviceNow]) -> tuple[RankNow, ...]:
    """The same ranks with their devices where each has one, by the convention that rank n of a node takes device n."""
    numbered = [rank for rank in ranks if rank.rank >= 0]
    if len(numbered) != len(devices):
        return tuple(ranks)
    ordered = sorted(numbered, key=lambda rank: rank.rank if rank.local_rank is None else rank.local_rank)
    found = {rank.rank: device.id for rank, device in zip(ordered, devices, strict=True)}
    return tuple(rank._replace(device=found.get(rank.rank)) for rank in ranks)


def with_stragglers(ranks: Sequence[RankNow]) -> tuple[RankNow, ...]:
    """The same ranks; each that is slow against the others (core/rules/stragglers.py) says why."""
    paces = {
        rank.rank: Pace(rank.step_time, rank.work, None if rank.state == "section" else rank.moved)
        for rank in ranks
        if rank.step_time and rank.moved is not None and rank.state not in ENDED
    }
    found = stragglers(paces)
    return tuple(
        rank._replace(straggler=slower(*slow)) if (slow := found.get(rank.rank)) is not None else rank for rank in ranks
    )
