"""A job that stands still and is not known to hang: when that is recorded for a person, and as what.

Pure.  Most such jobs wait for something that still comes.  So nothing is done about a stall but to write it down, once.
A pause is a stall where it is far longer than those that are usual between two movements of this job, which is learned.
"""

from collections.abc import Iterable
from typing import Final

from ftrun.core.machine.values import TOUCH, Attempt, Rank, UsualPauses
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules.liveness import Limits, awaited_ranks, has_own_limit, time_awake

ENOUGH: Final = 100  # pauses of a rank, from which on it is known which are usual
NEWS: Final = 0.1  # a figure that changed by a larger share is recorded
LEAST_UNUSUAL: Final = 600.0  # s
TIMES_USUAL: Final = 100  # times the usual pause
UNKNOWN: Final = "it is not known what it waits for"
ADVICE: Final = (
    "that alone ends nothing; `ftctl stacks` shows where it is, `ftctl restart` starts it again, and --hang-timeout "
    "sets a time after which ftrun does so"
)


class UnusualPause(NamedTuple):
    """`rank` has not moved for `age` seconds; `wait`: what it waits for, according to the last look."""

    rank: Rank
    age: float
    wait: str


def follow(
    attempt: Attempt, now: float, limits: Limits, learned: UsualPauses | None
) -> tuple[Attempt, float | None, UnusualPause | None]:
    """The attempt; when the next notice is due, or None; and the stall that is to be recorded now, if any.

    Only in a job that gives heartbeats, and under `--hang-timeout auto`: a given timeout says which pause is too long.
    A rank in a section with a limit of its own has announced its silence.
    """
    still = attempt.look.still
    if attempt.stalled is not None and attempt.stalled != still:
        attempt = attempt._replace(stalled=None)
    if not limits.auto or still is None or still.rank is None or attempt.stalled is not None:
        return attempt, None, None
    rank = next((rank for rank in awaited_ranks(attempt) if rank.rank == still.rank), None)
    if rank is None or rank.unseen or has_own_limit(rank, limits):
        return attempt, None, None
    left = unusual_from(rank, learned) - (age := time_awake(still.since, now, attempt.aways) - rank.credit)
    if left > 0:
        return attempt, now + left, None
    return attempt._replace(stalled=still), None, UnusualPause(rank, age, attempt.look.wait or UNKNOWN)


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


def unusual_from(rank: Rank | None, learned: UsualPauses | None) -> float:
    """From how many seconds on a pause of this rank is unusual; None: the command, of which nothing is known."""
    usual = rank.usual if rank is not None and rank.intervals >= ENOUGH else learned.usual if learned else 0.0
    return max(LEAST_UNUSUAL, TIMES_USUAL * usual)
