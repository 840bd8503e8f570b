"""How long the cause of a failure is waited for, and an order to stop while a process is about to exit."""

import os
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from ftrun.core.group.messages import GroupEnd, GroupOrder
from ftrun.core.machine import events as ev
from ftrun.core.machine.states import Running, Stopping
from ftrun.core.machine.values import Attempt, LocalRank
from ftrun.core.rules.crash_causes import CommandFailure
from ftrun.host import beats
from ftrun.pid1.exit_cause import EXITING, OTHER_RANKS, ExitCause, RankProcesses
from ftrun_hooks import _last

RUNNING, ENDING = Running(Attempt(1), None), Stopping(Attempt(1), "term")
STOP = GroupOrder(1, "stop", "member 0 lost a connection")
PIDS = (1_000_001, 1_000_002, 1_000_003)  # of no process here
KEY, RESET = KeyError("lr"), ConnectionResetError(104, "Connection reset by peer")


class NoHelpers:
    """PID 1's clients, of which none knows a cause; `wait`: how long one that may is waited for."""

    tail = ()

    def __init__(self, wait: float) -> None:
        self.wait = wait

    def on_failed(self) -> None:
        pass

    def cause_deadline(self, since: float) -> float:
        return since + self.wait if self.wait else 0.0


@pytest.fixture
def folder() -> Iterator[str]:
    made = beats.create()
    yield made.path
    made.close()


def cause(folder: str, wait: float = 0.0) -> ExitCause:
    found = ExitCause(folder, cast(Any, NoHelpers(wait)))
    found.spawning(time.monotonic())
    return found


# --- the cause of a rank's failure ------------------------------------------------------------------------------------


class Failing:
    """Three ranks, of which the last one has ended as given."""

    def __init__(self, folder: str, code: int | None, signal: int | None = None) -> None:
        self._folder, self._cause, self.ranks = folder, cause(folder), RankProcesses()
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

    def is_decided(self, later: float) -> bool:
        return self._cause.events(self.at + later, RUNNING) != []

    def decided(self, later: float) -> tuple[int | None, CommandFailure]:
        """The rank that is named, and how it failed, so many seconds after the end."""
        (found,) = self._cause.events(self.at + later, RUNNING)
        assert isinstance(found, ev.CommandExited)
        assert found.ending is not None
        return found.rank, found.ending


@pytest.mark.parametrize("signal", [4, 7, 8, 9, 11])
def test_a_signal_that_no_other_rank_causes_needs_no_exception_of_others(folder: str, signal: int) -> None:
    rank, failure = Failing(folder, None, signal).decided(0.001)
    assert failure.death is not None
    assert (rank, failure.death.rank, failure.death.code) == (2, 2, -signal)


@pytest.mark.parametrize(("code", "signal"), [(1, None), (7, None), (None, 6), (None, 15)])
def test_other_ends_may_have_a_cause_in_another_rank_which_is_waited_for(
    folder: str, code: int | None, signal: int | None
) -> None:
    failing = Failing(folder, code, signal)
    assert not failing.is_decided(0.001)
    failing.leave(PIDS[0], KEY)
    assert not failing.is_decided(OTHER_RANKS / 2), "its exit code is not known yet"
    failing.end(PIDS[0], 1)
    rank, failure = failing.decided(OTHER_RANKS / 2)
    assert failure.cause is not None
    assert (rank, failure.cause.thrown.line) == (0, "KeyError: 'lr'")


def test_once_all_that_live_have_left_an_exception_nothing_is_waited_for(folder: str) -> None:
    """They may need seconds to unload what they have imported."""
    failing = Failing(folder, 7)
    failing.leave(PIDS[0], RESET)
    assert not failing.is_decided(0.001)
    failing.leave(PIDS[1], RESET)
    rank, failure = failing.decided(0.1)
    assert failure.death is not None
    assert (rank, failure.death.code) == (2, 7)


def test_without_any_exception_the_first_end_is_the_cause_after_a_second(folder: str) -> None:
    failing = Failing(folder, 7)
    assert not failing.is_decided(OTHER_RANKS * 0.99)
    assert failing.decided(OTHER_RANKS)[0] == 2


# --- an order to stop -------------------------------------------------------------------------------------------------

OWN = {os.getpid(): 0}


def order(what: GroupOrder = STOP) -> ev.GroupOrderReceived:
    return ev.GroupOrderReceived(time.monotonic(), what)


def test_an_order_waits_for_the_exit_after_an_exception(folder: str) -> None:
    waits = cause(folder)
    assert not waits.defers(order(), RUNNING, OWN), "no process has raised an exception"
    _last.leave(folder, ValueError("the data are broken"))
    assert not waits.defers(order(), RUNNING, {}), "it is no process that ftrun started"
    assert not waits.defers(order(), ENDING, OWN)
    received = order()
    assert waits.defers(received, RUNNING, OWN)
    assert (waits.pending, waits.deadline) == (True, received.now + EXITING)
    assert waits.events(received.now + EXITING / 2, RUNNING) == []
    late = received.now + EXITING
    assert waits.events(late, RUNNING) == [received._replace(now=late)]
    assert not waits.pending


def test_the_end_of_the_command_comes_before_the_order(folder: str) -> None:
    waits = cause(folder)
    _last.leave(folder, ValueError("the data are broken"))
    assert waits.defers(order(), RUNNING, OWN)
    now = time.monotonic()
    waits.begin(ev.CommandExited(now, 1), os.getpid(), RankProcesses())
    assert waits.events(now, RUNNING) == [], "the last heartbeats are decided on first"
    assert waits.deadline is not None
    assert waits.deadline <= now
    later = now + 0.001
    exited, released = waits.events(later, RUNNING)
    assert isinstance(exited, ev.CommandExited)
    assert exited.began is not None
    assert exited.began <= now
    assert not exited.symptom
    assert released == ev.GroupOrderReceived(later, STOP)


def test_a_broken_connection_is_a_symptom_and_lets_no_order_wait(folder: str) -> None:
    waits = cause(folder)
    _last.leave(folder, RESET)
    assert not waits.defers(order(), RUNNING, OWN)
    waits.begin(ev.CommandExited(time.monotonic(), 1), os.getpid(), RankProcesses())
    (exited,) = waits.events(time.monotonic(), RUNNING)
    assert isinstance(exited, ev.CommandExited)
    assert (exited.symptom, exited.began) == (True, None)


@pytest.mark.parametrize(
    "later", [STOP._replace(cause="failure"), GroupOrder(1, "end", end=GroupEnd(1, "failed", "")), GroupOrder(2, "run")]
)
def test_a_later_order_that_is_certain_takes_effect_at_once(later: GroupOrder, folder: str) -> None:
    waits = cause(folder)
    _last.leave(folder, ValueError("the data are broken"))
    assert waits.defers(order(), RUNNING, OWN)
    assert not waits.defers(order(later), RUNNING, OWN)
    assert not waits.pending
    assert waits.events(time.monotonic() + EXITING, RUNNING) == []


@pytest.mark.parametrize(
    ("first", "seconds", "accepted"), [(True, 1.0, False), (True, 59.0, False), (True, 61.0, True), (False, 1.0, True)]
)
def test_arguments_are_accepted_by_an_earlier_start_or_a_long_run(
    folder: str, first: bool, seconds: float, accepted: bool
) -> None:
    found, now = ExitCause(folder, cast(Any, NoHelpers(0.0))), time.monotonic()
    found.spawning(now - seconds, first)
    found.begin(ev.CommandExited(now, 2), 7, RankProcesses())
    (exited,) = found.events(now + EXITING, ENDING)
    assert isinstance(exited, ev.CommandExited)
    assert exited.ending is not None
    assert exited.ending.accepted is accepted


def test_an_end_is_not_waited_for_once_the_command_is_stopped_or_started_again(folder: str) -> None:
    waits, now = cause(folder, wait=3600.0), time.monotonic()
    waits.begin(ev.CommandExited(now, 3), os.getpid(), RankProcesses())
    assert waits.events(now + 1, RUNNING) == []
    (exited,) = waits.events(now + 1, ENDING)
    assert isinstance(exited, ev.CommandExited)
    assert exited.code == 3
    waits.begin(ev.CommandExited(now, None, 6), 7, RankProcesses())
    assert waits.pending
    waits.spawning(now)
    assert not waits.pending
    assert waits.events(now + 7200.0, RUNNING) == []


def test_a_process_whose_rank_has_another_one_by_now_does_not_end_the_command() -> None:
    """PID 1 was suspended between the start of the other one and the decision that it is too late for it."""
    ranks, now = RankProcesses(), time.monotonic()
    ranks.spawned(tuple(LocalRank(rank, rank, pid) for rank, pid in enumerate(PIDS[:2])))
    ranks.recovers(PIDS[1])
    ranks.started(1, PIDS[2])
    assert ranks.exited(PIDS[1], ev.CommandExited(now, 3), False) is None
    assert ranks.exited(PIDS[0], ev.CommandExited(now, None, 15), True) is None
    end = ranks.exited(PIDS[2], ev.CommandExited(now, None, 15), True)
    assert end is not None
    assert end.rank == 0
