"""Processes at one instant, from /proc, and two such observations compared.

`cmdline`, `environ` and `maps` are not read here: they wait for a lock that a process stuck in the kernel may hold.
"""

import os
import time
from collections.abc import Container, Iterable, Sequence
from typing import Final

from ftrun.core.named_tuple import NamedTuple
from waitproof import procfs, recognized, stacks
from waitproof.procfs import TICKS, Stat, below
from waitproof.stacks import Stack, Stacks, Thread

THREADS: Final = 4096  # threads of one process that are read
SAMPLED: Final = 8  # processes that are sampled repeatedly
PAUSE: Final = 0.1  # s between samples
BUSY_CPU: Final = 0.1  # of one core
ProcessKey = tuple[int, int]  # pid and start time


class ProcessState(NamedTuple):
    """One process.  CPU times are seconds so far; `main_queued`: seconds that the main thread was runnable while others
    ran.  None: access was denied."""

    stat: Stat
    wchan: str
    kernel: str  # its kernel stack; empty where access was denied
    main_cpu: float
    main_queued: float
    cpu: float  # of all threads, including those that have ended
    io: int | None  # bytes read and written by the living threads; a process inherits those of its dead children
    queued: float = 0.0  # seconds that its living threads were runnable while others ran


class Observation(NamedTuple):
    """All processes at one instant: `at` in CLOCK_MONOTONIC seconds, `ticks` on the clock of the start times."""

    at: float
    ticks: int
    processes: dict[ProcessKey, ProcessState]


def observe(pids: Iterable[int]) -> Observation:
    """These processes, without those that have ended."""
    ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS)
    found = dict[ProcessKey, ProcessState]()
    for pid in pids:
        stat = procfs.stat(pid)
        if stat is not None and not stat.ended:
            found[pid, stat.start] = _process_state(stat)
    return Observation(time.monotonic(), ticks, found)


def _process_state(stat: Stat) -> ProcessState:
    pid = stat.pid
    return ProcessState(
        stat,
        "" if (wchan := _text(f"/proc/{pid}/wchan", 128)) == "0" else wchan,
        _text(f"/proc/{pid}/stack", 4096),
        cpu_seconds(f"/proc/{pid}/task/{pid}/stat"),
        _queued(f"/proc/{pid}/task/{pid}/schedstat"),
        cpu_seconds(f"/proc/{pid}/stat"),
        _io(pid),
        sum(_queued(path) for path in _of_threads(pid, "schedstat")),
    )


def _text(path: str, limit: int) -> str:
    return (procfs.read(path, limit) or b"").decode("utf-8", "replace").strip("\0 \n")


def cpu_seconds(path: str) -> float:
    """User and system time so far, from the `stat` file of a process or of a thread (proc_pid_stat(5))."""
    _, fields = procfs.fields(path)
    return sum(map(int, fields[11:13])) / TICKS


def _queued(path: str) -> float:
    """Seconds on a run queue (Documentation/scheduler/sched-stats.rst of Linux)."""
    fields = (procfs.read(path, 128) or b"").split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0


def _io(pid: int) -> int | None:
    files = [procfs.read(path, 4096) for path in _of_threads(pid, "io")]
    lines = [line for content in files if content for line in content.splitlines()[:2]]  # rchar, wchar
    return sum(int(line.rpartition(b":")[2]) for line in lines) if lines else None


def _of_threads(pid: int, name: str) -> list[str]:
    """The paths of the files of this name of all threads, as far as they are read."""
    try:
        return [f"/proc/{pid}/task/{thread}/{name}" for thread in os.listdir(f"/proc/{pid}/task")[:THREADS]]
    except OSError:
        return []


# --- two observations compared ----------------------------------------------------------------------------------------


class ProcessChange(NamedTuple):
    """One process, compared between the two observations.  Rates are per second.

    `cpu`: of the main thread, as a share of the time in which it had a core, because on an overloaded machine a working
    thread hardly runs.  `cpu_all`: of all threads, in cores; `wanted`: the same, with the time in which they would have
    run.  `moved`: whether the main thread was seen in different lines; None if its stack was not read twice.
    """

    seen: ProcessState
    stack: Stack | None = None  # in the second observation
    before: Stack | None = None
    cpu: float = 0.0
    cpu_all: float = 0.0
    io: float | None = None
    moved: bool | None = None
    gone: bool = False
    wanted: float = 0.0

    @property
    def pid(self) -> int:
        return self.seen.stat.pid

    @property
    def main(self) -> Thread | None:
        return self.stack.main if self.stack else None

    @property
    def waits_for_ranks(self) -> bool:
        """Whether its main thread was in the same collective in both observations."""
        return self.main is not None and self.moved is False and recognized.collective(self.main.frames) is not None

    @property
    def waits_in_backward(self) -> bool:
        """Whether it waits in a backward pass, like all ranks in one that averages gradients."""
        return self.moved is False and self.cpu < BUSY_CPU and self.inside(*recognized.BACKWARD)

    @property
    def is_in_collective(self) -> bool:
        return self.waits_for_ranks or self.waits_in_backward

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped by a signal or by a debugger."""
        return self.seen.stat.state in "Tt"

    def inside(self, file: str, names: Container[str]) -> bool:
        """Whether its main thread is in one of these functions, or in a call from them."""
        return self.main is not None and _inside(self.main, file, names)

    @property
    def location(self) -> str:
        """The line of code as text, else the state of the process."""
        if self.main is not None:
            return self.main.location
        return f"{self.seen.stat.name} {self.seen.stat.state} {self.seen.wchan or '-'}"


def changes(
    first: Observation, before: Stacks, second: Observation, after: Stacks, moving: Container[int] = frozenset()
) -> list[ProcessChange]:
    """Compare each process of either observation.  A process that has ended counts as inactive; all that a new process
    has done counts.

    `moving`: pids whose stack has changed between the observations.  That of a polling process changes now and then, so
    this counts only for one that uses CPU.
    """
    seconds = max(second.at - first.at, 0.001)
    found = []
    for process, seen in second.processes.items():
        past = first.processes.get(process)
        if past is None and seen.stat.start < first.ticks:
            past = seen  # it existed and was not observed: its activity since is unknown
        change = _change(past, seen, seconds, before.found.get(process[0]), after.found.get(process[0]))
        moves = process[0] in moving and change.cpu >= BUSY_CPU
        found.append(change._replace(moved=True) if moves else change)
    gone = [process for process in first.processes if process not in second.processes]
    return found + [ProcessChange(first.processes[p], before.found.get(p[0]), gone=True) for p in gone]


def process_subtree(pid: int, found: Sequence[ProcessChange]) -> list[ProcessChange]:
    """The process first, then its descendants."""
    pids = below(pid, [change.seen.stat for change in found])
    return sorted((c for c in found if c.pid in pids), key=lambda c: c.pid != pid)


def _inside(thread: Thread, file: str, names: Container[str]) -> bool:
    return any(frame.name.rpartition(".")[2] in names and frame.file.endswith(f"/{file}") for frame in thread.frames)


def _change(
    past: ProcessState | None, seen: ProcessState, seconds: float, earlier: Stack | None, stack: Stack | None
) -> ProcessChange:
    """Compare two observations of a process; `past` is None if it is new."""

    def rate(now: float, then: float) -> float:
        return max(0.0, now - then) / seconds

    new = past is None
    past = past or seen._replace(main_cpu=0.0, main_queued=0.0, cpu=0.0, io=0, queued=0.0)
    return ProcessChange(
        seen,
        stack or earlier,
        earlier,
        min(1.0, rate(seen.main_cpu, past.main_cpu) / max(0.01, 1 - rate(seen.main_queued, past.main_queued))),
        rate(seen.cpu, past.cpu),
        None if seen.io is None or past.io is None else rate(seen.io, past.io),
        differ(earlier, stack) if stack and earlier and not new else None,
        wanted=rate(seen.cpu, past.cpu) + rate(seen.queued, past.queued),
    )


def find_moving(spy: str | None, before: Stacks, pids: Sequence[int], until: float) -> set[int]:
    """Sample `pids` until `until`: those whose main thread is seen in another line than in `before`.  A loop that
    spends nearly all its time in one call may twice be found in the same line."""
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
