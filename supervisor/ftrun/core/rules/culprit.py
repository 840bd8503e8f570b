"""Which ranks cause a hang, by the evidence over all ranks.  Pure.

Only those are replaced.  In doubt nobody is named, and all ranks are restarted: a wrong name costs a recovery that
fails, and with it the time until the hang is found once more.
"""

from collections.abc import Collection, Mapping, Sequence

from ftrun.core.named_tuple import NamedTuple


class RankSeen(NamedTuple):
    """What one rank was seen to do in both observations.  `stopped`: by a signal or a debugger.  `in_collective`: its
    main thread waits in a collective, which other ranks can end.  `moves`: its main thread runs through its program.
    `awaits`: the ranks for which its main thread waits, as far as the waits of all threads show it."""

    rank: int
    stopped: bool = False
    in_collective: bool = False
    moves: bool = False
    awaits: frozenset[int] = frozenset()


def culprits(seen: Sequence[RankSeen]) -> tuple[int, ...]:
    """The ranks that cause the hang; empty: unknown.

    A stopped rank can never come to what the others wait for.  Otherwise it is the one rank that is elsewhere while all
    others wait in a collective, or the one at the end of all chains of waits.
    """
    if stopped := tuple(one.rank for one in seen if one.stopped):
        return stopped
    elsewhere = [one for one in seen if not one.in_collective]
    if len(elsewhere) == 1 and len(seen) > 1 and not elsewhere[0].moves:
        return (elsewhere[0].rank,)
    awaited = {one.rank: one.awaits - {one.rank} for one in seen}
    ends = [rank for rank, others in awaited.items() if not others]
    if len(ends) != 1 or len(seen) < 2 or any(one.moves for one in seen if one.rank in ends):
        return ()
    return tuple(ends) if all(ends[0] in _reached(rank, awaited) for rank in awaited if rank not in ends) else ()


def _reached(rank: int, awaited: Mapping[int, Collection[int]]) -> set[int]:
    """The ranks for which this one waits, also through others."""
    reached, left = set[int](), [rank]
    while left:
        fresh = set(awaited.get(left.pop(), ())) - reached
        reached |= fresh
        left += fresh
    return reached
