"""Processes that died without a recorded exception: by a signal, or by an exit that bypasses Python (`os._exit`, C)."""

from collections.abc import Container, Iterable, Sequence
from typing import Final

from ftrun.core.machine.values import TOUCH
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.text.sentences import rank as named
from ftrun.core.text.sentences import signal

STOP_SIGNALS: Final = (-2, -15)  # SIGINT, SIGTERM: a launcher ends its other children with these signals
FROM_PYTHON: Final = 1  # what Python exits with after an exception


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
