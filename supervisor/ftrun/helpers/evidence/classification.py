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

from collections.abc import Iterable, Sequence
from typing import Final

from ftrun.core.machine.values import Finding
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules.hang_rules import RULES
from ftrun.helpers.evidence.processes import BUSY_CPU, ProcessChange
from ftrun.messages.evidence import RankState

BUSY_IO: Final = 262_144.0  # bytes per second read and written: checkpoints and data, not log lines and keep-alives


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
    finding: Finding,
    suspects: Sequence[ProcessChange],
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


def _work_of(living: Sequence[ProcessChange], doubt: bool, moved: float = 0.0) -> str | None:
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
