"""Whether a rank computes in one and the same function, and what of it can be seen outside.  Nothing is stopped.

The answers of several looks are compared by core/rules/spin.py.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Final

from ftrun.core.machine.values import Spin
from ftrun.core.text import sentences
from ftrun.helpers.evidence import files, threads
from ftrun.helpers.evidence.mappings import Mappings
from ftrun.helpers.evidence.processes import TICKS, below
from ftrun.helpers.evidence.stacks import Stack
from ftrun.host import procfs

SAMPLES: Final = 5  # of the state of a main thread
PAUSE: Final = 0.02  # s between two of them
MOST: Final = 8  # ranks that compute at the same time; of more the stacks are not read


def spin(
    pids: Sequence[int], ranks: Mapping[int, int], stacks: Mapping[int, Stack], still_devices: bool, now: float
) -> Spin | None:
    """What the ranks with these processes do, whose main threads compute, as one: it is named after the first of them.
    None: something that they do can be seen outside, or is not known.

    `still_devices`: no accelerator of the job does anything."""
    if not 0 < len(pids) <= MOST:
        return None
    seen, others, first = [], 0.0, ""
    table = procfs.all_processes()
    for pid in pids:
        stack = stacks.get(pid)
        if stack is None or stack.main is None or not stack.main.frames:
            return None
        if not still_devices and _has_accelerator(pid):
            return None
        inner = stack.main.frames[0]
        family = below(pid, table) - {pid}
        seen.append((pid, inner.file, inner.name, _transferred(pid), sorted(family), _reaped(pid)))
        others += _cpu(pid) - _cpu(pid, pid) + sum(map(_cpu, family))
        first = first or stack.main.location
    rank = ranks.get(pids[0])
    return Spin(now, f"{sentences.rank(rank)} computes at {first}", repr(seen), rank, pids[0], round(others, 2))


def computing(pids: Sequence[int]) -> list[int]:
    """Those of these processes whose main threads compute.  One that does may wait for the lock of its interpreter at
    any instant, for a moment."""
    found = set[int]()
    for _ in range(SAMPLES):
        found |= {pid for pid in pids if pid not in found and threads.thread(pid, pid, Mappings()).running}
        if len(found) == len(pids):
            break
        time.sleep(PAUSE)
    return [pid for pid in pids if pid in found]


def _has_accelerator(pid: int) -> bool:
    """Whether it has one open, or may have."""
    try:
        return any(end.is_accelerator for end in files.list_open(pid).values())
    except OSError:
        return True


def _transferred(pid: int) -> str:
    """What its main thread has read and written so far, in bytes and in calls."""
    return (procfs.read(f"/proc/{pid}/task/{pid}/io") or b"").decode("ascii", "replace").replace("\n", " ")


def _reaped(pid: int) -> bytes:
    """Page faults of the children that it has waited for, which show that there were any."""
    fields = _fields(f"/proc/{pid}/stat")
    return b" ".join(fields[8:11:2])


def _cpu(pid: int, tid: int | None = None) -> float:
    """CPU seconds of a process, or of one of its threads."""
    fields = _fields(f"/proc/{pid}/stat" if tid is None else f"/proc/{pid}/task/{tid}/stat")
    return sum(map(int, fields[11:13])) / TICKS


def _fields(path: str) -> list[bytes]:
    """The fields of a stat file from the state on (proc_pid_stat(5), field 3)."""
    return (procfs.read(path, 4096) or b"").rpartition(b")")[2].split()
