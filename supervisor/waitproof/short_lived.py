"""Processes that have started or ended between two observations, like those of a loop that monitors a job.  Pure.

What such a process may do to a wait, it does with what it has open or mapped, or as a child, an heir or a relative of
others: so it counts as a process that may run, with all that either observation has seen of it.  One that was too short
for both has had at most what the process has which started it.  That one lives, and counts as at work.  Who has started
a process whose parent has ended, or is outside the job, is not known; then the observations show nothing.
"""

from collections.abc import Container, Mapping
from typing import Final, NamedTuple

from waitproof.world import GONE, WaitingProcess, World

STARTED: Final = "has just started"
ENDED: Final = "has ended a moment ago"
STARTS: Final = "has children that come and go"


class Turnover(NamedTuple):
    """`world`: the second observation, with the processes that have ended since the first one, and with what only the
    first one shows.  `started`, `ended`: those processes.  `starters`: the living ones that have started them.
    `unknown`: why the observations show nothing, or empty."""

    world: World
    started: frozenset[int] = frozenset()
    ended: frozenset[int] = frozenset()
    starters: frozenset[int] = frozenset()
    unknown: str = ""


def turnover(before: World, after: World, needed: Container[int]) -> Turnover:
    """`needed`: the processes without which the observations show nothing: the command and the ranks.

    A process that ended while the first observation was made can have done nothing since.  One that has ended while the
    second one is made may have given away what it had, which the first one shows, or else nothing does."""
    then = {
        pid: process._replace(problem="" if _gone(process) else process.problem)
        for pid, process in before.processes.items()
    }
    now = {
        pid: process for pid, process in after.processes.items() if not (_gone(process) and _same(then, pid, process))
    }
    lasting = {pid for pid, process in now.items() if _same(then, pid, process)}
    world = after._replace(
        processes=now | {pid: process for pid, process in then.items() if pid not in now},
        memory={pid: _of(before.memory, pid) | _of(after.memory, pid) for pid in before.memory | after.memory},
        bereaved={parent for ended, parent in after.zombies.items() if ended not in before.zombies},
    )
    world = world._replace(holders=_holders(before, world))
    starters = set[int]()
    for processes, seen in ((then, before), (now, after)):
        for pid in processes.keys() - lasting:
            starter = next((above for above in seen.line(pid) if above in lasting), None)
            if starter is None or pid in needed:
                return Turnover(world, unknown=f"process {pid} has {'started' if processes is now else 'ended'}")
            starters.add(starter)
    return Turnover(world, frozenset(now.keys() - lasting), frozenset(then.keys() - now.keys()), frozenset(starters))


def _gone(process: WaitingProcess) -> bool:
    return process.problem == GONE


def _same(processes: Mapping[int, WaitingProcess], pid: int, process: WaitingProcess) -> bool:
    return pid in processes and processes[pid].start == process.start


def _of(memory: Mapping[int, frozenset[int]], pid: int) -> frozenset[int]:
    return memory.get(pid, frozenset())


def _holders(before: World, after: World) -> dict[str, dict[int, str]]:
    """The holders in either observation: a descriptor that is passed on while one is made may be missed in it."""
    found = {key: dict(holders) for key, holders in after.holders.items()}
    for key, holders in before.holders.items():
        into = found.setdefault(key, {})
        for pid, mode in holders.items():
            into[pid] = "".join(sorted({*into.get(pid, ""), *mode}))
    return found
