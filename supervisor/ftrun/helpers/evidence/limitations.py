"""What could not be had, and why: a line each, however many processes it is about.  Pure, but for who we are."""

from collections.abc import Mapping, Sequence
from typing import Final

from ftrun.helpers.evidence import stacks
from ftrun.helpers.evidence.classification import Change

NAMED: Final = 10  # processes


def missing(found: Sequence[Change], no_stack: Mapping[int, str]) -> list[tuple[str, str]]:
    """`no_stack`: why the stack of a process was not seen, in either look."""
    living = [change for change in found if not change.gone]
    by_reason: dict[str, list[int]] = {}
    for change in living:
        why = no_stack.get(change.pid)
        # A program in another language has no Python stack, and nobody misses it.
        if why not in (None, stacks.GONE) and (why != stacks.NO_PYTHON or "python" in change.seen.stat.name):
            by_reason.setdefault(str(why), []).append(change.pid)
    lines = [(f"Python stacks of {_named(pids)}", _explained(why)) for why, pids in by_reason.items()]
    silent = [change.pid for change in living if change.seen.io is None]
    if silent:
        lines.append((f"I/O counters of {_named(silent)}", "not permitted"))
    asleep = [change for change in living if change.seen.stat.state not in "RZ"]  # the others are not in the kernel
    if asleep and not any(change.seen.kernel for change in asleep):
        lines.append(("kernel stacks", "not permitted (they need the capability SYS_ADMIN)"))
    return lines


def _explained(why: str) -> str:
    return f"{why}: {stacks.permission()}" if why == stacks.REFUSED else why


def _named(pids: Sequence[int]) -> str:
    shown = ", ".join(str(pid) for pid in pids[:NAMED])
    return f"{len(pids)} processes ({shown}{', ...' if len(pids) > NAMED else ''})" if len(pids) > 1 else shown
