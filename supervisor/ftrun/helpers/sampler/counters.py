"""Measures the activity of a process tree in a period: CPU time, bytes read and written, ended children.

A process inherits the CPU time and I/O of a child when it waits for that child; only what the child did since the last
sample is new.  So the work of a shell loop is measured even if its children end within a period.
"""

from collections.abc import Iterable
from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.host.procfs import Stat
from waitproof import procfs
from waitproof.procfs import TICKS

Process = tuple[int, int]  # pid and start time


class Count(NamedTuple):
    """Totals of a process, in seconds and bytes: `main` of the main thread; `all` of all threads; `children` of those
    that it waited for; `io` of all threads and those children, None without permission.  `reaped`: page faults of those
    children, which show that there were any."""

    main: float
    all: float
    children: float
    io: int | None
    reaped: int


NOTHING: Final = Count(0.0, 0.0, 0.0, 0, 0)


def count(process: Stat) -> Count | None:
    """The totals of a process; None if it has vanished."""
    _, own = procfs.fields(f"/proc/{process.pid}/stat")
    _, main = ("", own) if process.threads == 1 else procfs.fields(f"/proc/{process.pid}/task/{process.pid}/stat")
    if len(own) < 15 or len(main) < 15:
        return None
    io = _bytes(f"/proc/{process.pid}/io")
    return Count(_seconds(main[11:13]), _seconds(own[11:13]), _seconds(own[13:15]), io, int(own[8]) + int(own[10]))


def counts(processes: Iterable[Stat]) -> dict[Process, Count]:
    """The totals of all processes.  A zombie is included: no process has inherited its figures yet."""
    found = {(process.pid, process.start): count(process) for process in processes}
    return {process: counted for process, counted in found.items() if counted is not None}


def activity(before: dict[Process, Count], after: dict[Process, Count]) -> tuple[float, int]:
    """The activity between two samples: seconds of CPU, and bytes.  All figures of a new process are new; those of one
    that ended are now part of those of the process that waited for it.  If none waited, too much is subtracted from the
    inherited figures, but never from those of processes that waited for no child."""
    ended = [earlier for process, earlier in before.items() if process not in after]
    changes = [(before.get(process, NOTHING), now) for process, now in after.items()]
    main = sum(max(0.0, now.main - earlier.main) for earlier, now in changes)
    inherited = sum(now.children - earlier.children for earlier, now in changes)
    transfers = [
        (earlier, now, now.io - earlier.io) for earlier, now in changes if now.io is not None and earlier.io is not None
    ]
    own_io = sum(io for earlier, now, io in transfers if now.reaped == earlier.reaped)
    io = sum(io for _, _, io in transfers) - sum(earlier.io or 0 for earlier in ended)
    cpu = main + max(0.0, inherited - sum(earlier.all + earlier.children for earlier in ended))
    return cpu, max(0, own_io, io)


def _seconds(ticks: Iterable[bytes]) -> float:
    return sum(map(int, ticks)) / TICKS


def _bytes(path: str) -> int | None:
    lines = (procfs.read(path, 4096) or b"").split(b"\n", 2)  # rchar, wchar
    return sum(int(line.rpartition(b":")[2]) for line in lines[:2]) if len(lines) == 3 else None
