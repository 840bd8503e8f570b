"""The numbers of the ranks over all members of a group, where ftrun starts the ranks (`--nproc-per-node`).  Pure.

Each member offers how many ranks it will start, and rank 0 its address and a port as well.  The order that starts an
epoch carries all of that, so that every member numbers the ranks in the same way, and the port is a new one each time.
"""

from collections.abc import Sequence
from typing import Final

from ftrun.core.group.messages import Ranks, World
from ftrun.core.machine.values import RankPlace

MOST_RUNS: Final = 2048  # pairs in an order, which has to fit into a message


def agree(offers: Sequence[tuple[str, Ranks | None]]) -> World | str | None:
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
    if len(counts) > MOST_RUNS:
        return f"the number of ranks (--nproc-per-node) changes {len(counts) - 1} times from one member to the next"
    return World(first.address, first.port, tuple(counts))


def place(world: World | None, member: int | None) -> RankPlace | None:
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
