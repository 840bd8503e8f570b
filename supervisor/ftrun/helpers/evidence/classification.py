"""Whether what the two looks saw speaks for a process that works.  Pure.

What decides is the main thread, because side threads (watchdogs, keep-alives, the poller of a collective) run on in a
hung process.  A mistake to the one side kills a healthy job, to the other it delays the end of a hung one until the
learned limit is at its most (an hour, unless told otherwise); so doubt speaks for the job:

* CPU with a Python stack that moved, or that nobody may see, is work.
* CPU within one and the same line is work too: a compiler, a solver, a tokenizer in one call look the same as a native
  loop that never ends.  Unless it is a call of `WAITS`, in which only another rank's doing ends the wait.
* I/O is work whatever the stack: a copy or a checkpoint stays on one line.
* A rank that waits need not be the one that hangs.  While another one that stopped as well works, or is in a section
  that has a deadline of its own, it may be waited for.
* A limit that the user gave is not raised by anything.
* A learned limit convicts only a wait that nobody outside the job can end (graph.py), whatever else was seen.

Where the job uses an accelerator doubt is smaller: CPU within one line is what a wait for the device looks like, and
all ranks that wait for the hung one spin so.  There it does not speak for another rank, nor against the idle rule,
which has no limit that could be at its most and has seen that the utilisation does not change.
"""

from collections.abc import Container, Iterable, Sequence
from typing import Final, NamedTuple

from ftrun.core.machine.values import Finding, Rank
from ftrun.core.text import sentences
from ftrun.helpers.evidence.processes import Io, Look, Seen, below
from ftrun.helpers.evidence.stacks import Stack, Stacks, Thread, differ

BUSY_CPU: Final = 0.1  # of one core
BUSY_IO: Final = 262_144.0  # bytes a second read and written: checkpoints and data, not log lines and keep-alives
_COLLECTIVES: Final = frozenset(
    {"all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_reduce", "all_reduce_coalesced"}
    | {"all_to_all", "all_to_all_single", "barrier", "broadcast", "gather", "irecv", "isend", "monitored_barrier"}
    | {"recv", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "send"}
)
# File, functions, and why CPU that is burnt in them is no work.  Not here: `synchronize` and `item` of an accelerator
# (the device may be at work for them), and whatever also computes, as `all_gather_object` pickles.
WAITS: Final = (
    ("torch/distributed/distributed_c10d.py", _COLLECTIVES, "a collective ends when all ranks have come"),
    ("torch/distributed/_functional_collectives.py", frozenset({"wait_tensor"}), "as above, compiled"),
    ("horovod/torch/mpi_ops.py", frozenset({"synchronize"}), "as above, of Horovod"),
)
_WRAPPED: Final = 2  # frames of torch's dispatcher that may lie below such a call
# With other ranks that stopped as well, a wait in it is one for them: DDP averages the gradients there.
_BACKWARD: Final = ("torch/autograd/graph.py", frozenset({"_engine_run_backward"}))


class Change(NamedTuple):
    """One process from the first look to the second.  Rates are a second's; `cpu_all` in cores, and `cpu`, of its
    main thread, of the time in which it had one: on a machine that has too few, whoever works seems to do nothing.

    `moved`: whether its main thread was seen in different lines; None if it was not seen twice.
    """

    seen: Seen
    stack: Stack | None = None  # the later one
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
    def waits(self) -> bool:
        """Whether its main thread was in the very same call of `WAITS` both times."""
        frames = self.main.frames[: 1 + _WRAPPED] if self.main and self.moved is False else ()
        return any(f.file.endswith(f"/{file}") and f.name in names for f in frames for file, names, _ in WAITS)

    @property
    def reduces(self) -> bool:
        """Whether it waits in a backward pass, as all ranks do in one whose gradients are averaged."""
        return self.moved is False and self.cpu < BUSY_CPU and self.inside(*_BACKWARD)

    def inside(self, file: str, names: Container[str]) -> bool:
        """Whether its main thread is in one of these functions, or in what they have called."""
        return self.main is not None and _inside(self.main, file, names)

    def has(self, tid: int, file: str, names: Container[str]) -> bool:
        """The same of another thread."""
        threads = self.stack.threads if self.stack else ()
        return any(_inside(thread, file, names) for thread in threads if thread.tid == tid)

    @property
    def place(self) -> str:
        """Where it is, for a person."""
        if self.main is not None:
            return self.main.place
        return f"{self.seen.stat.name} {self.seen.stat.state} {self.seen.wchan or '-'}"


class Outside(NamedTuple):
    """What the waits of the suspect show: `opened`: why somebody outside the job may end it; `traffic`: what is
    exchanged with somebody outside; `moved`: bytes a second on its sockets; `closed`: why nobody outside ends it."""

    opened: str | None = None
    traffic: str | None = None
    moved: float = 0.0
    closed: str = ""


class Classification(NamedTuple):
    """`cleared`: why it is no hang, or None.  `reason`: why it is not cleared.  `cpu` in cores, `io` in bytes a second:
    the suspect's and all below it."""

    cleared: str | None
    reason: str
    cpu: float
    io: float


def changes(
    first: Look, before: Stacks, second: Look, after: Stacks, restless: Container[int] = frozenset()
) -> list[Change]:
    """Each process of either look; those that ended meanwhile did nothing, those that are new all since.

    `restless`: those seen elsewhere between the looks.  Whoever polls is now and then, so that counts only for one
    that works.
    """
    seconds = max(second.at - first.at, 0.001)
    found = []
    for process, seen in second.processes.items():
        past = first.processes.get(process)
        if past is None and seen.stat.start < first.ticks:
            past = seen  # it was there and not seen: nothing is known of what it has done since
        change = _change(past, seen, seconds, before.found.get(process[0]), after.found.get(process[0]))
        stirred = process[0] in restless and change.cpu >= BUSY_CPU
        found.append(change._replace(moved=True) if stirred else change)
    gone = [process for process in first.processes if process not in second.processes]
    return found + [Change(first.processes[p], before.found.get(p[0]), gone=True) for p in gone]


def classify(
    finding: Finding,
    suspects: Sequence[Change],
    others: Iterable[tuple[Rank, Sequence[Change]]],
    accelerated: bool,
    outside: Outside | None = None,
) -> Classification:
    """`suspects`: the suspect first, and all below it; `others`: ranks that stopped as well, and what is theirs;
    `outside`: what was found of their waits, None where nothing may raise the limit."""
    living = [change for change in suspects if not change.gone]
    cpu, io = sum(c.cpu for c in living), sum(c.io or 0.0 for c in living)
    outside = outside or Outside()
    io += outside.moved
    idle = finding.rule == "idle"
    if not idle and not finding.learned:
        return Classification(None, "the limit was given, so that nothing that is seen here raises it", cpu, io)
    cleared = _works(living, doubt=not (idle and accelerated), moved=outside.moved) or outside.traffic
    if cleared is None and idle and any(change.moved for change in living):
        cleared = f"its Python stack moves: {next(c for c in living if c.moved).place}"
    if cleared is None and not idle:
        cleared = next((why for rank, theirs in others if (why := _awaited(rank, theirs, accelerated))), None)
    cleared = cleared or outside.opened
    stuck = "; ".join(part for part in (_stuck(living, cpu, io), outside.closed) if part)
    return Classification(cleared, "" if cleared else stuck, cpu, io)


def silent_as_well(finding: Finding, ranks: Iterable[Rank], now: float) -> list[Rank]:
    """Other ranks that stopped at about the same time, so that the suspect may wait for them."""
    others = [r for r in ranks if r.rank != finding.rank and r.pid and r.present and not r.done]
    return [r for r in others if r.moved_at is not None and now - r.moved_at >= finding.limit / 2]


def family(pid: int, found: Sequence[Change]) -> list[Change]:
    """The process, and all below it."""
    pids = below(pid, [change.seen.stat for change in found])
    return sorted((c for c in found if c.pid in pids), key=lambda c: c.pid != pid)


def works(change: Change, accelerated: bool) -> str | None:
    """What speaks for a process that the suspect waits for.  All threads count of a program without Python."""
    if change.stack is None and change.cpu_all >= BUSY_CPU:
        return f"it works: {change.cpu_all:.0%} of a core"
    return _works([change], doubt=not accelerated)


def _inside(thread: Thread, file: str, names: Container[str]) -> bool:
    return any(frame.name.rpartition(".")[2] in names and frame.file.endswith(f"/{file}") for frame in thread.frames)


def _works(living: Sequence[Change], doubt: bool, moved: float = 0.0) -> str | None:
    """What speaks for these.  `doubt`: it speaks for them too that one burns CPU within one line.  `moved`: bytes a
    second that their sockets moved, which are in no process's own counters."""
    working = [c for c in living if not c.waits and (doubt or c.moved is not False)]
    cpu, io = sum(c.cpu for c in working), moved + sum(c.io or 0.0 for c in living)
    if io >= BUSY_IO:
        return f"it works: {io / 1e6:.1f} MB/s read and written"
    if cpu < BUSY_CPU:
        return None
    busiest = max(working, key=lambda c: c.cpu)
    if busiest.moved:
        return f"it works: {cpu:.0%} of a core, and its Python stack moves"
    if busiest.moved is None:
        return f"it works: {cpu:.0%} of a core"
    return f"it works: {cpu:.0%} of a core, all in one call, {busiest.place}, which may be a long one"


def _awaited(rank: Rank, theirs: Sequence[Change], accelerated: bool) -> str | None:
    living = [change for change in theirs if not change.gone]
    if living and rank.sections:
        return f"it may wait for {sentences.rank(rank.rank)}, which is in section {sentences.sections(rank.sections)!r}"
    if accelerated:
        living = [c for c in living if c.moved or (c.io or 0.0) >= BUSY_IO]
    works = _works(living, doubt=not accelerated)
    return f"it may wait for {sentences.rank(rank.rank)}, of which {works}" if works else None


def _stuck(living: Sequence[Change], cpu: float, io: float) -> str:
    if not living:
        return "its process is gone"
    suspect = living[0]
    state = suspect.seen.stat.state
    seen = f"{cpu:.0%} of a core, {io:.0f} B/s"
    if state in "Tt":
        return f"it is stopped (state {state}): somebody sent it SIGSTOP, or debugs it"
    if state == "D":
        return f"it is stuck in the kernel, in {suspect.seen.wchan or 'a call that is not told'} (state D): {seen}"
    if any(change.waits for change in living):
        return f"it waits for other ranks, and what CPU it burns is no work: {seen}"
    if suspect.moved is None:
        return f"it does next to nothing: {seen}; its stack was not seen twice"
    same = "its stack moves, but that is all" if suspect.moved else "the same Python stack in both looks"
    return f"it does next to nothing: {seen}; {same}" if cpu < BUSY_CPU else f"{same}, and {seen}"


def _change(past: Seen | None, seen: Seen, seconds: float, earlier: Stack | None, stack: Stack | None) -> Change:
    """`past` is None for one that is new."""

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
