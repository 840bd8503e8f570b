"""Reads /proc: every read is bounded, and a process that vanishes meanwhile is no error.

`read`, `stat` and `Stat` are as in ftrun/host/procfs.py, which this package may not import, and which may not import
it: there the functions are also what PID 1 has when no file descriptor is left.
"""

import os
from collections.abc import Iterable
from typing import Final, NamedTuple

TICKS: Final = os.sysconf("SC_CLK_TCK")  # of a second, in which the kernel counts
LISTINGS: Final = 16  # of /proc, after which a table of all processes is taken to be complete


class Stat(NamedTuple):
    """The fields of /proc/<pid>/stat (proc_pid_stat(5)).  `start` is in clock ticks since boot; together with `pid` it
    identifies a process."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    threads: int
    start: int

    @property
    def ended(self) -> bool:
        """Whether it is a zombie or gone.  A zombie leader whose other threads still run has not ended."""
        return self.state in "XxZ" and self.threads <= 1


def read(path: str, limit: int = 65536, at_once: bool = False) -> bytes | None:
    """At most `limit` bytes of a file, or None if it does not exist or may not be read.

    The kernel returns its lists in pieces of about a page; `at_once`: the file is a single record, and one read is
    enough.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        content = piece = os.read(fd, limit)
        while piece and not at_once and len(content) < limit:
            piece = os.read(fd, limit - len(content))
            content += piece
        return content
    except OSError:
        return None
    finally:
        os.close(fd)


def fields(path: str) -> tuple[str, list[bytes]]:
    """The name of a process or a thread in its stat file, and the fields from the state on (proc_pid_stat(5), field 3);
    no fields if it is gone."""
    content = read(path, 4096, at_once=True) or b""
    opened, closed = content.find(b"("), content.rfind(b")")  # the name may hold spaces and brackets
    return content[opened + 1 : closed].decode("utf-8", "replace"), content[closed + 1 :].split()


def stat(pid: int) -> Stat | None:
    name, found = fields(f"/proc/{pid}/stat")
    if not found:
        return None
    return Stat(pid, name, found[0].decode(), *(int(found[index]) for index in (1, 2, 3, 17, 19)))


def all_processes() -> list[Stat]:
    """Every process of this PID namespace, each as it was at some instant of the call.

    A process that is forked after the listing, by a parent that ends before it is read, would be missed, so /proc is
    listed again until no process is new.
    """
    processes: dict[str, Stat | None] = {}
    for _ in range(LISTINGS):
        fresh = [name for name in os.listdir("/proc") if name.isdigit() and name not in processes]
        if not fresh:
            break
        processes.update({name: stat(int(name)) for name in fresh})
    return [process for process in processes.values() if process is not None]


def below(pid: int, processes: Iterable[Stat]) -> set[int]:
    """`pid` and its descendants."""
    parents = {process.pid: process.parent for process in processes}
    found = {pid} & parents.keys()
    while fresh := {child for child, parent in parents.items() if parent in found} - found:
        found |= fresh
    return found


def environment(pid: int) -> dict[str, str]:
    """The initial environment of a process; empty if access is denied."""
    entries = (read(f"/proc/{pid}/environ", 1 << 20) or b"").split(b"\0")
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if entry)
    return {name: value for name, _, value in pairs}


def status(process: int | str) -> dict[str, str]:
    """The fields of /proc/<process>/status, which may also be `<pid>/task/<tid>` (proc_pid_status(5)); none if it is
    gone."""
    lines = (read(f"/proc/{process}/status") or b"").decode("utf-8", "replace").split("\n")
    return {name: value.strip() for name, separator, value in (line.partition(":") for line in lines) if separator}


def program(pid: int) -> str:
    """The path of the file that a process runs; empty if that is not known."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def words(pid: int) -> list[str]:
    """The command line of a process; empty if that is not known."""
    return [os.fsdecode(word) for word in (read(f"/proc/{pid}/cmdline", 1 << 16) or b"").split(b"\0")[:-1]]


def own_number(pid: int) -> int:
    """The number that a process has in its own PID namespace."""
    numbers = status(pid).get("NSpid", "").split()
    return int(numbers[-1]) if numbers else pid
