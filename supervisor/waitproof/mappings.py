"""The memory mappings of processes, from /proc/<pid>/maps.  Reading one waits for the lock of the process's memory."""

import os
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from waitproof import procfs

LIMIT: Final = 16 << 20  # bytes of one table
# The entries of a ring that its process submits (IORING_OFF_SQES of io_uring(7)).
_RING: Final = re.compile(rb"^\S+ \S+ 0*10000000 \S+ \d+ +anon_inode:\[io_uring\]$", re.M)
_INTERPRETER: Final = re.compile(r"/(lib)?python\d[^/]*$")


class Mapping(NamedTuple):
    """`key`: the mapped file, by device and inode.  `path`: its name, or empty for anonymous memory."""

    start: int
    end: int
    permissions: str
    key: str
    path: str

    @property
    def is_shared(self) -> bool:
        return self.permissions[3:4] == "s"


class Mappings:
    """Reads each table at most once."""

    def __init__(self) -> None:
        self._tables: dict[int, list[Mapping]] = {}
        self.named: set[str] = set()  # the shared files that other programs may open by a name, as far as read
        self.spawned: set[str] = set()  # those that only other processes of the program may open so

    def all(self, pid: int) -> list[Mapping]:
        """All mappings of a process, in the order of their addresses; empty if access is denied."""
        return self._table(pid)

    def shared(self, pid: int) -> set[str]:
        """The shared mappings of a process; empty if access is denied."""
        return {mapping.key for mapping in self._table(pid) if mapping.is_shared}

    def futex(self, pid: int, at: int) -> str:
        """The shared mapping at this address; empty for private memory.  ValueError if nothing is mapped there.

        A private mapping that cannot be written to shows its file: who maps that may wake a thread that waits there
        (get_futex_key in kernel/futex/core.c of Linux)."""
        for mapping in self._table(pid):
            if mapping.start <= at < mapping.end:
                if not mapping.is_shared and ("w" in mapping.permissions or mapping.key == _NONE):
                    return ""
                if not mapping.is_shared:
                    self.named.add(mapping.key)
                return mapping.key
        raise ValueError("the address is not mapped")

    def is_interpreters(self, pid: int, at: int) -> bool:
        """Whether this is the address of a static variable of the Python interpreter: in the data of its file, or in
        the anonymous memory that directly follows it."""
        before: Mapping | None = None
        for mapping in self._table(pid):
            data = "w" in mapping.permissions and bool(_INTERPRETER.search(mapping.path))
            follows = before is not None and before.end == mapping.start and not mapping.path and mapping.key == _NONE
            if mapping.start <= at < mapping.end:
                return data or follows
            before = mapping if data else None
        return False

    def _table(self, pid: int) -> list[Mapping]:
        if pid not in self._tables:
            found = self._tables[pid] = []
            for line in os.fsdecode(procfs.read(f"/proc/{pid}/maps", LIMIT) or b"").splitlines():
                fields = line.split(None, 5)
                if len(fields) > 4:
                    start, _, end = fields[0].partition("-")
                    path, key = " ".join(fields[5:]), f"map:{fields[3]}:{fields[4]}"
                    found.append(Mapping(int(start, 16), int(end, 16), fields[1], key, path))
                    names = _names(pid, path, fields[4]) if found[-1].is_shared else ()
                    if names is None or not all(_SPAWNED.fullmatch(name) for name in names):
                        self.named.add(key)
                    elif names:
                        self.spawned.add(key)
        return self._tables[pid]


_NONE: Final = "map:00:00:0"
# Of sem_open(3), which closes the descriptor at once; of multiprocessing and of torch, which send theirs only to
# processes of the same program.
_UNSENT: Final = ("/dev/shm/sem.", "/dev/shm/pym-", "/dev/shm/torch_")
# A semaphore of multiprocessing, where processes are not forked.  It gives this name, which it draws by lot, to the
# processes that it spawns, and to nobody else (`SemLock.__getstate__` in multiprocessing/synchronize.py).
_SPAWNED: Final = re.compile(r"sem\.mp-[a-z0-9_]{8}")


def _names(pid: int, path: str, inode: str) -> Sequence[str] | None:
    """The names by which a program can open this memory; None: not known, or it may have been given a descriptor.

    A memfd, or a deleted file of the program's own, may have been sent to anybody, who need not have mapped it yet.  A
    semaphore of glibc is mapped from a file that has had another name, so that it seems deleted while it has one.
    """
    if path.startswith("/dev/zero (deleted)"):  # MAP_SHARED with MAP_ANONYMOUS, which only children get
        return ()
    made = path.endswith(" (deleted)") or _SPAWNED.fullmatch(os.path.basename(path)) is not None
    if not path.startswith(_UNSENT) or not made:
        return None
    try:
        with os.scandir(f"/proc/{pid}/root/dev/shm") as entries:
            return [entry.name for entry in entries if str(entry.inode()) == inode]
    except OSError:
        return None


def rings(pid: int) -> frozenset[bytes]:
    """The rings of io_uring that a process has mapped, each with its address, which a forked process has in common with
    its parent: it may have closed their descriptors."""
    return frozenset(_RING.findall(procfs.read(f"/proc/{pid}/maps", LIMIT) or b""))
