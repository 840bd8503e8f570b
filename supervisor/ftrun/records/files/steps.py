"""How fast training steps: by the samples in `steps.jsonl`, over the whole attempt, and for each rank by `paces.json`,
as the messenger measures it over the last minute."""

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from ftrun.core.machine.values import Rank
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules.stragglers import Pace
from ftrun.host import procfs
from ftrun.records.files import state
from ftrun.records.files.record_files import Record, last_lines, parsed
from ftrun.records.files.state import integer, number

LIMIT: Final = 16 << 10  # bytes at the end of the file
WINDOW: Final = 60.0  # s over which the time per step is measured, if there are samples for so long
PACES: Final = 120


class StepSample(NamedTuple):
    """`at`: CLOCK_MONOTONIC as in the file, or the wall clock in a history.  `low`, `high`: of the ranks that step."""

    at: float
    attempt: int
    low: int
    high: int


def sample(record: Record) -> StepSample | None:
    """None if it is malformed."""
    at, low, high = number(record.get("mono")), integer(record.get("low")), integer(record.get("high"))
    if at is None or low is None or high is None:
        return None
    return StepSample(at, integer(record.get("attempt")) or 0, low, high)


def samples(run_dir: str, attempt: int) -> list[StepSample]:
    """The last samples of this attempt, oldest first; none if no rank reports steps."""
    found = (sample(parsed(line) or {}) for line in last_lines(f"{run_dir}/steps.jsonl", LIMIT))
    return [one for one in found if one is not None and one.attempt == attempt]


def paces(run_dir: str, attempt: int) -> list[tuple[float, float]]:
    """(CLOCK_MONOTONIC, seconds per step) pairs of this attempt; intervals without a higher step are left out."""
    seen = samples(run_dir, attempt)
    found = [(b.at, (b.at - a.at) / (b.high - a.high)) for a, b in pairwise(seen) if b.high > a.high]
    return [(round(at, 2), round(pace, 4)) for at, pace in found if pace > 0][-PACES:]


def pace(ranks: Iterable[Rank], seen: Sequence[StepSample]) -> float | None:
    """Seconds per step of the rank with the highest step, over the last minute or the samples that there are."""
    stepped = [(rank.step, rank.moved_at) for rank in ranks if rank.step is not None and rank.moved_at is not None]
    if not stepped or not seen:
        return None
    step, moved_at = max(stepped)
    since = next((one for one in seen if moved_at - one.at <= WINDOW), seen[-1])
    return _per_step(moved_at - since.at, step - since.high)


def rank_pace(rank: Rank, seen: Sequence[StepSample]) -> float | None:
    """Seconds per step of one rank, over all samples of this attempt."""
    if rank.step is None or rank.moved_at is None or not seen:
        return None
    return _per_step(rank.moved_at - seen[0].at, rank.step - seen[0].low)


def _per_step(seconds: float, steps: int) -> float | None:
    return seconds / steps if steps > 0 and seconds > 0 else None


OLD: Final = 15.0  # s; an older file is not used: the messenger is gone


def measured_paces(run_dir: str, attempt: int, now: float) -> dict[tuple[int, int], Pace]:
    """By rank and pid; empty if nothing was measured yet, or the file is of another attempt.  Never raises."""
    try:
        found = json.loads(procfs.read(f"{run_dir}/paces.json", state.LIMIT) or b"{}")
        mono = number(found.get("mono"))
        if mono is None or not 0 <= now - mono < OLD or integer(found.get("attempt")) != attempt:
            return {}
        return {
            (int(one["rank"]), int(one["pid"])): Pace(step_time, number(one.get("work")))
            for one in found["ranks"]
            if (step_time := number(one["step_time"]) or 0.0) > 0
        }
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return {}
