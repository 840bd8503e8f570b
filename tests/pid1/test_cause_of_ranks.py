"""How long the cause of a rank's failure is waited for: not once nothing can change it any more."""

import os
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from ftrun.core.machine import events as ev
from ftrun.core.machine.states import Running
from ftrun.core.machine.values import Attempt, LocalRank
from ftrun.host import beats
from ftrun.pid1.exit_cause import OTHER_RANKS, ExitCause, RankProcesses
from ftrun_hooks import _last

RUNNING = Running(Attempt(1), None)
PIDS = (1_000_001, 1_000_002, 1_000_003)  # of no process here
KEY, RESET = KeyError("lr"), ConnectionResetError(104, "Connection reset by peer")


class NoHelpers:
    """PID 1's clients, of which none knows a cause."""

    tail = ()

    def on_failed(self) -> None:
        pass

    def cause_deadline(self, since: float) -> float:
        return 0.0


class Failing:
    """Three ranks, of which the last one has ended as given."""

    def __init__(self, folder: str, code: int | None, signal: int | None = None) -> None:
        self._folder = folder
        self._cause = ExitCause(folder, cast(Any, NoHelpers()))
        self._cause.spawning(time.monotonic())
        self.ranks = RankProcesses()
        self.ranks.spawned(tuple(LocalRank(number, number, pid) for number, pid in enumerate(PIDS)))
        self.at = time.monotonic()
        first = self.end(PIDS[2], code, signal)
        assert first is not None
        self._cause.begin(first, PIDS[2], self.ranks)

    def end(self, pid: int, code: int | None, signal: int | None = None) -> ev.CommandExited | None:
        return self.ranks.exited(pid, ev.CommandExited(self.at, code, signal), False)

    def leave(self, pid: int, error: BaseException) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "getpid", lambda: pid)
            patch.setenv("RANK", str(PIDS.index(pid)))
            _last.leave(self._folder, error)

    def look(self, later: float) -> ev.CommandExited | None:
        """The end with its cause, so many seconds after it; None: it is waited for."""
        found = self._cause.events(self.at + later, RUNNING)
        assert len(found) <= 1
        return cast(ev.CommandExited, found[0]) if found else None


@pytest.fixture
def folder() -> Iterator[str]:
    made = beats.create()
    yield made.path
    made.close()


@pytest.mark.parametrize("signal", [4, 7, 8, 9, 11])
def test_a_signal_that_no_other_rank_causes_needs_no_exception_of_others(folder: str, signal: int) -> None:
    found = Failing(folder, None, signal).look(0.001)
    assert found is not None
    assert found.ending is not None
    assert found.ending.death is not None
    assert (found.rank, found.ending.death.rank, found.ending.death.code) == (2, 2, -signal)


@pytest.mark.parametrize(("code", "signal"), [(1, None), (7, None), (None, 6), (None, 15)])
def test_other_ends_may_have_a_cause_in_another_rank_which_is_waited_for(
    folder: str, code: int | None, signal: int | None
) -> None:
    failing = Failing(folder, code, signal)
    assert failing.look(0.001) is None
    failing.leave(PIDS[0], KEY)
    assert failing.look(OTHER_RANKS / 2) is None  # its exit code is not known yet
    failing.end(PIDS[0], 1)
    found = failing.look(OTHER_RANKS / 2)
    assert found is not None
    assert found.ending is not None
    assert found.ending.cause is not None
    assert (found.rank, found.ending.cause.thrown.line) == (0, "KeyError: 'lr'")


def test_once_all_that_live_have_left_an_exception_nothing_is_waited_for(folder: str) -> None:
    """They may need seconds to unload what they have imported."""
    failing = Failing(folder, 7)
    failing.leave(PIDS[0], RESET)
    assert failing.look(0.001) is None
    failing.leave(PIDS[1], RESET)
    found = failing.look(0.1)
    assert found is not None
    assert found.ending is not None
    assert found.ending.death is not None
    assert (found.rank, found.ending.death.code) == (2, 7)


def test_without_any_exception_the_first_end_is_the_cause_after_a_second(folder: str) -> None:
    failing = Failing(folder, 7)
    assert failing.look(OTHER_RANKS * 0.99) is None
    found = failing.look(OTHER_RANKS)
    assert found is not None
    assert found.rank == 2
