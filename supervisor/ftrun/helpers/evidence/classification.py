"""Classify a suspected process as working or hung, from two observations of the process tree.  Pure.

A timeout that a person gave is never extended: what is observed goes to the report.  What looks have found (a deadlock,
a rank that computes for an hour) has to be found once more.  The idle rule is cleared by work, unless a person gave its
time also by a wait on purpose:

* I/O counts as work whatever the stack: a copy or a checkpoint stays on one line.
* CPU use counts as work, also within one line: a compiler, a solver or a tokenizer in one call looks like that.  The
  exception are the calls of `WAITS`, in which only another rank can end the wait, and a job that uses an accelerator,
  where a wait for the device looks like that, too.

The main thread decides, because side threads (watchdogs, keep-alives, the poller of a collective) keep running in a
hung process.
"""

from collections.abc import Container, Iterable, Sequence
from typing import Final

from ftrun.core.machine.values import Finding
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules.hang_rules import RULES
from ftrun.helpers.evidence import recognized
from ftrun.helpers.evidence.processes import Io, Observation, ProcessState, below
from ftrun.helpers.evidence.stacks import Stack, Stacks, Thread, differ
from ftrun.messages.evidence import RankState

BUSY_CPU: Final = 0.1  # of one core
BUSY_IO: Final = 262_144.0  # bytes per second read and written: checkpoints and data, not log lines and keep-alives


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

    def has(self, tid: int, file: str, names: Container[str]) -> bool:
        """The same for another thread."""
        threads = self.stack.threads if self.stack else ()
        return any(_inside(thread, file, names) for thread in threads if thread.tid == tid)

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


class Outside(NamedTuple):
    """What the suspect waits for.  `open_reason`: why that is no hang; `traffic`: the data that is exchanged with
    something outside the job; `moved`: bytes per second on its sockets; `wait`: what it waits for, as far as that is
    known."""

    open_reason: str | None = None
    traffic: str | None = None
    moved: float = 0.0
    wait: str = ""


_NOT_FOLLOWED: Final = Outside()


class Classification(NamedTuple):
    """`cleared`: why it is not a hang, or None.  `reason`: why it is not cleared.  `cpu` in cores and `io` in bytes per
    second are of the suspect and its descendants."""

    cleared: str | None
    reason: str
    cpu: float
    io: float


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


def classify(
    finding: Finding,
    suspects: Sequence[Change],
    accelerated: bool,
    outside: Outside = _NOT_FOLLOWED,
) -> Classification:
    """`suspects`: the suspect first, then its descendants."""
    living = [change for change in suspects if not change.gone]
    cpu, io = sum(c.cpu for c in living), sum(c.io or 0.0 for c in living)
    io += outside.moved
    rule = RULES[finding.rule]
    cleared = outside.open_reason if rule.by_proof else None
    if rule.by_work:
        cleared = _work_of(living, doubt=not accelerated, moved=outside.moved) or outside.traffic
        if cleared is None and any(change.moved for change in living):
            cleared = f"its Python stack changes: {next(c for c in living if c.moved).location}"
        cleared = cleared or outside.open_reason
    parts = [_inactivity(living, cpu, io), outside.wait]
    if not rule.by_work and not rule.by_proof:
        working = _work_of(living, doubt=not accelerated, moved=outside.moved) or outside.traffic
        if working is not None:
            parts[0] = f"{working}, but the timeout was set by the user, so no observation extends it"
    reason = "; ".join(filter(None, parts))
    return Classification(cleared, "" if cleared else reason, cpu, io)


def other_silent_ranks(finding: Finding, ranks: Iterable[RankState], now: float) -> list[RankState]:
    """Other ranks that stopped at about the same time, so the suspect may be waiting for them."""
    others = [r for r in ranks if r.rank != finding.rank and r.pid and r.present]
    return [r for r in others if r.moved_at is not None and now - r.moved_at >= finding.limit / 2]


def process_subtree(pid: int, found: Sequence[Change]) -> list[Change]:
    """The process first, then its descendants."""
    pids = below(pid, [change.seen.stat for change in found])
    return sorted((c for c in found if c.pid in pids), key=lambda c: c.pid != pid)


def works(change: Change, accelerated: bool) -> str | None:
    """The work that a process does for which the suspect waits, or None.  Without a Python stack all threads count."""
    if change.stack is None and change.cpu_all >= BUSY_CPU:
        return f"it works: {change.cpu_all:.0%} of a core"
    return _work_of([change], doubt=not accelerated)


def _inside(thread: Thread, file: str, names: Container[str]) -> bool:
    return any(frame.name.rpartition(".")[2] in names and frame.file.endswith(f"/{file}") for frame in thread.frames)


def _work_of(living: Sequence[Change], doubt: bool, moved: float = 0.0) -> str | None:
    """The work that these processes do, or None.  `doubt`: CPU use within one line counts as work.  `moved`: bytes per
    second on their sockets, which no process counter includes."""
    working = [c for c in living if not c.waits_for_ranks and (doubt or c.moved is not False)]
    cpu, io = sum(c.cpu for c in working), moved + sum(c.io or 0.0 for c in living)
    if io >= BUSY_IO:
        return f"it works: {io / 1e6:.1f} MB/s read and written"
    if cpu < BUSY_CPU:
        return None
    busiest = max(working, key=lambda c: c.cpu)
    if busiest.moved:
        return f"it works: {cpu:.0%} of a core, and its Python stack changes"
    if busiest.moved is None:
        return f"it works: {cpu:.0%} of a core"
    return f"it works: {cpu:.0%} of a core, all in one call that may be a long one, {busiest.location}"


def _inactivity(living: Sequence[Change], cpu: float, io: float) -> str:
    if not living:
        return "its process is gone"
    suspect = living[0]
    state = suspect.seen.stat.state
    seen = f"{cpu:.0%} of a core, {io:.0f} B/s"
    if suspect.is_stopped:
        return f"it is stopped (state {state}), by SIGSTOP or by a debugger"
    if state == "D":
        return f"it is stuck in the kernel, in {suspect.seen.wchan or 'an unknown function'} (state D): {seen}"
    if any(change.waits_for_ranks for change in living):
        return f"it waits for other ranks, so its CPU use does not count as work: {seen}"
    if suspect.moved is None:
        return f"it does almost nothing: {seen}; its stack could not be read twice"
    stack = "only its Python stack changes" if suspect.moved else "its Python stack was the same in both observations"
    return f"it does almost nothing: {seen}; {stack}" if cpu < BUSY_CPU else f"{stack}, with {seen}"


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
