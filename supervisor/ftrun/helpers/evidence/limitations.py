"""Which data could not be collected, and why: one line each, for any number of processes.  Pure, except that
`stacks.permission` reads the capabilities of this process."""

from collections.abc import Mapping, Sequence
from typing import Final

from ftrun.helpers.evidence import stacks
from ftrun.helpers.evidence.classification import Change

NAMED: Final = 10  # processes


def unavailable(found: Sequence[Change], no_stack: Mapping[int, str]) -> list[tuple[str, str]]:
    """What is missing and why.  `no_stack`: why the stack of a process was not read, in either observation."""
    living = [change for change in found if not change.gone]
    by_reason: dict[str, list[int]] = {}
    for change in living:
        why = no_stack.get(change.pid)
        # A program in another language has no Python stack, which is no limitation.
        if why not in (None, stacks.GONE) and (why != stacks.NO_PYTHON or "python" in change.seen.stat.name):
            by_reason.setdefault(str(why), []).append(change.pid)
    lines = [(f"Python stacks of {_process_list(pids)}", _explain(why)) for why, pids in by_reason.items()]
    uncounted = [change.pid for change in living if change.seen.io is None]
    if uncounted:
        lines.append((f"I/O counters of {_process_list(uncounted)}", "not permitted"))
    sleeping = [change for change in living if change.seen.stat.state not in "RZ"]  # others have no kernel stack
    if sleeping and not any(change.seen.kernel for change in sleeping):
        lines.append(("kernel stacks", "not permitted (the capability SYS_ADMIN is required)"))
    return lines


def _explain(why: str) -> str:
    return f"{why}: {stacks.permission()}" if why == stacks.REFUSED else why


def _process_list(pids: Sequence[int]) -> str:
    shown = ", ".join(str(pid) for pid in pids[:NAMED])
    return f"{len(pids)} processes ({shown}{', ...' if len(pids) > NAMED else ''})" if len(pids) > 1 else shown
