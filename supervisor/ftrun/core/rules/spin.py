"""The limit for a rank that computes without end, where no proof says so.

A loop that counts never comes back to a state in which it was, so it cannot be proved (ADR 19), and it looks like a
long computation.  What a look can show is that nothing can influence the loop, and that it changes next to no memory
(helpers/evidence/recurrence.py).  A computation that a healthy job makes once in a while may look like that, too, but
hardly one that lasts this long where the job never was before.  `tests/proof/hangs/limits.py` simulates what each part
of the rule is worth; docs/hang-matrix.md has the result, and ADR 20 the reasons.
"""

from typing import Final

from ftrun.core.machine.values import TOUCH, Attempt, LearnedTimeouts, LookState
from ftrun.core.rules import adaptive_timeout
from ftrun.core.text import durations

LOOKS: Final = 2  # in a row that have to find it, before the evidence does
FLOOR: Final = 1200.0  # s
TIMES: Final = 100  # times the usual silence
LONGEST_TIMES: Final = 2  # times the longest one


def applies(look: LookState) -> bool:
    """Whether enough looks have found a rank that computes, where none has computed before the job moved on."""
    found = look.confined
    return found is not None and found.times >= LOOKS and not is_known(found.place, look.places)


def spin_limit(attempt: Attempt, learned: LearnedTimeouts | None) -> float | None:
    """For how many seconds the rank that looks have found to compute may be silent; None: this rule does not apply."""
    confined = attempt.look.confined
    if confined is None or not applies(attempt.look):
        return None
    rank = next((rank for rank in attempt.ranks if rank.rank == confined.rank), None)
    if rank is None or rank.rank <= TOUCH or rank.intervals < adaptive_timeout.ENOUGH or rank.pid != confined.pid:
        return None
    if rank.moved_at is None or any(not section.side for section in rank.sections):
        return None
    longest = max(rank.longest, learned.longest if learned is not None else 0.0)
    return max(FLOOR, TIMES * rank.usual, LONGEST_TIMES * longest) * attempt.patience


def reason() -> str:
    """How the limit was derived, as text."""
    least = durations.seconds(FLOOR)
    return f"learned: {TIMES} times the usual silence and {LONGEST_TIMES} times the longest one, at least {least}"


def is_known(place: str, places: tuple[str, ...]) -> bool:
    """Whether the job has computed there, or in a function that was called from there, and has moved on."""
    return not place or any(known == place or known.startswith(f"{place} > ") for known in places)
