"""Whether a rank computes in one and the same function, and what of it can be seen outside.  Nothing is stopped.

Only several looks, compared with each other, show that it goes on for ever.
"""

import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ftrun.core.text import sentences
from ftrun.helpers.evidence.processes import cpu_seconds
from waitproof import files, procfs, threads
from waitproof.mappings import Mappings
from waitproof.procfs import below
from waitproof.stacks import Stack

SAMPLES: Final = 5  # of the state of a main thread
PAUSE: Final = 0.02  # s between two of them
MOST: Final = 8  # ranks that compute at the same time; of more the stacks are not read


class Computing(NamedTuple):
    """A rank whose main thread computes.  `why`: a sentence; `fingerprint`: the same while it is in the same function,
    has read and written nothing, and has started and collected no process; `others`: CPU seconds so far of its other
    threads and its descendants.  `on_device`: all ranks of the tree, of which this one has stood still for the longest
    time, wait for their devices or for each other."""

    pid: int
    why: str
    fingerprint: str
    others: float
    on_device: bool = False


class Activity(NamedTuple):
    """What can be seen of a process: fields of `Computing`."""

    fingerprint: object
    others: float


def state(pid: int, stack: Stack, carriers: re.Pattern[str] | None = None, whole: bool = False) -> Activity:
    """The activity of a process of whose main thread the stack is known.  `carriers`: names of threads whose time does
    not count.  `whole`: each line of the stack counts, and not only the innermost function."""
    assert stack.main is not None
    inner, family = stack.main.frames[0], below(pid, procfs.all_processes()) - {pid}
    place: object = [frame.full for frame in stack.main.frames] if whole else (inner.file, inner.name)
    seen = pid, place, _transferred(pid), sorted(family), _reaped(pid)
    spared = 0.0 if carriers is None else sum(_cpu(pid, tid) for tid in _named(pid, carriers))
    return Activity(seen, _cpu(pid) - _cpu(pid, pid) - spared + sum(map(_cpu, family)))


def spin(
    pids: Sequence[int], ranks: Mapping[int, int], stacks: Mapping[int, Stack], still_devices: bool
) -> Computing | None:
    """What the ranks with these processes do, whose main threads compute, as one: it is named after the first of them.
    None: something that they do can be seen outside, or is not known.

    `still_devices`: no accelerator of the job does anything."""
    if not 0 < len(pids) <= MOST:
        return None
    states, first = list[Activity](), ""
    for pid in pids:
        stack = stacks.get(pid)
        if stack is None or stack.main is None or not stack.main.frames:
            return None
        if not still_devices and _has_accelerator(pid):
            return None
        states.append(state(pid, stack))
        first = first or stack.main.location
    seen = repr([one.fingerprint for one in states])
    others = round(sum(one.others for one in states), 2)
    return Computing(pids[0], f"{sentences.rank(ranks.get(pids[0]))} computes at {first}", seen, others)


def computing(pids: Sequence[int]) -> list[int]:
    """Which of these processes have main threads that compute.  Such a thread may wait for the lock of its interpreter
    at any instant, for a moment."""
    found = set[int]()
    for _ in range(SAMPLES):
        found |= {pid for pid in pids if pid not in found and threads.thread(pid, pid, Mappings()).running}
        if len(found) == len(pids):
            break
        time.sleep(PAUSE)
    return [pid for pid in pids if pid in found]


def _named(pid: int, pattern: re.Pattern[str]) -> list[int]:
    """The threads of that process with such a name."""
    try:
        tids = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []
    names = ((tid, procfs.read(f"/proc/{pid}/task/{tid}/comm", 64) or b"") for tid in tids if tid != pid)
    return [tid for tid, name in names if pattern.match(name.decode("utf-8", "replace"))]


def _has_accelerator(pid: int) -> bool:
    """Whether the process has an accelerator open, or may have."""
    try:
        return any(end.is_accelerator for end in files.list_open(pid).values())
    except OSError:
        return True


def _transferred(pid: int) -> str:
    """What its main thread has read and written so far, in bytes and in calls."""
    return (procfs.read(f"/proc/{pid}/task/{pid}/io") or b"").decode("ascii", "replace").replace("\n", " ")


def _reaped(pid: int) -> bytes:
    """Page faults of the children that it has waited for, which show that there were any."""
    _, fields = procfs.fields(f"/proc/{pid}/stat")
    return b" ".join(fields[8:11:2])


def _cpu(pid: int, tid: int | None = None) -> float:
    """CPU seconds of a process, or of one of its threads."""
    return cpu_seconds(f"/proc/{pid}/stat" if tid is None else f"/proc/{pid}/task/{tid}/stat")
