"""Which ranks are slow against the others, and when that is recorded."""

import pytest

from ftrun.core.rules.stragglers import AGAIN, PERSISTS, Pace, Persistence, Slowness, stragglers


def paces(*times: float) -> dict[int, Pace]:
    return {rank: Pace(time) for rank, time in enumerate(times)}


def lockstep(*works: float | None, time: float = 1.0) -> dict[int, Pace]:
    return {rank: Pace(time, work) for rank, work in enumerate(works)}


def test_a_straggler_is_slow_against_the_median_of_the_others() -> None:
    assert stragglers(paces(1.0, 9.0)) == {}, "two cannot be compared"
    assert stragglers(paces(1.0, 1.4, 1.0)) == {}
    assert stragglers(paces(1.0, 1.6, 1.1)) == {1: Slowness("step_time", 1.6, 1.05)}
    assert stragglers(paces(1.0, 1.6, 1.1, 3.0)) == {3: Slowness("step_time", 3.0, 1.1)}


def test_in_lockstep_the_one_for_which_the_others_wait_is_the_straggler() -> None:
    assert stragglers(lockstep(0.75, 0.98, 0.76)) == {1: Slowness("work", 0.98, 0.755)}
    assert stragglers(lockstep(0.95, 0.98, 0.9)) == {}
    assert stragglers(lockstep(0.3, 0.4, 0.3)) == {}, "a tenth of the step"
    assert stragglers(lockstep(0.98, 0.7, 0.97)) == {}, "one that works less is none"
    assert stragglers(lockstep(0.7, 0.98)) == {}, "two cannot be compared"


def test_two_of_eight_on_a_slow_host_are_found_against_the_others() -> None:
    found = stragglers(lockstep(*[0.7] * 6, 0.99, 0.98))
    assert found == {6: Slowness("work", 0.99, 0.7), 7: Slowness("work", 0.98, 0.7)}


def test_ranks_whose_work_is_unknown_take_no_part() -> None:
    assert stragglers(lockstep(0.7, 0.98, None)) == {}
    assert stragglers(lockstep(0.7, 0.98, 0.72, None)) == {1: Slowness("work", 0.98, 0.71)}


def test_ranks_that_are_not_in_lockstep_are_compared_by_their_step_times_only() -> None:
    assert stragglers(lockstep(1.0, 1.0, 1.0) | {3: Pace(1.3, 1.3)}) == {}


@pytest.mark.parametrize(("silence", "slow"), [(5.5, False), (8.6, True), (None, False)])
def test_one_that_stands_still_while_the_others_step(silence: float | None, slow: bool) -> None:
    found = stragglers({0: Pace(1.0, None, 0.5), 1: Pace(1.0, None, 0.5), 2: Pace(1.0, None, 0.4), 3: Pace(1.0)})
    assert found == {}
    found = stragglers({0: Pace(1.0, None, 0.5), 1: Pace(1.0, None, 0.5), 2: Pace(1.0, None, silence)})
    assert found == ({2: Slowness("silence", 8.6, 1.0)} if slow else {})


def test_one_that_persists_is_recorded_once() -> None:
    found: Persistence[int] = Persistence()
    assert found.update({1: None}, 0.0) == []
    assert found.update({1: None, 2: None}, PERSISTS - 1) == []
    assert found.update({1: None, 2: None}, PERSISTS) == [1]
    assert found.seconds(1, PERSISTS) == PERSISTS
    assert found.update({1: None, 2: None}, 2 * PERSISTS) == [2]
    assert found.update({1: None}, 3 * PERSISTS) == []


def test_one_that_comes_back_is_recorded_again_only_after_long() -> None:
    found: Persistence[int] = Persistence()
    found.update({1: None}, 0.0)
    assert found.update({1: None}, PERSISTS) == [1]
    found.update({}, 100.0)
    found.update({1: None}, 200.0)
    assert found.update({1: None}, 200.0 + PERSISTS) == []
    assert found.update({1: None}, PERSISTS + AGAIN) == [1]
    found.update({}, 2 * AGAIN)
    found.update({}, 4 * AGAIN)
    found.update({1: None}, 4 * AGAIN + 1)
    assert found.update({1: None}, 4 * AGAIN + PERSISTS) == []
    assert found.update({1: None}, 4 * AGAIN + 1 + PERSISTS) == [1]
