"""Which processes may end, stop or continue which others, although these do not wait for them.  Pure.

A process that serves a rank may have a watchdog: its parent, or another process of the same rank, kills it after a
timeout, and then a wait for its end, its pipe or its lock is over.  A rank has none within the job: if a launcher ends
one, the job has failed.  A process that moves and has no RANK, or that of its parent, may be a trial, though: who has
started it has a timeout for it, and goes on to the next trial.  Where it is the only one that moves, that is a script
of Python or its like, or what has started `timeout` with a short time: what else starts a training, as `tini` or
`timeout` alone, ends with it.
"""

import itertools
import math
from collections.abc import Container, Mapping, Sequence
from typing import Final

from waitproof import recognized
from waitproof.world import World

ORPHANS: Final = 0  # the parents of these processes have ended
LIMIT: Final = "timeout"  # of coreutils, or busybox
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def enders(world: World, root: int, ranks: Container[int]) -> dict[int, set[int]]:
    """By the pid of each process that is no rank: its rank, the next process of the same rank, and an orphan, which any
    of them may have started.  That leads from each of them to all others, so that it is enough to follow it.

    Processes above the ranks, and those beside them, belong together, and so do orphans.  `root`: the command.
    A program that only reports ends no process.
    """
    families = dict[int, list[int]]()
    for pid in world.processes:
        if pid not in ranks:
            above = _above(world, pid, ranks)
            families.setdefault(above if above == root or above in ranks else ORPHANS, []).append(pid)
    able = {above: [pid for pid in members if not _is_harmless(world, pid)] for above, members in families.items()}
    found, orphans = dict[int, set[int]](), able.get(ORPHANS, [])[:1]
    for above, members in families.items():
        first = able[above][:1]
        following = dict(zip(able[above], [*able[above][1:], *first], strict=True))
        for pid in members:
            found[pid] = {*orphans, *([following[pid]] if pid in following else first)} - {pid}
            if above in ranks:
                found[pid].add(above)
    return found


def _is_harmless(world: World, pid: int) -> bool:
    return recognized.reports_alone(world.processes[pid].program)


def trials(world: World, ranks: Mapping[int, int]) -> dict[int, list[int]]:
    """By the pid of each process that moves, those that may have started it as a trial: with no RANK (its number is
    negative then, but for the only one), with their own, or by a launcher, which is none of them."""
    found = dict[int, list[int]]()
    for pid, number in ranks.items():
        if pid in world.processes:
            alone = number >= 0 and world.processes[pid].rank is None
            alike = starters(world, pid)
            beyond = world.line(pid)[1 + len(alike) :][1:]
            found[pid] = [one for one in (*alike, *beyond) if (one in alike and not alone) or _may_follow(world, one)]
    return found


def _may_follow(world: World, pid: int) -> bool:
    """Whether something may follow the only process that moves, or a launcher, when this one above ends that."""
    process = world.processes[pid]
    above = process.name == LIMIT and process.parent in world.processes  # as a shell with more lines
    return (above and (process.limit or 0.0) < recognized.GIVEN) or recognized.runs_scripts(process.program)


def limit(words: Sequence[str]) -> float | None:
    """How many seconds timeout(1) with this command line gives its command; None: its options are not known."""
    rest = iter(words[1:])
    for word in rest:
        if word in ("-k", "-s", "--kill-after", "--signal"):
            next(rest, "")
        elif not word.startswith("-"):
            number, unit = (word[:-1], word[-1]) if word[-1:] in _UNITS else (word, "s")
            try:
                return float(number) * _UNITS[unit] or math.inf  # 0: none
            except ValueError:
                return None
    return None


def pausers(world: World, ranks: Container[int]) -> dict[int, set[int]]:
    """By the pid of each process that is stopped, the ranks: one of them may have stopped it, and may continue it.
    A rank that uses an accelerator is none of these: it seems to compute while it waits for the others."""
    able = {
        pid
        for pid, process in world.processes.items()
        if pid in ranks and not any(end.is_accelerator for end in process.fds.values())
    }
    return {pid: able for pid, one in world.processes.items() if any(thread.is_stopped for thread in one.threads)}


def starters(world: World, pid: int) -> list[int]:
    """The processes of the job above this one that have the same RANK as it, or, like it, none."""

    def number(one: int) -> tuple[int, int | None] | None:
        rank = world.processes[one].rank
        return None if rank is None else (rank, world.processes[one].size)

    return [*itertools.takewhile(lambda above: number(above) == number(pid), world.line(pid))][1:]


def _above(world: World, pid: int, ranks: Container[int]) -> int:
    """The rank that has started this process, or has started the one that did; else the first of the latter."""
    seen = set[int]()  # a table that changed while it was read may contain a cycle
    while pid not in ranks and world.processes[pid].parent in world.processes and pid not in seen:
        seen.add(pid)
        pid = world.processes[pid].parent
    return pid
