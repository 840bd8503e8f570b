"""Processes at one instant, from /proc.

Only files for which the kernel does not need the process's memory are read here: `cmdline`, `environ` and `maps` wait
for a lock that a process stuck in the kernel may hold (waits.py reads those).
"""

import os
import time
from collections.abc import Iterable, Sequence
from typing import Final

from ftrun.core.named_tuple import NamedTuple
from waitproof import procfs, stacks
from waitproof.procfs import TICKS, Stat
from waitproof.stacks import Stack, Stacks

THREADS: Final = 4096  # threads of one process that are read
SAMPLED: Final = 8  # processes that are sampled repeatedly
PAUSE: Final = 0.1  # s between samples
Process = tuple[int, int]  # pid and start time


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


def observe(pids: Iterable[int]) -> Observation:
    """These processes, without those that have ended."""
    ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS)
    found = dict[Process, ProcessState]()
    for pid in pids:
        stat = procfs.stat(pid)
        state = _process_state(stat) if stat is not None and not stat.ended else None
        if state is not None:
            found[pid, state.stat.start] = state
    return Observation(time.monotonic(), ticks, found)


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


def find_moving(spy: str | None, before: Stacks, pids: Sequence[int], until: float) -> set[int]:
    """Sample `pids` until `until`: those whose main thread is seen in another line than in `before`.

    Two observations alone may find a loop that spends nearly all its time in one call, like training that waits for its
    device in each step, twice in the same line.
    """
    left = [pid for pid in pids if pid in before.found][:SAMPLED]
    moved: set[int] = set()
    while left and (seconds := until - time.monotonic()) > 0:
        found = stacks.collect(spy, left, seconds).found
        moved |= {pid for pid, stack in found.items() if differ(stack, before.found[pid])}
        left = [pid for pid in left if pid in found and pid not in moved]
        time.sleep(max(0.0, min(PAUSE, until - time.monotonic())))
    return moved


def differ(one: Stack, other: Stack) -> bool | None:
    """Whether the main threads are in different lines; None if one was not read."""
    return one.main.frames != other.main.frames if one.main and other.main else None
