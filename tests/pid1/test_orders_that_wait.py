"""An order to stop waits while a process of the command is about to exit after its exception, and not longer."""

import os
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from ftrun.core.group.messages import GroupEnd, GroupOrder
from ftrun.core.machine import events as ev
from ftrun.core.machine.states import Running, Stopping
from ftrun.core.machine.values import Attempt
from ftrun.host import beats
from ftrun.pid1.exit_cause import EXITING, ExitCause, RankProcesses
from ftrun_hooks import _last

STOP = GroupOrder(1, "stop", "member 0 lost a connection")
RUNNING = Running(Attempt(1), None)
OWN = {os.getpid(): 0}


class NoHelpers:
    """PID 1's clients, of which none knows a cause."""

    tail = ()

    def on_failed(self) -> None:
        pass

    def __init__(self, wait: float) -> None:
        self.wait = wait

    def cause_deadline(self, since: float) -> float:
        return since + self.wait if self.wait else 0.0


@pytest.fixture
def folder() -> Iterator[str]:
    made = beats.create()
    yield made.path
    made.close()


def cause(folder: str, wait: float = 0.0) -> ExitCause:
    """`wait`: how long a helper that may know the cause is waited for."""
    found = ExitCause(folder, cast(Any, NoHelpers(wait)))
    found.spawning(time.monotonic())
    return found


def order(what: GroupOrder = STOP) -> ev.GroupOrderReceived:
    return ev.GroupOrderReceived(time.monotonic(), what)


def test_an_order_waits_for_the_exit_after_an_exception(folder: str) -> None:
    waits = cause(folder)
    assert not waits.defers(order(), RUNNING, OWN)  # no process has raised an exception
    _last.leave(folder, ValueError("the data are broken"))
    assert not waits.defers(order(), RUNNING, {})  # it is no process that ftrun started
    assert not waits.defers(order(), Stopping(Attempt(1), "term"), OWN)
    assert not waits.pending
    received = order()
    assert waits.defers(received, RUNNING, OWN)
    assert waits.pending
    assert waits.deadline == received.now + EXITING
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
    assert waits.events(now, RUNNING) == []  # the last heartbeats are decided on first
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
    _last.leave(folder, ConnectionResetError("Connection reset by peer"))
    assert not waits.defers(order(), RUNNING, OWN)
    waits.begin(ev.CommandExited(time.monotonic(), 1), os.getpid(), RankProcesses())
    (exited,) = waits.events(time.monotonic(), RUNNING)
    assert isinstance(exited, ev.CommandExited)
    assert exited.symptom
    assert exited.began is None


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


def test_the_end_of_a_command_that_is_being_stopped_comes_at_once(folder: str) -> None:
    """While its cause is waited for, an order to stop has come; nothing waits for that end once its tree has ended."""
    waits = cause(folder, wait=60.0)
    now = time.monotonic()
    waits.begin(ev.CommandExited(now, 3), os.getpid(), RankProcesses())
    assert waits.events(now + 1, RUNNING) == []
    (exited,) = waits.events(now + 1, Stopping(Attempt(1), "term"))
    assert isinstance(exited, ev.CommandExited)
    assert exited.code == 3


def test_an_exit_whose_cause_is_not_known_is_forgotten_when_another_attempt_begins(folder: str) -> None:
    waits = cause(folder, wait=3600.0)
    waits.begin(ev.CommandExited(time.monotonic(), None, 6), 7, RankProcesses())
    assert waits.pending
    waits.spawning(time.monotonic())
    assert not waits.pending
    assert waits.events(time.monotonic() + 7200.0, RUNNING) == []
