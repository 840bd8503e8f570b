"""Snapshots that ranks lend to others of the same shard at the beginning of a round, pure.

The rank that lends goes on with its steps, and keeps new snapshots, while a slower one still reads.  So the snapshot
that was lent is not overwritten before every rank that borrows one has said that it has loaded it."""

from collections.abc import Mapping

from ftrun.core.ranks.shared import Rung
from ftrun.core.ranks.table import Act, BeginRound, ReleaseSnapshot, Restore, Rounds


def begin(
    rounds: Rounds, plan: Mapping[int, Restore], number: int, reason: Rung, master: tuple[str, int] | None = None
) -> tuple[Rounds, tuple[Act, ...]]:
    """All ranks begin this round, each with the snapshot that `plan` has for its local rank."""
    borrowers = frozenset(local_rank for local_rank, found in plan.items() if found.source != local_rank)
    lenders = frozenset(plan[local_rank].source for local_rank in borrowers)
    acts = [
        BeginRound(local_rank, number, plan.get(local_rank), reason, master, local_rank in lenders)
        for local_rank, *_ in rounds.members
    ]
    members = tuple(member._replace(state="working") for member in rounds.members)
    return rounds._replace(members=members, number=number, borrowers=borrowers, lenders=lenders), tuple(acts)


def restored(rounds: Rounds, local_rank: int) -> tuple[Rounds, tuple[Act, ...]]:
    """This rank has loaded the snapshot of the rank that lends it."""
    if local_rank not in rounds.borrowers:
        return rounds, ()
    rounds = rounds._replace(borrowers=rounds.borrowers - {local_rank})
    if rounds.borrowers:
        return rounds, ()
    acts = tuple(ReleaseSnapshot(lender, rounds.number) for lender in sorted(rounds.lenders))
    return rounds._replace(lenders=frozenset()), acts
