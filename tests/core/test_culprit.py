"""Which ranks are named as the cause of a hang: those alone of which the evidence leaves no doubt."""

import pytest

from ftrun.core.rules.culprit import RankSeen, culprits


def seen(rank: int, doing: str = "", *awaits: int) -> RankSeen:
    return RankSeen(rank, doing == "stopped", doing == "collective", doing == "moves", frozenset(awaits))


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ((seen(0, "collective"), seen(1, "stopped"), seen(2, "collective")), (1,)),
        ((seen(0, "stopped"), seen(1, "stopped"), seen(2)), (0, 1)),
        ((seen(0, "collective"), seen(1), seen(2, "collective")), (1,)),
        ((seen(0, "collective"), seen(1), seen(2)), ()),
        ((seen(0, "collective"), seen(1, "collective")), ()),
        ((seen(0, "collective"), seen(1, "moves")), ()),
        ((seen(0),), ()),
        ((seen(0, "stopped"),), (0,)),
        ((seen(0, "", 1), seen(1, "", 2), seen(2)), (2,)),
        ((seen(0, "", 1), seen(1, "", 0), seen(2)), ()),  # two that wait for each other
        ((seen(0, "", 1), seen(1), seen(2)), ()),  # two ends
        ((seen(0, "", 1), seen(1, "moves")), ()),
        ((seen(0, "", 0, 1), seen(1, "", 1)), (1,)),  # threads of its own do not count
        ((), ()),
    ],
)
def test_only_a_certain_culprit_is_named(ranks: tuple[RankSeen, ...], expected: tuple[int, ...]) -> None:
    assert culprits(ranks) == expected
