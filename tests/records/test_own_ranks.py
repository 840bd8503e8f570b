"""The rows of the ranks that ftrun started, and which ranks are stragglers."""

import pytest

from ftrun.core.machine.values import LocalRank
from ftrun.core.rules.stragglers import Pace
from ftrun.records.present.own_ranks import with_devices, with_paces, with_processes, with_stragglers
from ftrun.records.present.snapshot import DeviceNow, RankNow


def rank(number: int, step_time: float | None = 1.0, moved: float | None = 0.5, state: str = "moving") -> RankNow:
    return RankNow(number, 100 + number, state, step=10, moved=moved, step_time=step_time)


def test_each_process_has_a_row_also_without_a_heartbeat() -> None:
    processes = [
        LocalRank(4, 0, 104),
        LocalRank(5, 1, 105),
        LocalRank(6, 2, 106, 9.0, 0),
        LocalRank(7, 3, 107, 9.0, None, 9),
    ]
    rows = with_processes([rank(5)], processes, up=3.0)
    assert [(row.rank, row.local_rank, row.pid, row.state, row.exit) for row in rows] == [
        (4, 0, 104, "starting", None),
        (5, 1, 105, "moving", None),
        (6, 2, 106, "done", "code 0"),
        (7, 3, 107, "exited", "signal 9 (SIGKILL)"),
    ]
    assert rows[1].step == 10
    assert rows[1].called == "rank 5 (local rank 1)"
    assert rank(5).called == rank(5)._replace(local_rank=5).called == "rank 5"
    assert with_processes([rank(0)], [], 1.0) == (rank(0),)


@pytest.mark.parametrize(
    ("slow", "why"),
    [
        (rank(3, step_time=1.6), "1.6s per step, the others 1s"),
        (rank(3, moved=9.0), "no step for 9s, the others step every 1s"),
        (rank(3, moved=9.0, state="section"), None),
    ],
)
def test_a_straggler_is_slow_against_the_median_of_the_others(slow: RankNow, why: str | None) -> None:
    ranks = with_stragglers([rank(0), rank(1), rank(2), slow])
    assert [row.straggler for row in ranks] == [None, None, None, why]


def test_short_steps_are_shown_in_milliseconds() -> None:
    ranks = with_stragglers([rank(0, step_time=0.02), rank(1, step_time=0.02), rank(2, step_time=0.08)])
    assert ranks[2].straggler == "80ms per step, the others 20ms"


def test_ranks_in_lockstep_are_told_apart_by_their_work() -> None:
    measured = {(n, 100 + n): Pace(1.3, 1.28 if n == 2 else 1.0) for n in range(4)}
    ranks = with_stragglers(with_paces([rank(n) for n in range(5)], measured))
    why = "it works for 1.3s in each step, the others for 1s and then wait"
    assert [row.straggler for row in ranks] == [None, None, why, None, None]
    assert [(row.step_time, row.work) for row in ranks[3:]] == [(1.3, 1.0), (1.0, None)]
    assert with_paces([rank(0)], {(0, 7): Pace(9.0)}) == (rank(0),), "of an earlier process"


def test_rank_n_of_a_node_has_device_n_where_each_has_one() -> None:
    devices = [DeviceNow("a"), DeviceNow("b")]
    ranks = [rank(4)._replace(local_rank=1), rank(5)._replace(local_rank=0)]
    assert [row.device for row in with_devices(ranks, devices)] == ["b", "a"]
    assert [row.device for row in with_devices([rank(7), rank(6)], devices)] == ["b", "a"]
    assert [row.device for row in with_devices([rank(7)], devices)] == [None]


def test_a_silence_of_all_ranks_marks_none() -> None:
    assert not any(row.straggler for row in with_stragglers([rank(n, moved=60.0) for n in range(4)]))
