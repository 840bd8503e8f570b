"""Which processes belong to the job: the command, its descendants and its orphans.

Of a process that is stuck in the kernel no `environ` is read: that waits for a lock which it may hold.
"""

import functools
import os
from collections.abc import Callable, Container, Iterable

from ftrun.host import procfs
from ftrun.host.procfs import Stat


def members(root: int, excluded: frozenset[int] | None) -> list[int]:
    """The pids of `root`, its descendants and its orphans.  `excluded`: the other children of ftrun; None: they are not
    known, nor are orphans whose environment was replaced."""
    everyone = procfs.all_processes()
    orphans = carries(root) if excluded is None else belongs(everyone, root)
    found = tree(everyone, root, (excluded or frozenset()) | {os.getpid()}, orphans)
    return [process.pid for process in found]


def tree(everyone: Iterable[Stat], root: int, excluded: frozenset[int], is_ours: Callable[[Stat], bool]) -> list[Stat]:
    """`root`, then its descendants, then its orphans and their descendants: children of the parent of `root` for which
    `is_ours` holds, like `carries` or `belongs`."""
    by_pid = {process.pid: process for process in everyone}
    below: dict[int, list[Stat]] = {}
    for process in by_pid.values():
        below.setdefault(process.parent, []).append(process)
    adopter = by_pid[root].parent if root in by_pid else os.getppid()
    waiting = [by_pid[root]] if root in by_pid else []
    waiting += [s for s in below.get(adopter, ()) if s.pid != root and s.pid not in excluded and is_ours(s)]
    found: dict[int, Stat] = {}
    for process in waiting:
        if process.pid not in found:  # a table that changed while it was read may contain a cycle
            found[process.pid] = process
            waiting += [s for s in below.get(process.pid, ()) if s.pid not in excluded]
    return [process for process in found.values() if not process.ended]


def is_standby(pid: int, state: str) -> bool:
    """Whether it waits to be a start of the command (`host/standby_process.py`), or was one and could not hide that."""
    return state != "D" and any(e.startswith(b"FTRUN_PARKED=") for e in procfs.environment(pid))


def with_newly_started(excluded: Iterable[int], root: int, ranks: Container[int]) -> frozenset[int]:
    """`excluded`, and what ftrun has started since it made that list for this process: standbys, and helpers, which do
    not have the beat folder of the job.  They are its children, like the `ranks`, and `root` is one of these."""
    everyone = {process.pid: process for process in procfs.all_processes()}
    parent, carried = everyone[root].parent if root in everyone else os.getppid(), carries(root)
    made = everyone[os.getpid()].start
    beside = (s for s in everyone.values() if s.parent == parent and s.pid != root and s.pid not in ranks)
    newer = (s for s in beside if s.start >= made and s.state != "D")
    return frozenset(excluded) | {s.pid for s in newer if is_standby(s.pid, s.state) or not carried(s)}


def carries(root: int) -> Callable[[Stat], bool]:
    """A check whether a process has the beat folder of `root` in its environment (host/tree.py)."""
    try:
        mark = _mark(root)
    except LookupError:
        return lambda process: False
    # A process in state D may hold the lock that reading its environment needs.
    return lambda process: process.state != "D" and mark in procfs.environment(process.pid)


def belongs(everyone: Iterable[Stat], root: int) -> Callable[[Stat], bool]:
    """A check whether a child of ftrun was started by the command (ADR 4), also where its environment was replaced, as
    daemons do.  It may still end, continue or unlock another process."""
    by_pid, adopter, carried = {s.pid: s for s in everyone}, os.getppid(), carries(root)
    first = _start(root)
    outside = {s.session for s in by_pid.values() if s.parent == 0 and s.pid != 1}

    def check(process: Stat) -> bool:
        if carried(process):
            return True
        if process.parent != adopter or process.start < first:
            return False  # what was there before the command
        if adopter != 1 or process.state == "D":
            return True
        if process.session == by_pid[1].session and (process.session or process.group):
            return True
        complete = any(entry.startswith(b"PATH=") for entry in procfs.environment(process.pid))
        return not (process.session in outside or process.group == 0 or complete)

    return check


@functools.lru_cache(maxsize=8)
def _mark(root: int) -> bytes:
    """The entry of its environment that marks the job.  It is remembered, since `root` may end while its siblings, the
    other ranks, go on.  LookupError if it has none."""
    for entry in procfs.environment(root):
        if entry.startswith(b"FTRUN_BEAT_DIR="):
            return entry
    raise LookupError(root)


@functools.lru_cache(maxsize=8)
def _start(root: int) -> int:
    """The start time of `root` in clock ticks, remembered since `root` may end; 0 if it has ended before this was asked
    for."""
    stat = procfs.stat(root)
    return 0 if stat is None else stat.start
