"""What a tree did in a period: CPU of its main threads, bytes read and written, and what its dead children did.

A process inherits what a child used and read and wrote when it waits for that child.  Of that only what the child did
since the last look is new: all else has been counted, or was long ago.  So the work of a shell loop is seen, whose
children live less than a period, and a hung process which runs `nvidia-smi` each minute did just that.
"""

import os
from collections.abc import Iterable
from typing import Final, NamedTuple

from ftrun.host import procfs
from ftrun.host.procfs import Stat

_TICKS: Final = os.sysconf("SC_CLK_TCK")
Process = tuple[int, int]  # pid and start time


class Count(NamedTuple):
    """So far, in seconds and bytes: of the main thread; of all threads; of the children that it waited for; and of all
    threads and those children, None where we may not look.  `reaped`: page faults of those children, which tell that
    there were any."""

    main: float
    all: float
    children: float
    io: int | None
    reaped: int


class Done(NamedTuple):
    """Of all together, in a period: seconds, bytes, and how many processes there are."""

    cpu: float
    io: int
    processes: int


NOTHING: Final = Count(0.0, 0.0, 0.0, 0, 0)


def count(process: Stat) -> Count | None:
    """None for a process that vanished."""
    own = _fields(f"/proc/{process.pid}/stat")
    main = own if process.threads == 1 else _fields(f"/proc/{process.pid}/task/{process.pid}/stat")
    if len(own) < 15 or len(main) < 15:
        return None
    io = _bytes(f"/proc/{process.pid}/io")
    return Count(_seconds(main[11:13]), _seconds(own[11:13]), _seconds(own[13:15]), io, int(own[8]) + int(own[10]))


def counts(processes: Iterable[Stat]) -> dict[Process, Count]:
    """A zombie counts as well: nobody has inherited from it yet."""
    found = {(process.pid, process.start): count(process) for process in processes}
    return {process: counted for process, counted in found.items() if counted is not None}


def done(before: dict[Process, Count], after: dict[Process, Count]) -> Done:
    """What was done from one to the other.  One that is new has done all of it since.

    What ended had counts, which whoever waited for it has now.  Nobody may have: then too much is taken off what the
    others inherited, but never off what those did that waited for nobody.
    """
    ended = [past for process, past in before.items() if process not in after]
    changes = [(before.get(process, NOTHING), now) for process, now in after.items()]
    main = sum(max(0.0, now.main - past.main) for past, now in changes)
    inherited = sum(now.children - past.children for past, now in changes)
    moved = [(past, now, now.io - past.io) for past, now in changes if now.io is not None and past.io is not None]
    certain = sum(io for past, now, io in moved if now.reaped == past.reaped)
    io = sum(io for _, _, io in moved) - sum(past.io or 0 for past in ended)
    cpu = main + max(0.0, inherited - sum(past.all + past.children for past in ended))
    return Done(cpu, max(0, certain, io), len(after))


def _fields(path: str) -> list[bytes]:
    """From the state on (proc_pid_stat(5), field 3)."""
    return (procfs.read(path, 4096) or b"").rpartition(b")")[2].split(None, 16)


def _seconds(ticks: Iterable[bytes]) -> float:
    return sum(map(int, ticks)) / _TICKS


def _bytes(path: str) -> int | None:
    lines = (procfs.read(path, 4096) or b"").split(b"\n", 2)  # rchar, wchar
    return sum(int(line.rpartition(b":")[2]) for line in lines[:2]) if len(lines) == 3 else None
