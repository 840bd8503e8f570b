"""The pace of each rank over the last minute, as the messenger measures it in `paces.json`."""

import json
from typing import Final

from ftrun.core.rules.stragglers import Pace
from ftrun.host import procfs
from ftrun.records.state import LIMIT, integer, number

OLD: Final = 15.0  # s; an older file is not used: the messenger is gone


def read(run_dir: str, attempt: int, now: float) -> dict[tuple[int, int], Pace]:
    """By rank and pid; empty if nothing was measured yet, or the file is of another attempt.  Never raises."""
    try:
        found = json.loads(procfs.read(f"{run_dir}/paces.json", LIMIT) or b"{}")
        mono = number(found.get("mono"))
        if mono is None or not 0 <= now - mono < OLD or integer(found.get("attempt")) != attempt:
            return {}
        return {(int(one["rank"]), int(one["pid"])): _pace(one) for one in found["ranks"]}
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return {}


def _pace(one: dict[str, object]) -> Pace:
    step_time = number(one["step_time"])
    if step_time is None or step_time <= 0:
        raise ValueError("not a pace")
    return Pace(step_time, number(one.get("work")))
