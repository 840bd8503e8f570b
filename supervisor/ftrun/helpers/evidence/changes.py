"""Processes, compared between two observations.  Pure."""

from collections.abc import Container, Sequence
from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.helpers.evidence.processes import Io, Observation, ProcessState, differ
from waitproof import recognized
from waitproof.procfs import below
from waitproof.stacks import Stack, Stacks, Thread

BUSY_CPU: Final = 0.1  # of one core


class Change(NamedTuple):
    """One process, compared between the two observations.  Rates are per second.

    `cpu`: of the main thread, as a share of the time in which it had a core, because on an overloaded machine a working
    thread hardly runs.  `cpu_all`: of all threads, in cores.  `moved`: whether the main thread was seen in different
    lines; None if its stack was not read twice.
    """

    seen: ProcessState
    stack: Stack | None = None  # in the second observation
    before: Stack | None = None
    cpu: float = 0.0
    cpu_all: float = 0.0
    io: float | None = None
    calls: float | None = None
    switches: float | None = None
    moved: bool | None = None
    gone: bool = False

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

    def may_run_python(self, tid: int) -> bool:
        """Whether this thread has Python frames, as far as that is known."""
        python = {thread.tid for thread in self.stack.threads if thread.frames} if self.stack else {None}
        return tid in python or None in python

    @property
    def location(self) -> str:
        """The line of code as text, else the state of the process."""
        if self.main is not None:
            return self.main.location
        return f"{self.seen.stat.name} {self.seen.stat.state} {self.seen.wchan or '-'}"


def changes(
    first: Observation, before: Stacks, second: Observation, after: Stacks, moving: Container[int] = frozenset()
) -> list[Change]:
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
    return found + [Change(first.processes[p], before.found.get(p[0]), gone=True) for p in gone]


def process_subtree(pid: int, found: Sequence[Change]) -> list[Change]:
    """The process first, then its descendants."""
    pids = below(pid, [change.seen.stat for change in found])
    return sorted((c for c in found if c.pid in pids), key=lambda c: c.pid != pid)


def _inside(thread: Thread, file: str, names: Container[str]) -> bool:
    return any(frame.name.rpartition(".")[2] in names and frame.file.endswith(f"/{file}") for frame in thread.frames)


def _change(
    past: ProcessState | None, seen: ProcessState, seconds: float, earlier: Stack | None, stack: Stack | None
) -> Change:
    """Compare two observations of a process; `past` is None if it is new."""

    def rate(now: float | None, then: float | None) -> float | None:
        return None if now is None or then is None else max(0.0, now - then) / seconds

    def cores(now: float, then: float) -> float:
        return max(0.0, now - then) / seconds

    new = past is None
    past = past or seen._replace(
        main_cpu=0.0, main_queued=0.0, cpu=0.0, switches=seen.switches and 0, io=seen.io and Io(0, 0)
    )
    return Change(
        seen,
        stack or earlier,
        earlier,
        min(1.0, cores(seen.main_cpu, past.main_cpu) / max(0.01, 1 - cores(seen.main_queued, past.main_queued))),
        cores(seen.cpu, past.cpu),
        rate(seen.io and seen.io.chars, past.io and past.io.chars),
        rate(seen.io and seen.io.calls, past.io and past.io.calls),
        rate(seen.switches, past.switches),
        differ(earlier, stack) if stack and earlier and not new else None,
    )
