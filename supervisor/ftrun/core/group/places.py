"""Which members work in an epoch, and in which order: the number of a member's place is the number of its node for the
command.  Pure.

The number of a member never changes, since it names a container.  Its place may: where a group goes on with fewer
members, or a spare takes a place, the others keep their order.

Where ftrun starts the ranks (`--nproc-per-node`), each member offers how many it will start, and rank 0 its address and
a port as well.  The order that starts an epoch carries all of that (`agree`), so that every member numbers the ranks in
the same way, and the port is a new one each time.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from ftrun.core.group.messages import EpochRanks, Places, Ranks
from ftrun.core.machine.values import RankPlace

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

    The members that are still there keep their order, and their places where that is possible.  The others take the
    places that became free, the lowest first; places that stay free are closed up, and further members come last.
    """
    known, found = set(before), list[int]()
    others = [member for member in sorted(available) if member not in known]
    for member in before:
        if member in available:
            found.append(member)
        elif others:
            found.append(others.pop(0))
    return tuple([*found, *others][:most])


# --- the numbers of the ranks over all members ------------------------------------------------------------------------


def agree(offers: Sequence[tuple[str, Ranks | None]]) -> EpochRanks | str | None:
    """The ranks of the next epoch, from the name and the offer of each member in their order; None: no member starts
    ranks; a text: why the ranks cannot be numbered, which no restart changes."""
    first, counts = offers[0][1], list[tuple[int, int]]()
    for name, offer in offers:
        if offer is None or first is None:
            if all(one is None for _, one in offers):
                return None
            name = next(name for name, one in offers if one is None)
            return f"{name} starts no ranks (--nproc-per-node), but other members do"
        if counts and counts[-1][1] == offer.number:
            counts[-1] = counts[-1][0] + 1, offer.number
        else:
            counts.append((1, offer.number))
    if first is None:
        return None
    if len(counts) > MOST_PAIRS:
        return f"the number of ranks (--nproc-per-node) changes {len(counts) - 1} times from one member to the next"
    return EpochRanks(first.address, first.port, tuple(counts))


def rank_place(world: EpochRanks | None, member: int | None) -> RankPlace | None:
    """The ranks of the member with this place (places.py); None: it has none."""
    if world is None or member is None or member < 0:
        return None
    seen = before = 0
    for members, count in world.counts:
        if seen <= member < seen + members:
            break
        seen, before = seen + members, before + members * count
    else:
        return None
    size = sum(members * count for members, count in world.counts)
    total = sum(members for members, _ in world.counts)
    first = before + (member - seen) * count
    return RankPlace(first, count, size, member, total, world.address, world.port)
