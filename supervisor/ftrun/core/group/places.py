"""Which members work in an epoch, and in which order: the number of a member's place is the number of its node for the
command.  Pure.

The number of a member never changes, since it names a container.  Its place may: where a group goes on with fewer
members, or a spare takes a place, the others keep their order.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from ftrun.core.group.messages import Places

MOST_PAIRS: Final = 2048  # in an order, which has to fit into a message


def pairs(members: Iterable[int]) -> Places:
    found = list[tuple[int, int]]()
    for member in members:
        if found and sum(found[-1]) == member:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((member, 1))
    return tuple(found)


def members(places: Places) -> tuple[int, ...]:
    """The members in the order of their places."""
    return tuple(member for first, count in places for member in range(first, first + count))


def count(places: Places) -> int:
    return sum(number for _, number in places)


def place_of(places: Places, member: int) -> int | None:
    """The place of this member, from 0; None: it has none."""
    before = 0
    for first, number in places:
        if first <= member < first + number:
            return before + member - first
        before += number
    return None


def next_members(before: Sequence[int], available: Collection[int], most: int) -> tuple[int, ...]:
    """The members of the next epoch in the order of their places.  `before`: those of the last one.

    Whoever is still there keeps its order, and its place where that is possible.  The others take the places of those
    that are not, the lowest first; what they leave is closed up, and further ones come last.
    """
    known, found = set(before), list[int]()
    others = [member for member in sorted(available) if member not in known]
    for member in before:
        if member in available:
            found.append(member)
        elif others:
            found.append(others.pop(0))
    return tuple([*found, *others][:most])
