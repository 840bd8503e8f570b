"""Two rules for what no proof covers: a rank that computes for an hour in one and the same function, of which nothing
can be seen outside, and ranks that wait for their devices or for each other while no device works.

A look reads where the main thread is, and what it has read, written and started, without stopping it
(helpers/evidence/spinning.py).  The sampler adds what the whole tree reads and writes.  A computation that ends looks
the same as one that does not: ADR 39 says why an hour was chosen, and what is not found.  Where all ranks wait
(helpers/evidence/device_waits.py) and all devices spin or do nothing, nobody is left who could end the wait.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from ftrun.core.machine.values import TOUCH, Attempt, Rank, Rule, Spin

LIMITS: Final[Mapping[Rule, float]] = {"spin": 3600.0, "device-wait": 45.0}  # s
WITHIN: Final = (
    90.0  # s from the last step in which a wait for devices is found: the first look and its repetition, too
)
OTHERS: Final = 0.05  # cores that the other threads and the descendants of the process may use: watchdogs, keep-alives


def follow(before: Spin | None, seen: Spin | None) -> Spin | None:
    """What looks in a row have shown: the first of those that found the same, or the last one."""
    if before is None or seen is None:
        return seen
    same = _comparable(before) == _comparable(seen)
    quiet = seen.others - before.others <= OTHERS * max(1.0, seen.since - before.since)
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
    if rank is None or rank.rank <= TOUCH or rank.moved_at is None or rank.moved_at > still.since:
        return None
    return ("device-wait", rank, found.since) if found.on_device else ("spin", rank, max(found.since, idle.active_at))
