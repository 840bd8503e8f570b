"""Which ranks are slow against the others, and when that is recorded."""

from ftrun.core.rules.stragglers import AGAIN, PERSISTS, Persistence, slow_ranks


def test_a_straggler_is_slow_against_the_median_of_the_others() -> None:
    assert slow_ranks({0: 1.0, 1: 9.0}) == {}, "two cannot be compared"
    assert slow_ranks({0: 1.0, 1: 1.4, 2: 1.0}) == {}
    assert slow_ranks({0: 1.0, 1: 1.6, 2: 1.1}) == {1: 1.05}


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
