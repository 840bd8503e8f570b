"""The job's processes at one instant, from /proc.

Only files for which the kernel does not need the process's memory are read here: `cmdline`, `environ` and `maps` wait
for a lock that a process stuck in the kernel may hold (blocking_calls.py and waits.py read those).
"""

import functools
import os
import time
from collections.abc import Callable, Container, Iterable
from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.host import procfs
from ftrun.host.procfs import Stat

THREADS: Final = 4096  # threads of one process that are read
Process = tuple[int, int]  # pid and start time
TICKS: Final = os.sysconf("SC_CLK_TCK")


class Io(NamedTuple):
    """Counters of the living threads only: a process inherits the counters of its dead children."""

    chars: int  # read and written
    calls: int


class ProcessState(NamedTuple):
    """One process.  CPU times are seconds so far; `main_queued`: seconds that the main thread was runnable while others
    ran.  None: access was denied."""

    stat: Stat
    uid: int | None
    wchan: str
    kernel: str  # its kernel stack; empty where access was denied
    main_cpu: float
    main_queued: float
    cpu: float  # of all threads, including those that have ended
    switches: int | None  # voluntary context switches of the main thread
    io: Io | None


class Observation(NamedTuple):
    """All processes at one instant: `at` in CLOCK_MONOTONIC seconds, `ticks` on the clock of the start times."""

    at: float
    ticks: int
    processes: dict[Process, ProcessState]


def observe(root: int, excluded: frozenset[int] | None) -> Observation:
    """`root`, its descendants and its orphans; a process that ends in the meantime is left out.  `excluded`: the other
    children of ftrun; None: they are not known, nor are orphans whose environment was replaced."""
    members = _members(root, excluded)
    ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS)
    return Observation(
        time.monotonic(), ticks, {(s.pid, s.start): seen for s in members if (seen := _process_state(s)) is not None}
    )


def members(root: int, excluded: frozenset[int]) -> list[int]:
    """The pids of the same processes."""
    return [process.pid for process in _members(root, excluded)]


def _members(root: int, excluded: frozenset[int] | None) -> list[Stat]:
    everyone = procfs.all_processes()
    orphans = carries(root) if excluded is None else belongs(everyone, root)
    return tree(everyone, root, (excluded or frozenset()) | {os.getpid()}, orphans)


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


def below(pid: int, processes: Iterable[Stat]) -> set[int]:
    """`pid` and its descendants."""
    parents = {process.pid: process.parent for process in processes}
    found = {pid} & parents.keys()
    while fresh := {child for child, parent in parents.items() if parent in found} - found:
        found |= fresh
    return found


def is_standby(process: Stat) -> bool:
    """Whether it waits to be a start of the command (`host/standby_process.py`), or was one and could not hide that."""
    return process.state != "D" and any(e.startswith(b"FTRUN_PARKED=") for e in procfs.environment(process.pid))


def with_newly_started(excluded: Iterable[int], root: int, ranks: Container[int]) -> frozenset[int]:
    """`excluded`, and what ftrun has started since it made that list for this process: standbys, and helpers, which do
    not have the beat folder of the job.  They are its children, like the `ranks`, and `root` is one of these."""
    everyone = {process.pid: process for process in procfs.all_processes()}
    parent, carried = everyone[root].parent if root in everyone else os.getppid(), carries(root)
    made = everyone[os.getpid()].start
    beside = (s for s in everyone.values() if s.parent == parent and s.pid != root and s.pid not in ranks)
    newer = (s for s in beside if s.start >= made and s.state != "D")
    return frozenset(excluded) | {s.pid for s in newer if is_standby(s) or not carried(s)}


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
    """Remembered, since `root` may end while its siblings, the other ranks, go on.  LookupError if it has none."""
    try:
        return next(entry for entry in procfs.environment(root) if entry.startswith(b"FTRUN_BEAT_DIR="))
    except StopIteration:
        raise LookupError(root) from None


@functools.lru_cache(maxsize=8)
def _start(root: int) -> int:
    """Its start time in clock ticks, remembered since `root` may end; 0 if it has ended before this was asked for."""
    stat = procfs.stat(root)
    return 0 if stat is None else stat.start


def environment(pid: int) -> dict[str, str]:
    """Its initial environment; empty if access is denied."""
    entries = (os.fsdecode(entry).partition("=") for entry in procfs.environment(pid))
    return {name: value for name, _, value in entries}


def own_number(pid: int) -> int:
    """The number that a process has in its own PID namespace."""
    for line in (procfs.read(f"/proc/{pid}/status") or b"").splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return pid


def _process_state(stat: Stat) -> ProcessState | None:
    pid = stat.pid
    status = dict(
        line.split(b":", 1) for line in (procfs.read(f"/proc/{pid}/status") or b"").splitlines() if b":" in line
    )
    if not status:
        return None
    return ProcessState(
        stat,
        int(status[b"Uid"].split()[0]) if b"Uid" in status else None,
        "" if (wchan := _text(f"/proc/{pid}/wchan", 128)) == "0" else wchan,
        _text(f"/proc/{pid}/stack", 4096),
        cpu_seconds(f"/proc/{pid}/task/{pid}/stat"),
        _queued(f"/proc/{pid}/task/{pid}/schedstat"),
        cpu_seconds(f"/proc/{pid}/stat"),
        int(status[b"voluntary_ctxt_switches"]) if b"voluntary_ctxt_switches" in status else None,
        _io(pid),
    )


def _text(path: str, limit: int) -> str:
    return (procfs.read(path, limit) or b"").decode("utf-8", "replace").strip("\0 \n")


def cpu_seconds(path: str) -> float:
    """User and system time so far, from a `stat` file (proc_pid_stat(5))."""
    fields = (procfs.read(path, 4096) or b"").rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS if len(fields) > 12 else 0.0


def _queued(path: str) -> float:
    """Seconds on a run queue (Documentation/scheduler/sched-stats.rst of Linux)."""
    fields = (procfs.read(path, 128) or b"").split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0


def _io(pid: int) -> Io | None:
    try:
        threads = os.listdir(f"/proc/{pid}/task")[:THREADS]
    except OSError:
        return None
    counts = [0, 0, 0, 0]  # rchar, wchar, syscr, syscw
    permitted = False
    for thread in threads:
        lines = (procfs.read(f"/proc/{pid}/task/{thread}/io", 4096) or b"").splitlines()[:4]
        permitted |= bool(lines)
        for number, line in enumerate(lines):
            counts[number] += int(line.rpartition(b":")[2])
    return Io(counts[0] + counts[1], counts[2] + counts[3]) if permitted else None
