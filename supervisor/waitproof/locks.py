"""File locks: who waits for which, and who holds it, as /proc shows them.  No file system is accessed."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from waitproof import files, procfs
from waitproof.world import Descriptor

TABLE: Final = 4 << 20  # bytes of /proc/locks


def table() -> tuple[dict[str, set[int]], dict[tuple[int, str], set[int]]]:
    """The processes that hold a lock, by inode; and those that block a process, by that process and the inode
    (proc_locks(5)).

    The kernel lists a process that waits directly below the lock that blocks it, and omits both if the holder is in
    another PID namespace.  The holder is -1 for a lock of an open file description.
    """
    holders, blockers = dict[str, set[int]](), dict[tuple[int, str], set[int]]()
    group, seen = "", set[int]()
    for line in (procfs.read("/proc/locks", TABLE) or b"").decode("ascii", "replace").splitlines():
        fields = line.split()
        if not fields:
            continue
        if fields[0] != group:
            group, seen = fields[0], set()
        waits = "->" in fields
        fields = [field for field in fields if field != "->"]
        if len(fields) < 6:
            continue
        pid, inode = int(fields[4]), fields[5].rpartition(":")[2]
        if waits:
            blockers.setdefault((pid, inode), set()).update(seen)
        else:
            holders.setdefault(inode, set()).add(pid)
        seen.add(pid)
    return holders, blockers


def inode(pid: int, fd: int) -> str:
    """The inode as in /proc/locks, from fdinfo, which does not access the file system; ValueError if it is not
    there."""
    match = re.search(r"^ino:\s*(\d+)", files.information(pid, fd), re.M)
    if match is None:
        raise ValueError("fdinfo has no inode")
    return match[1]


def open_files(opened: Mapping[int, Mapping[int, Descriptor]], inodes: Iterable[str]) -> dict[str, set[int]]:
    """By inode, the processes that have an open file which holds a lock on it: each process that has inherited an open
    file can release its lock."""
    found: dict[str, set[int]] = {inode: set() for inode in inodes}
    for pid, fds in opened.items() if found else ():
        for fd, end in fds.items():
            if end.kind in ("file", "device"):
                for held in re.findall(r"^lock:.*:(\d+) \S+ \S+$", files.information(pid, fd), re.M):
                    if held in found:
                        found[held].add(pid)
    return found
