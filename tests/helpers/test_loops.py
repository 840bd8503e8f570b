"""How the time for comparing states is divided among the threads that compute."""

import pytest

from ftrun.helpers.evidence import loops, recurrence
from ftrun.helpers.evidence.recurrence import NOT_FOUND, Comparison

ENDLESS = Comparison(None)
FREE = Comparison("calls the system")
CONFINED = Comparison(NOT_FOUND, stops=recurrence.ENOUGH)


@pytest.mark.parametrize(
    ("first", "took", "shares"),
    [
        (ENDLESS, 0.5, [2.0, 3.5]),  # the second has what the first one left
        (ENDLESS, 2.0, [2.0, 2.0]),
        (CONFINED, 2.0, [2.0, 2.0]),
        (FREE, 0.1, [2.0]),  # whatever the second does, the first may end
    ],
)
def test_two_threads_share_the_time(
    monkeypatch: pytest.MonkeyPatch, first: Comparison, took: float, shares: list[float]
) -> None:
    given = []

    def compare(pid: int, tid: int, seconds: float) -> Comparison:
        given.append(round(seconds, 3))
        return (first if pid == 1 else ENDLESS)._replace(seconds=took)

    monkeypatch.setattr(recurrence, "compare", compare)
    found = loops.compare([(1, 1), (2, 2)], 2.0)
    assert given == shares
    assert found[2, 2].confined == first.confined


def test_a_look_does_not_take_longer_for_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def compare(pid: int, tid: int, seconds: float) -> Comparison:
        given.append(seconds)
        return ENDLESS._replace(seconds=seconds)

    monkeypatch.setattr(recurrence, "compare", compare)
    loops.compare([(1, 1), (2, 2)], 6.0)
    assert sum(given) == loops.ALTOGETHER
    given.clear()
    found = loops.compare([(number, number) for number in range(1, 4)], 6.0)
    assert not given
    assert not any(result.confined for result in found.values())
