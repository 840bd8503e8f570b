"""Whose code a thread runs: the mapped files that the return addresses on its stack lead to.  Nothing is stopped.

A blocked thread's stack pointer is known (`syscall` in proc(5)).  Functions that have returned since may have left
addresses on the stack, so more files may be named than the thread is in, never fewer.
"""

import array
import bisect
import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from waitproof.mappings import Mapping as Mapped
from waitproof.mappings import Mappings
from waitproof.stacks import Stack
from waitproof.world import WaitingThread, World

NEAR: Final = 1024  # bytes of the innermost frames
MOST: Final = 256 << 10  # bytes of a stack
_C_LIBRARY: Final = re.compile(r"/(libc|libc-[\d.]+|libpthread[-.\d]*|ld-[\w.-]*)([-.]\S*)?$|^\[vdso\]$")
Node = tuple[int, int]  # pid and tid


class Libraries(NamedTuple):
    """`near`: the files whose code the innermost frames of a thread are in, by their paths.  `whole`: the same for its
    whole stack; None if that is too long to be read."""

    near: frozenset[str]
    whole: frozenset[str] | None


class Code(NamedTuple):
    """`threads`: those that were read.  `mapped`: by pid, all files whose code a process may run."""

    threads: Mapping[Node, Libraries] = {}
    mapped: Mapping[int, frozenset[str]] = {}


NOTHING: Final = Code()


def of(world: World, stacks: Mapping[int, Stack]) -> Code:
    """Of the threads of these Pythons: those that run no Python, and those that wait for a lock, or for a
    descriptor."""
    python = {(pid, thread.tid) for pid, stack in stacks.items() for thread in stack.threads if thread.frames}
    threads = [
        (pid, thread) for pid in stacks.keys() & world.processes.keys() for thread in world.processes[pid].threads
    ]
    return read(node for node in threads if (node[0], node[1].tid) not in python or _may_be_native(node[1]))


def _may_be_native(thread: WaitingThread) -> bool:
    """Whether what a thread of Python waits for depends on the library that it waits in."""
    call = thread.call
    return call is not None and (call.kind in ("futex", "in", "out") or (call.kind == "poll" and thread.timed))


def read(threads: Iterable[tuple[int, WaitingThread]]) -> Code:
    """Of these threads, each with its process first, those that are blocked and may be read."""
    tables, found = Mappings(), dict[Node, Libraries]()
    codes = dict[int, list[Mapped]]()
    for pid, thread in threads:
        where = _position(thread)
        if where is None:
            continue
        if pid not in codes:
            codes[pid] = [mapping for mapping in tables.all(pid) if "x" in mapping.permissions]
        with contextlib.suppress(OSError, ValueError):
            found[pid, thread.tid] = _libraries(pid, *where, codes[pid], tables)
    return Code(found, {pid: frozenset(mapping.path for mapping in code) for pid, code in codes.items()})


def _libraries(pid: int, stack: int, program: int, codes: list[Mapped], tables: Mappings) -> Libraries:
    """`stack`, `program`: its stack pointer and the address of its next instruction."""
    end = next((m.end for m in tables.all(pid) if m.start <= stack < m.end), stack)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        content = os.pread(memory.fileno(), min(end - stack, MOST) // 8 * 8, stack)
    addresses = array.array("Q", content[: len(content) // 8 * 8])
    near = _files([program, *addresses[: NEAR // 8]], codes)
    return Libraries(near, None if end - stack > MOST else near | _files(addresses, codes))


def innermost(pid: int, thread: WaitingThread) -> str | None:
    """The file whose code has called the C library in which this thread is blocked; None: it cannot be read."""
    where = _position(thread)
    if where is None:
        return None
    tables = Mappings()
    codes = [mapping for mapping in tables.all(pid) if "x" in mapping.permissions]
    stack, program = where
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        content = os.pread(memory.fileno(), NEAR, stack)
        for address in (program, *array.array("Q", content[: len(content) // 8 * 8])):
            path = next((m.path for m in codes if m.start <= address < m.end), None)
            if path is not None and not _C_LIBRARY.search(path):
                return path
    return None


def _position(thread: WaitingThread) -> tuple[int, int] | None:
    """The stack pointer and the address of the next instruction of a blocked thread (`syscall` in proc(5))."""
    fields = thread.line.split()
    if len(fields) < 3 or fields[0] == "-1" or not fields[0].isdecimal():
        return None
    return int(fields[-2], 16), int(fields[-1], 16)


def _files(addresses: Iterable[int], codes: list[Mapped]) -> frozenset[str]:
    if not codes:
        return frozenset()
    starts, least, most = [m.start for m in codes], codes[0].start, codes[-1].end
    found = set[str]()
    for address in addresses:
        if least <= address < most:
            mapping = codes[bisect.bisect_right(starts, address) - 1]
            if address < mapping.end:
                found.add(mapping.path)
    return frozenset(found)
