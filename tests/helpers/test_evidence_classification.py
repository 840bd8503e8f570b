"""The classification of two observations, without processes."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.core.machine.values import Finding
from ftrun.helpers.evidence.classification import Outside, classify
from ftrun.helpers.evidence.job_processes import tree
from ftrun.helpers.evidence.processes import Observation, ProcessChange, ProcessState, changes, process_subtree
from ftrun.host import procfs
from waitproof.procfs import Stat
from waitproof.stacks import Frame, Stack, Stacks, Thread

GIVEN = Finding("step", 0, 41.0, 30.0, 7, pid=1)
PROVED = Finding("deadlock", 0, 30.0, 15.0, 7, pid=1)
IDLE = Finding("idle", None, 1800.0, 1800.0, pid=1)
TRAIN, EVAL = Frame("main", "/job/train.py", 88), Frame("score", "/job/score.py", 12)
REDUCE = Frame("all_reduce", "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3252)


def seen(
    pid: int, cpu: float = 0.0, chars: int = 0, parent: int = 0, start: int = 0, state: str = "S", queued: float = 0.0
) -> ProcessState:
    stat = Stat(pid, "python", state, parent, pid, pid, 1, start)
    return ProcessState(stat, "futex_do_wait", "", cpu, queued, cpu, chars)


def stack(*frames: Frame) -> Stack:
    thread = Thread(1, "MainThread", False, False, frames)
    return Stack((thread,), thread)


def change(
    cpu: float = 0.0, io: float = 0.0, moved: bool | None = False, at: Frame = TRAIN, state: str = "S"
) -> ProcessChange:
    return ProcessChange(seen(1, state=state), stack(at), None, cpu, cpu, io, moved)


@pytest.mark.parametrize(
    ("finding", "suspect", "accelerated", "cleared"),
    [
        pytest.param(GIVEN, change(0.9, 1e6, moved=True), False, None, id="the timeout was set by the user"),
        pytest.param(GIVEN._replace(rule="section"), change(0.9, moved=True), False, None, id="overdue section"),
        pytest.param(IDLE, change(), True, None, id="idle"),
        pytest.param(IDLE, change(moved=True), True, "its Python stack changes", id="idle, moves"),
        pytest.param(IDLE, change(0.9), False, "a long one", id="idle, computes without a device"),
        pytest.param(IDLE, change(0.9), True, None, id="idle, waits for the device"),
        pytest.param(IDLE, change()._replace(wanted=0.9), False, "in other threads", id="idle, threads compute"),
        pytest.param(IDLE, change()._replace(wanted=0.9), True, None, id="idle, threads spin beside a device"),
        pytest.param(IDLE, change()._replace(wanted=0.4), False, None, id="idle, watchdogs"),
        pytest.param(IDLE, change(0.9, moved=None), True, "90%", id="idle, the stack cannot be read"),
        pytest.param(IDLE, change(io=1e6), True, "MB/s", id="idle, reads again"),
        pytest.param(IDLE, change(0.9, at=REDUCE), False, None, id="idle, a collective spins"),
        pytest.param(IDLE, change(0.9, 1e6, at=REDUCE), False, "1.0 MB/s", id="spins, and something is written"),
        pytest.param(IDLE, change(0.09, 262_143), False, None, id="keep-alives"),
        pytest.param(PROVED, change(0.9, 1e6, moved=True), False, None, id="proved once more"),
    ],
)
def test_a_suspect_that_works_is_cleared(
    finding: Finding, suspect: ProcessChange, accelerated: bool, cleared: str | None
) -> None:
    verdict = classify(finding, [suspect], accelerated)
    if cleared is None:
        assert verdict.cleared is None
        assert verdict.reason
    else:
        assert cleared.removeprefix("it ") in str(verdict.cleared)
        assert not verdict.reason


@pytest.mark.parametrize(
    ("cpu", "queued", "expected"), [(0.18, 1.82, 1.0), (0.002, 1.0, 0.002), (0.5, 0.0, 0.25), (0.01, 2.0, 0.5)]
)
def test_work_on_an_overloaded_machine_is_recognised(cpu: float, queued: float, expected: float) -> None:
    """CPU use within two seconds, in part of which other processes ran."""
    first, second = seen(1), seen(1, cpu, queued=queued)
    unread = Stacks({}, {})
    (found,) = changes(Observation(0.0, 0, {(1, 0): first}), unread, Observation(2.0, 200, {(1, 0): second}), unread)
    assert found.cpu == pytest.approx(expected)


def test_what_is_not_found_again_is_cleared_and_so_is_a_wait_on_purpose_of_an_idle_job() -> None:
    for finding, cleared in ((PROVED, "it moves"), (IDLE, "it moves"), (GIVEN, None)):
        assert classify(finding, [change()], False, Outside("it moves")).cleared == cleared


def observation(at: float, ticks: int, *found: ProcessState) -> Observation:
    return Observation(at, ticks, {(s.stat.pid, s.stat.start): s for s in found})


def stacks(**frames: Frame) -> Stacks:
    return Stacks({int(pid[1:]): stack(frame) for pid, frame in frames.items()}, {})


def test_ended_processes_are_inactive_and_all_activity_of_new_ones_counts() -> None:
    first = observation(10.0, 1000, seen(1, 5.0, 100), seen(2, 7.0, 10**9))
    second = observation(12.0, 1200, seen(1, 5.5, 300), seen(3, 1.0, 50, start=1100), seen(4, 900.0, 10**9, start=5))
    found = {c.pid: c for c in changes(first, stacks(), second, stacks())}
    assert (found[1].cpu, found[1].io) == (0.25, 100.0)
    assert (found[2].gone, found[2].cpu, found[2].io) == (True, 0.0, None)
    assert (found[3].cpu, found[3].io) == (0.5, 25.0)
    assert (found[4].cpu, found[4].io) == (0.0, 0.0)  # it existed before and was not observed


def test_a_reused_pid_is_another_process() -> None:
    first, second = observation(10.0, 1000, seen(1, 5.0)), observation(12.0, 1200, seen(1, 0.5, start=1100))
    found = changes(first, stacks(p1=TRAIN), second, stacks(p1=TRAIN))
    assert [(c.gone, c.cpu, c.moved) for c in found] == [(False, 0.25, None), (True, 0.0, None)]


@pytest.mark.parametrize(
    ("before", "after", "moving", "cpu", "moved"),
    [
        ({"p1": TRAIN}, {"p1": TRAIN}, set(), 1.0, False),
        ({"p1": TRAIN}, {"p1": TRAIN._replace(line=89)}, set(), 0.0, True),
        ({"p1": TRAIN}, {"p1": EVAL}, set(), 0.0, True),
        ({}, {"p1": TRAIN}, set(), 1.0, None),
        ({"p1": TRAIN}, {}, set(), 1.0, None),
        ({"p1": TRAIN}, {"p1": TRAIN}, {1}, 1.0, True),
        ({"p1": TRAIN}, {"p1": TRAIN}, {1}, 0.01, False),  # a launcher that polls
    ],
)
def test_a_stack_moves_if_it_is_seen_in_another_line(
    before: dict[str, Frame], after: dict[str, Frame], moving: set[int], cpu: float, moved: bool | None
) -> None:
    first, second = observation(10.0, 1000, seen(1)), observation(12.0, 1200, seen(1, 2 * cpu))
    [found] = changes(first, stacks(**before), second, stacks(**after), moving)
    assert found.moved is moved


def test_process_subtree_has_the_suspect_first() -> None:
    found = [change()._replace(seen=seen(pid, parent=parent)) for pid, parent in ((3, 2), (2, 9), (4, 3), (5, 1))]
    assert [c.pid for c in process_subtree(2, found)] == [2, 3, 4]
    assert process_subtree(7, found) == []


def processes(*pairs: tuple[int, int]) -> list[procfs.Stat]:
    return [procfs.Stat(pid, "x", "S", parent, pid, pid, 1, 0) for pid, parent in pairs]


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), max_size=40), st.sets(st.integers(1, 30)))
def test_the_tree_of_any_table(pairs: Sequence[tuple[int, int]], spared: set[int]) -> None:
    """A process table that was read while it changed may contain cycles."""
    found = tree(processes(*pairs), 1, frozenset(spared), lambda process: process.pid % 2 == 0)
    pids = [process.pid for process in found]
    assert len(pids) == len(set(pids))
    assert not spared & set(pids) - {1}
