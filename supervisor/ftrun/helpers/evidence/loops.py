"""Threads that compute: which they are, and whether they are proved to repeat the same states for ever."""

import os
import time
from collections.abc import Sequence
from typing import Final

from ftrun.helpers.evidence import recurrence
from ftrun.helpers.evidence.recurrence import Comparison
from ftrun.helpers.evidence.stacks import Stack
from ftrun.helpers.evidence.world import World
from ftrun.host import procfs

Node = tuple[int, int]  # pid and tid
MOST: Final = 2  # threads whose states are compared,
ALTOGETHER: Final = 8.0  # s, at most: a look has 20 s for everything
FUNCTIONS: Final = 8  # that a place names


def computing(world: World) -> list[Node]:
    """The threads that are on a processor or wait for one."""
    threads = [(pid, thread) for pid, process in world.processes.items() for thread in process.threads]
    return [(pid, thread.tid) for pid, thread in threads if thread.running or thread.state == "R"]


def is_busy(pid: int, tid: int, seconds: float) -> bool:
    """Whether the thread does not sleep for so long, as far as the kernel counts that."""
    before = _sleeps(pid, tid)
    time.sleep(seconds)
    return before is not None and _sleeps(pid, tid) == before


def compare(threads: Sequence[Node], seconds: float) -> dict[Node, Comparison]:
    """Compare the states of these threads, one after the other, for `seconds` each on average and ALTOGETHER s at most:
    what one does not need is left for the next.  The others are not compared once one may end by itself."""
    if len(threads) > MOST:
        return dict.fromkeys(threads, Comparison("computes, like several others"))
    found: dict[Node, Comparison] = {}
    left = min(seconds * len(threads), ALTOGETHER)
    for number, (pid, tid) in enumerate(threads):
        if all(result.confined for result in found.values()):
            found[pid, tid] = recurrence.compare(pid, tid, left / (len(threads) - number))
        else:
            found[pid, tid] = Comparison("computes, and there was no need to compare its states")
        left = max(0.0, left - found[pid, tid].seconds)
    return found


def place(stack: Stack | None, tid: int) -> str:
    """Where in the program a thread is: its own functions, the innermost last.  Empty if that is not known."""
    thread = next((thread for thread in stack.threads if thread.tid == tid), None) if stack else None
    own = [frame for frame in thread.frames if not frame.library] if thread else []
    return " > ".join(f"{os.path.basename(frame.file)}:{frame.name}" for frame in own[:FUNCTIONS][::-1])


def read_and_written(pid: int, tid: int) -> str:
    """How often and how much the thread has read and written so far; equal for two times between which it did not."""
    return (procfs.read(f"/proc/{pid}/task/{tid}/io") or b"").decode("ascii", "replace").replace("\n", " ")


def _sleeps(pid: int, tid: int) -> int | None:
    """How often it has given up its processor; None if that is unknown."""
    lines = (procfs.read(f"/proc/{pid}/task/{tid}/status") or b"").splitlines()
    found = [int(line.split()[1]) for line in lines if line.startswith(b"voluntary_ctxt_switches:")]
    return found[0] if found else None
