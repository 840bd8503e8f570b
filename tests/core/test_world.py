"""The ranks of a group are numbered over all members, whatever their numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.core.group.messages import EpochRanks, Ranks
from ftrun.core.group.places import MOST_PAIRS, agree, rank_place

numbers = st.lists(st.integers(1, 4), min_size=1, max_size=40)


def offers(*numbers: int | None) -> list[tuple[str, Ranks | None]]:
    return [
        (
            f"member {n} (node-{n})",
            None if number is None else Ranks(number, "10.0.0.1" if n == 0 else "", 4000 if n == 0 else 0),
        )
        for n, number in enumerate(numbers)
    ]


@given(numbers)
def test_each_rank_has_one_number_in_the_order_of_the_members(numbers: list[int]) -> None:
    world = agree(offers(*numbers))
    assert isinstance(world, EpochRanks)
    places = [rank_place(world, member) for member in range(len(numbers))]
    assert rank_place(world, len(numbers)) is rank_place(world, -1) is rank_place(None, 0) is None
    found = [rank for one in places if one is not None for rank in range(one.first, one.first + one.number)]
    assert found == list(range(sum(numbers)))
    for member, one in enumerate(places):
        assert one is not None
        assert (one.number, one.size, one.member, one.members) == (numbers[member], sum(numbers), member, len(numbers))
        assert (one.address, one.port) == ("10.0.0.1", 4000)


def test_equal_members_are_numbered_as_torchrun_does() -> None:
    world = agree(offers(8, 8, 8))
    assert world == EpochRanks("10.0.0.1", 4000, ((3, 8),))
    assert [one and one.first for one in (rank_place(world, 0), rank_place(world, 2))] == [0, 16]


def test_a_group_without_ranks_has_no_world() -> None:
    assert agree(offers(None, None)) is None


@pytest.mark.parametrize(("numbers", "named"), [((2, None, 2), 1), ((None, 2, None), 0)])
def test_a_member_without_ranks_beside_others_with_ranks_is_named(numbers: tuple[int | None, ...], named: int) -> None:
    assert str(agree(offers(*numbers))).startswith(f"member {named} (node-{named}) starts no ranks (--nproc-per-node)")


def test_what_does_not_fit_into_a_message_is_refused() -> None:
    assert isinstance(agree(offers(*(1 + n % 2 for n in range(MOST_PAIRS)))), EpochRanks)
    assert isinstance(agree(offers(*(1 + n % 2 for n in range(MOST_PAIRS + 1)))), str)
