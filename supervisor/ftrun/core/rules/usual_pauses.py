"""What is learned of the pauses that are usual between two movements of a job.

It ends nothing: it says from when on a pause is so unusual that a person should know of it (stalls.py).
"""

from collections.abc import Iterable
from typing import Final

from ftrun.core.machine.values import TOUCH, Rank, UsualPauses

ENOUGH: Final = 100  # pauses of a rank, from which on it is known which are usual
NEWS: Final = 0.1  # a figure that changed by a larger share is recorded
LEAST: Final = 600.0  # s
TIMES: Final = 100  # times the usual pause


def learn(before: UsualPauses | None, ranks: Iterable[Rank]) -> UsualPauses | None:
    """What is known of the job so far, to be kept over restarts: the highest figures of all its ranks.

    Nothing is learned while a present rank has not moved often enough, since it may be the slowest.
    """
    known, slow = [], False
    for rank in ranks:
        if rank.intervals >= ENOUGH:
            known.append(rank)
        else:
            slow = slow or (rank.present and not rank.done and rank.rank != TOUCH)
    if slow or not known:
        return before
    usual, steps = max(rank.usual for rank in known), max(rank.intervals for rank in known)
    longest = max([rank.longest for rank in known] + ([before.longest] if before else []))
    if before is not None and abs(usual - before.usual) <= NEWS * before.usual:
        usual = before.usual
    return UsualPauses(usual, longest, steps)


def unusual(rank: Rank | None, learned: UsualPauses | None) -> float:
    """From how many seconds on a pause of this rank is unusual; None: the command, of which nothing is known."""
    usual = rank.usual if rank is not None and rank.intervals >= ENOUGH else learned.usual if learned else 0.0
    return max(LEAST, TIMES * usual)
