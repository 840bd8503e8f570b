"""What the kernel says about processes, threads, files and sockets: /proc and sock_diag, as the evidence helper reads
it.

The numbers are the kernel's own, so that a reader may refuse anything else with an error, of which an observation that
fails is the only consequence; the names in between are
the user's: of programs, threads, files, sockets and environment variables.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any, Final
from unittest.mock import patch

from ftrun.helpers.evidence import processes
from ftrun.host import procfs as ftrun_procfs
from proof.fuzz.kit import pieces, text
from waitproof import files, interrupts, locks, procfs, sockets, threads, waits
from waitproof.mappings import Mappings
from waitproof.world import Descriptor, Socket

PID: Final = 7
NAMES: Final = ("stat", "schedstat", "syscall", "wchan", "io", "status", "maps", "environ")
DONE: Final = struct.pack("=IHHII", 16, 3, 0, 0, 0)


@contextlib.contextmanager
def proc(**contents: bytes) -> Iterator[None]:
    """Every file of that name, in any folder of /proc; all others are empty."""

    def read(path: str, limit: int = 65536, at_once: bool = False) -> bytes | None:
        return contents.get(os.path.basename(path).replace("-", "_"), b"")[:limit]

    with patch.object(procfs, "read", read), patch.object(ftrun_procfs, "read", read):
        yield


def waiting_thread(content: bytes) -> None:
    """A thread and its system call, whose arguments are addresses in its memory."""
    *found, memory = pieces(content, len(NAMES) + 1)

    def peek(pid: int, at: int, length: int) -> bytes:
        if length > len(memory):
            raise ValueError("the memory is not mapped completely")
        return memory[:length]

    with proc(**dict(zip(NAMES, found, strict=True))), patch.object(threads, "_memory", peek):
        seen = threads.thread(PID, PID, Mappings())
        procfs.environment(PID)
        assert seen.call is not None or seen.problem or seen.running
        for fd, mode in seen.fds:
            assert fd >= 0
            assert mode in ("r", "w", "rw", "rwr", "wr", "rr")
        assert len(seen.line) <= 512


def one_process(content: bytes) -> None:
    found = dict(zip(NAMES, pieces(content, len(NAMES)), strict=True))
    with proc(**found):
        stat = procfs.stat(PID)
        interrupts.read(PID, "")
        if stat is not None:
            processes._process_state(stat)
        if (known := ftrun_procfs.stat(PID)) is not None:
            ftrun_procfs.describe(known)
        ftrun_procfs.environment(PID)
        variables = procfs.environment(PID)
        assert all((threads._number(variables, name) or 0) >= 0 for name in threads._VARIABLES)


def mappings(content: bytes) -> None:
    address, table = pieces(content, 2)
    at = int.from_bytes(address[:6], "little")
    with proc(maps=table):
        found = Mappings()
        assert found.shared(PID) <= {mapping.key for mapping in found._table(PID)}
        found.is_interpreters(PID, at)
        with contextlib.suppress(ValueError):
            found.futex(PID, at)


def file_locks(content: bytes) -> None:
    table, information = pieces(content, 2)
    with proc(locks=table, **{"5": information}):
        held, blockers = locks.table()
        with contextlib.suppress(ValueError):
            assert locks.inode(PID, 5).isdecimal()
        opened = {PID: {5: Descriptor("file", "/x")}}
        locks.open_files(opened, held)
        assert all(pids for pids in held.values())
        assert all(isinstance(pid, int) for pid, _ in blockers)


def open_files(content: bytes) -> None:
    """The link of a descriptor, and what the kernel says about it."""
    link, information = pieces(content, 2)
    with (
        proc(**{"5": information}),
        patch.object(os, "listdir", lambda path: ["5"]),
        patch.object(os, "readlink", lambda path: os.fsdecode(link or b"/")),
        patch.object(os, "lstat", lambda path: os.stat_result((0o500, *(0,) * 9))),
    ):
        for end in files.list_open(PID).values():
            assert end.key
            assert len(end.members) == len(end.inodes)


def socket_tables(content: bytes) -> None:
    """/proc/<pid>/net/*, which are read where the kernel has no sock_diag."""
    tables = dict(zip(("tcp", "tcp6", "udp", "udp6"), pieces(content, 4), strict=True))
    with patch("waitproof.procfs.read", lambda path, limit: tables[path.rpartition("/")[2]]):
        for found in sockets._tables(PID).values():
            _described(found)


class _Netlink:
    """A socket whose kernel answers with these bytes."""

    content = b""

    def __init__(self, *_: Any) -> None:
        self._answers = [DONE, self.content]

    def __enter__(self) -> "_Netlink":
        return self

    def __exit__(self, *_: object) -> None: ...

    def settimeout(self, seconds: float) -> None: ...

    def send(self, request: bytes) -> None: ...

    def recv(self, size: int) -> bytes:
        return self._answers.pop()[:size]


def sock_diag(content: bytes) -> None:
    """A netlink message for each piece, with that as its body; and the whole as it is."""
    for answer in (content, b"".join(map(_message, pieces(content, 4)))):
        netlink = type("Netlink", (_Netlink,), {"content": answer})
        with patch.object(socket, "socket", netlink), patch.object(sockets, "_tables", lambda pid: {}):
            for found in sockets.list_all(os.getpid()).values():
                _described(found)


def _message(body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), 20, 0, 0, 0) + body + b"\0" * (-len(body) % 4)


def _described(found: Socket) -> None:
    assert found.queued >= 0
    assert found.unsent >= 0
    assert isinstance(found.description, str)


def whole_job(content: bytes) -> None:
    """All of it together, for a process with one thread."""
    names = (*NAMES, "locks")
    *found, link = pieces(content, len(names) + 1)
    world = waits.empty(frozenset())
    with (
        proc(**dict(zip(names, found, strict=True))),
        patch.object(os, "listdir", lambda path: [str(PID)]),
        patch.object(os, "readlink", lambda path: text(link)),
        patch.object(os, "lstat", lambda path: os.stat_result((0o500, *(0,) * 9))),
        patch.object(threads, "_memory", lambda pid, at, length: b"\0" * length),
        patch.object(sockets, "list_all", lambda pid: {}),
    ):
        waits.observe_job(world, [PID])
    assert world.processes.keys() == {PID}
