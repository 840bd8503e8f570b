"""Classify a suspected process as working or hung, from two observations of the process tree.  Pure.

A timeout that a person gave is never extended.  What looks have found (a deadlock, a rank that computes for an hour)
has to be found once more.  The idle rule is cleared by work, unless a person gave its time also by a wait on purpose:

* I/O counts as work whatever the stack: a copy or a checkpoint stays on one line.
* CPU use of the main thread counts, also within one line, as a compiler or a solver looks, and half a core of all
  threads.  Not in a collective, nor where the job uses an accelerator: a wait for the device looks like that, too.
"""

from collections.abc import Sequence
from typing import Final

from ftrun.core.machine.values import Finding
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules.hang_rules import RULES
from ftrun.helpers.evidence.processes import BUSY_CPU, ProcessChange
from waitproof.world import World

BUSY_IO: Final = 262_144.0  # bytes per second read and written: checkpoints and data, not log lines and keep-alives
OTHERS: Final = 0.5  # cores of all threads together: watchdogs, and threads that wait again and again, use less


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


def classify(
    finding: Finding, suspects: Sequence[ProcessChange], accelerated: bool, outside: Outside = _NOT_FOLLOWED
) -> Classification:
    """`suspects`: the suspect first, then its descendants."""
    living = [change for change in suspects if not change.gone]
    cpu, io = sum(c.cpu for c in living), outside.moved + sum(c.io or 0.0 for c in living)
    rule = RULES[finding.rule]
    cleared: str | None = None
    working = _work_of(living, not accelerated, outside.moved) or outside.traffic
    parts = [_inactivity(living, cpu, io), outside.wait]
    if rule.by_work:
        moved = next((f"its Python stack changes: {c.location}" for c in living if c.moved), None)
        cleared = working or moved or outside.open_reason
    elif rule.by_proof:
        cleared = outside.open_reason
    elif working is not None:
        parts[0] = f"{working}, but the timeout was set by the user, so no observation extends it"
    return Classification(cleared, "" if cleared else "; ".join(filter(None, parts)), cpu, io)


def _work_of(living: Sequence[ProcessChange], doubt: bool, moved: float) -> str | None:
    """The work that these processes do, or None.  `doubt`: CPU use within one line counts as work.  `moved`: bytes per
    second on their sockets, which no process counter includes."""
    working = [c for c in living if not c.waits_for_ranks and (doubt or c.moved is not False)]
    cpu, io = sum(c.cpu for c in working), moved + sum(c.io or 0.0 for c in living)
    if io >= BUSY_IO:
        return f"it works: {io / 1e6:.1f} MB/s read and written"
    if cpu < BUSY_CPU:
        used = sum(c.wanted for c in working) if doubt else 0.0
        return f"it works: {used:.0%} of a core, in other threads than the main ones" if used >= OTHERS else None
    busiest = max(working, key=lambda c: c.cpu)
    if busiest.moved:
        return f"it works: {cpu:.0%} of a core, and its Python stack changes"
    if busiest.moved is None:
        return f"it works: {cpu:.0%} of a core"
    return f"it works: {cpu:.0%} of a core, all in one call that may be a long one, {busiest.location}"


def _inactivity(living: Sequence[ProcessChange], cpu: float, io: float) -> str:
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


def deliberate(pid: int, world: World) -> str | None:
    """What the main thread of a process waits for that nobody waits for by mistake: a signal (`signal.pause`, `sleep
    infinity`), or a person at a terminal; None: something else."""
    process = world.processes[pid]
    main = process.threads[0] if process.threads else None
    if main is None or main.call is None:
        return None
    call = main.call
    if call.kind == "signal" or (call.kind in ("poll", "select") and not main.fds and not main.timed):
        return f"process {pid} ({process.name}) waits for a signal"
    ends = (process.fds.get(fd) for fd, mode in main.fds if "r" in mode)
    if any(end is not None and end.kind == "terminal" for end in ends):
        return f"process {pid} ({process.name}) waits for a terminal"
    return None
