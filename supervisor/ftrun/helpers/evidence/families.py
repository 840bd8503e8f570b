"""Which processes may end, stop or continue which others, although these do not wait for them.  Pure.

A process that serves a rank may have a watchdog: its parent, or another process of the same rank, kills it after a
timeout, and then a wait for its end, its pipe or its lock is over.  A rank has none within the job: if a launcher ends
one, the job has failed.  A process that moves and has no RANK may be a trial, though, whose parent has a timeout for it
and goes on to the next one.
"""

from collections.abc import Container, Mapping

from ftrun.helpers.evidence.world import World


def enders(world: World, ranks: Container[int]) -> dict[int, set[int]]:
    """By the pid of each process that is no rank: its rank, and the next process of the same rank.  That leads from
    each of them to all others, so that it is enough to follow it.

    Processes above the ranks, and those beside them, belong together.
    """
    families = dict[int, list[int]]()
    for pid in world.processes:
        if pid not in ranks:
            families.setdefault(_rank_above(world, pid, ranks), []).append(pid)
    found = dict[int, set[int]]()
    for rank, members in families.items():
        for pid, following in zip(members, [*members[1:], members[0]], strict=True):
            found[pid] = {rank, following} - {pid, 0}
    return found


def trials(world: World, ranks: Mapping[int, int]) -> dict[int, int]:
    """By the pid of each process that moves and has no RANK (its number is negative then), its parent in the job."""
    parents = {
        pid: world.processes[pid].parent for pid, number in ranks.items() if number < 0 and pid in world.processes
    }
    return {pid: parent for pid, parent in parents.items() if parent in world.processes}


def _rank_above(world: World, pid: int, ranks: Container[int]) -> int:
    """The rank that has started this process, or has started the one that did; 0 if there is none."""
    seen = set[int]()  # a table that changed while it was read may contain a cycle
    while pid in world.processes and pid not in ranks and pid not in seen:
        seen.add(pid)
        pid = world.processes[pid].parent
    return pid if pid in world.processes and pid in ranks else 0
