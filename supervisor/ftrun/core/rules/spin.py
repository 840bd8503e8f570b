"""The rule for a rank that computes for an hour in one and the same function, of which nothing can be seen outside.

A look reads where the main thread is, and what it has read, written and started, without stopping it
(helpers/evidence/spinning.py).  The sampler adds what the whole tree reads and writes.  A computation that ends looks
the same as one that does not: ADR 39 says why an hour was chosen, and what is not found.
"""

from collections.abc import Iterable
from typing import Final

from ftrun.core.machine.values import TOUCH, Attempt, Rank, Spin

LIMIT: Final = 3600.0  # s
OTHERS: Final = 0.05  # cores that the other threads and the descendants of the process may use: watchdogs, keep-alives


def follow(before: Spin | None, seen: Spin | None) -> Spin | None:
    """What looks in a row have shown: the first of those that found the same, or the last one."""
    if before is None or seen is None:
        return seen
    same = (before.rank, before.pid, before.fingerprint) == (seen.rank, seen.pid, seen.fingerprint)
    quiet = seen.others - before.others <= OTHERS * max(1.0, seen.since - before.since)
    return before if same and quiet else seen


def spinning(attempt: Attempt, awaited: Iterable[Rank]) -> tuple[Rank, float] | None:
    """The rank that is found by this rule once its limit has passed, and since when it has been seen so.  `awaited`:
    those that have to move, or to end."""
    spin, still = attempt.look.spin, attempt.look.still
    if spin is None or still is None:
        return None
    rank = next((rank for rank in awaited if rank.rank == spin.rank and rank.pid == spin.pid), None)
    if rank is None or rank.rank <= TOUCH or rank.moved_at is None or rank.moved_at > still.since:
        return None
    return rank, max(spin.since, attempt.idle.active_at)
