"""A job that stands still and is no hang, as far as anybody can know: when a person is to be told, and what.

Pure.  Most such jobs wait for something that still comes.  So nothing is done about a stall but to write it down, once.
"""

from typing import Final

from ftrun.core.machine.values import Attempt, Rank, UsualPauses
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules.liveness import Limits, awaited_ranks, has_own_limit, time_awake
from ftrun.core.rules.usual_pauses import unusual

UNKNOWN: Final = "it is not known what it waits for"
ADVICE: Final = (
    "that alone ends nothing; `ftctl stacks` shows where it is, `ftctl restart` starts it again, and --hang-timeout "
    "sets a time after which ftrun does so"
)


class Stall(NamedTuple):
    """`rank` has not moved for `age` seconds; `wait`: what it waits for, according to the last look."""

    rank: Rank
    age: float
    wait: str


def follow(
    attempt: Attempt, now: float, limits: Limits, learned: UsualPauses | None
) -> tuple[Attempt, float | None, Stall | None]:
    """The attempt; when the next notice is due, or None; and the stall of which a person is to be told now.

    Only in a job that gives heartbeats, and under `--hang-timeout auto`: a given timeout says which pause is too long.
    A rank in a section with a limit of its own has announced its silence.
    """
    still = attempt.look.still
    if attempt.stalled is not None and attempt.stalled != still:
        attempt = attempt._replace(stalled=None)
    if not limits.auto or still is None or still.rank is None or attempt.stalled is not None:
        return attempt, None, None
    rank = next((rank for rank in awaited_ranks(attempt) if rank.rank == still.rank), None)
    if rank is None or has_own_limit(rank, limits):
        return attempt, None, None
    left = unusual(rank, learned) - (age := time_awake(still.since, now, attempt.aways) - rank.credit)
    if left > 0:
        return attempt, now + left, None
    return attempt._replace(stalled=still), None, Stall(rank, age, attempt.look.wait or UNKNOWN)
