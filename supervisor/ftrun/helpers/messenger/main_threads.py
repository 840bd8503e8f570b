"""What the main thread of a rank does, as the kernel shows it: it computes, it waits for other ranks, or it waits for
something else.  Nothing runs in the process for it, and nothing stops it.

A thread that waits for a collective of the CPU waits in a futex, as for everything that another thread of its process
has to do.  A thread that sleeps, reads a file or waits for a data worker is in another call.
"""

import os
from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.host import procfs
from waitproof import calls
from waitproof.world import ACCELERATORS

DESCRIPTORS: Final = 4096  # of a process that are examined
KNOWN: Final = 0.1  # of a period: what was blocked for less needs no glance

_CALLS: Final = calls.table(os.uname().machine)  # empty for a machine whose numbers are not known
FUTEX: Final = frozenset(str(number).encode() for number, call in _CALLS.items() if call.kind == "futex")


class ThreadUse(NamedTuple):
    """What the main thread has used of a period of `seconds`: `ran`, on a processor or in the queue for one, in s.
    `futex`, `other`: how often it was seen blocked there."""

    seconds: float = 0.0
    ran: float = 0.0
    futex: int = 0
    other: int = 0

    @property
    def share(self) -> float | None:
        """The part of the period in which it did not wait for other ranks; None: unknown."""
        if self.seconds <= 0:
            return None
        ran = min(1.0, self.ran / self.seconds)
        if not self.futex + self.other:
            return 1.0 if 1 - ran < KNOWN else None
        return ran + (1 - ran) * self.other / (self.futex + self.other)


def plus(one: ThreadUse, other: ThreadUse) -> ThreadUse:
    return ThreadUse(one.seconds + other.seconds, one.ran + other.ran, one.futex + other.futex, one.other + other.other)


class MainThread:
    """Of one process; an instance outlives it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._task = f"/proc/{pid}/task/{pid}"
        self._ran = self._read_ran()
        self._futex = self._other = 0

    def glance(self) -> None:
        """Count where it is blocked now, if it is."""
        call = (procfs.read(f"{self._task}/syscall", 512, at_once=True) or b"").split()
        if call and FUTEX:
            if call[0] in FUTEX:
                self._futex += 1
            elif call[0] != b"running":
                self._other += 1
            return
        # Under Yama only an ancestor may read the call.  The kernel's function is visible to the same user, if at all.
        wchan = procfs.read(f"{self._task}/wchan", 128, at_once=True) or b"0"
        if b"futex" in wchan:
            self._futex += 1
        elif wchan != b"0":
            self._other += 1

    def used(self, seconds: float) -> ThreadUse | None:
        """Since the last time, which was `seconds` ago; None: unknown."""
        before, self._ran = self._ran, self._read_ran()
        seen, self._futex, self._other = (self._futex, self._other), 0, 0
        return None if before is None or self._ran is None else ThreadUse(seconds, self._ran - before, *seen)

    def _read_ran(self) -> float | None:
        """Documentation/scheduler/sched-stats.rst of Linux: on a processor, in the queue for one, in ns; how often."""
        fields = (procfs.read(f"{self._task}/schedstat", 128, at_once=True) or b"").split()
        if len(fields) < 3 or fields[2] == b"0":  # the kernel does not count
            return None
        return (int(fields[0]) + int(fields[1])) / 1e9


def uses_accelerator(pid: int) -> bool:
    """Whether the process has opened one, or this cannot be known."""
    try:
        for number in os.listdir(f"/proc/{pid}/fd")[:DESCRIPTORS]:
            try:
                if os.readlink(f"/proc/{pid}/fd/{number}").startswith(ACCELERATORS):
                    return True
            except FileNotFoundError:  # closed meanwhile
                continue
    except OSError:
        return True
    return False
