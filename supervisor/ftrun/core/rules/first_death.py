"""The process that ended first, where what the others died of does not tell: without a recorded exception, by a signal
or by an exit that bypasses Python (`os._exit`, C), or with 0 while the others still needed it."""

from collections.abc import Container, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from ftrun.core.machine.values import TOUCH, LocalRank, Rank
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.text.durations import seconds
from ftrun.core.text.sentences import rank as named
from ftrun.core.text.sentences import signal

STOP_SIGNALS: Final = (-2, -15)  # SIGINT, SIGTERM: a launcher ends its other children with these signals
FROM_PYTHON: Final = 1  # what Python exits with after an exception
# SIGILL, SIGBUS, SIGFPE, SIGKILL, SIGSEGV: the failure of another rank ends no process so.  SIGABRT is missing, with
# which communication libraries end a process whose peer is lost.
OWN_FAULTS: Final = (-4, -7, -8, -9, -11)


class Death(NamedTuple):
    """A child as its launcher saw it end.  `code`: its exit code, or minus the signal that ended it."""

    rank: int
    pid: int
    code: int

    @property
    def description(self) -> str:
        how = f"{signal(-self.code)} ended" if self.code < 0 else f"exit code {self.code} of"
        return f"{named(self.rank)}: {how} process {self.pid}, which left no exception"


def first_death(children: Sequence[Death], with_exception: Container[int]) -> Death | None:
    """The death that may have caused the others: the process ended by itself, and is not among those that left an
    exception (`with_exception`).

    A launcher checks its children a few times a second and lists those that ended in between in the order of their
    ranks.  So a process that a signal ended comes before one that exited, and exit code 1, which may be an exception
    that could not be recorded, comes last.
    """
    silent = [one for one in children if one.code and one.code not in STOP_SIGNALS and one.pid not in with_exception]
    return min(silent, key=lambda one: (one.code > 0, one.code == FROM_PYTHON), default=None)


def may_be_explained(deaths: Sequence[Death], living: AbstractSet[int], with_exception: Container[int]) -> bool:
    """Whether an exception that is still to come, of a rank that lives (`living`: pids), may explain these ends of
    ranks.  No exception that was left (`with_exception`) is the cause of the others."""
    return any(pid not in with_exception for pid in living) and not any(
        one.code in OWN_FAULTS and one.pid not in with_exception for one in deaths
    )


def rank_without_exception(ranks: Iterable[tuple[int, int]], with_exception: Container[int]) -> str:
    """An addition to the reason where no launcher reported a child: which of the ranks (rank and process) left no
    exception, if all others did."""
    everyone = list(ranks)
    silent = [one for one in everyone if one[1] not in with_exception]
    if len(silent) != 1 or len(everyone) < 2:
        return ""
    number, pid = silent[0]
    who = named(number) if number < TOUCH else f"{named(number)} (process {pid})"
    return f"{who} left no exception"


class EarlyLeave(NamedTuple):
    """A rank that ended with 0, or called itself done, before another rank died of a connection that was closed, a
    timeout, or the like.  `at`: when it ended, where ftrun has seen that; `description` leads over to what followed."""

    rank: int
    at: float | None
    description: str


def left_early(processes: Iterable[LocalRank], ranks: Iterable[Rank], failed: int | None) -> EarlyLeave | None:
    """The first rank that has left.  `processes` are those that ftrun started itself; under a launcher only the ranks'
    own word counts.  `failed`: the rank that failed; one that was done itself needed no other any more."""
    known = {one.rank: one for one in ranks if one.ranked}
    if failed is not None and failed in known and known[failed].done:
        return None
    ended = {one.rank: one for one in processes}
    end = ended[failed].exited_at if failed in ended else None
    if ended:
        exits = ((one.exited_at, one.rank) for one in ended.values() if one.code == 0)
        left = [(at, rank) for at, rank in exits if at is not None and (end is None or at <= end)]
    else:
        left = [(one.moved_at or 0.0, one.rank) for one in known.values() if one.done]
        left = left if len(left) < len(known) else []
    if not left:
        return None
    at, rank = min(left)
    step = known[rank].step if rank in known else None
    where = "" if step is None else f" at step {step}"
    how = f"{named(rank)} left{' with 0' if ended else ''}{where} before the others"
    after = "then" if end is None else f"{seconds(end - at)} later"
    return EarlyLeave(rank, at if ended else None, f"{how}; {after} ")
