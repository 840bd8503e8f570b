"""Whose code a thread runs: the mapped files that the return addresses on its stack lead to.  Nothing is stopped.

A blocked thread's stack pointer is known (`syscall` in proc(5)).  Functions that have returned since may have left
addresses on the stack, so more files may be named than the thread is in, never fewer.  An address to which a function
returns follows an instruction that calls one: that tells it from a number that happens to lie in a large library.
"""

import array
import bisect
import contextlib
import os
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from waitproof.mappings import Mapping as Mapped
from waitproof.mappings import Mappings
from waitproof.stacks import Stack
from waitproof.world import ThreadId, WaitingThread, World

NEAR: Final = 1024  # bytes of the innermost frames
MOST: Final = 256 << 10  # bytes of a stack
KERNEL: Final = 1 << 63
CALLS: Final = 8  # bytes that the longest instruction has that calls a function
PAGE: Final = 12  # bits: a mapping consists of such pages, or of larger ones
_C_LIBRARY: Final = re.compile(r"/(libc|libc-[\d.]+|libpthread[-.\d]*|ld-[\w.-]*)([-.]\S*)?$|^\[vdso\]$")


class Libraries(NamedTuple):
    """`near`: the files whose code the innermost frames of a thread are in, by their paths.  `whole`: the same for its
    whole stack; None if that is too long to be read, or of no interest."""

    near: frozenset[str]
    whole: frozenset[str] | None


class Code(NamedTuple):
    """`threads`: those that were read.  `mapped`: by pid, all files whose code a process may run."""

    threads: Mapping[ThreadId, Libraries] = {}
    mapped: Mapping[int, frozenset[str]] = {}


NOTHING: Final = Code()


def of(world: World, stacks: Mapping[int, Stack]) -> Code:
    """The code of the threads of these Python processes.  Of a thread that runs Python only the innermost frames are of
    interest, and only if it has a timeout, or if its process has threads that do not run Python: all threads that run
    Python can end the same waits."""
    python = {(pid, thread.tid or 0) for pid, stack in stacks.items() for thread in stack.threads if thread.frames}
    found = {pid: world.processes[pid].threads for pid in stacks.keys() & world.processes.keys()}
    mixed = {pid for pid, threads in found.items() if any((pid, thread.tid) not in python for thread in threads)}
    return read(((pid, t) for pid, threads in found.items() for t in threads if t.timed or pid in mixed), python)


def read(threads: Iterable[tuple[int, WaitingThread]], short: Container[ThreadId] = ()) -> Code:
    """The code of those of these threads that are blocked and may be read.  `threads`: each with its process first;
    `short`: those of which the innermost frames are enough."""
    tables, found, programs = Mappings(), dict[ThreadId, Libraries](), dict[int, _Program]()
    with contextlib.ExitStack() as opened:
        for pid, thread in threads:
            where = _position(thread)
            if where is None:
                continue
            if pid not in programs:
                programs[pid] = _Program(pid, tables.all(pid), opened)
            with contextlib.suppress(OSError, ValueError):
                found[pid, thread.tid] = programs[pid].libraries(*where, (pid, thread.tid) in short)
    return Code(found, {pid: frozenset(program.paths.values()) for pid, program in programs.items()})


class _Program:
    """The memory of one process, which is opened and searched once for all of its threads."""

    def __init__(self, pid: int, mappings: Sequence[Mapped], opened: contextlib.ExitStack) -> None:
        self.paths = {mapping.start: mapping.path for mapping in mappings if "x" in mapping.permissions}
        self._mappings, self._starts = mappings, [mapping.start for mapping in mappings]
        # The pages that were met, and of those with code the file, which is empty for nameless memory.
        self._met, self._pages = set[int](), dict[int, str]()
        self._returns = dict[int, bool]()  # of addresses in these, whether a call may return there
        self._memory = -1
        with contextlib.suppress(OSError):
            self._memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, self._memory)

    def libraries(self, stack: int, instruction: int, short: bool) -> Libraries:
        """`stack`, `instruction`: the stack pointer of a thread and the address of its next instruction.  OSError if it
        cannot be read."""
        mapping = self._at(stack)
        size = 0 if mapping is None else mapping.end - stack
        content = os.pread(self._memory, min(size, NEAR if short else MOST) // 8 * 8, stack)
        addresses = array.array("Q", content[: len(content) // 8 * 8])
        here = self._at(instruction)
        near = self._files(addresses[: NEAR // 8]) | ({here.path} if here is not None else set())
        return Libraries(near, None if short or size > MOST else near | self._files(addresses))

    def _files(self, addresses: Sequence[int]) -> frozenset[str]:
        """The files with code to which functions return at these addresses."""
        pages = {address >> PAGE for address in addresses}
        for page in pages - self._met:
            if (mapping := self._at(page << PAGE)) is not None and mapping.start in self.paths:
                self._pages[page] = self.paths[mapping.start]
        self._met |= pages
        code = pages & self._pages.keys()
        return frozenset(self._pages[a >> PAGE] for a in addresses if a >> PAGE in code and self._may_return(a))

    def _may_return(self, address: int) -> bool:
        """Whether a call may return to this address, as far as that cannot be excluded.  The kernel runs what is in its
        own half of the addresses, `[vsyscall]`."""
        if address not in self._returns:
            before = b""
            with contextlib.suppress(OSError):
                before = os.pread(self._memory, CALLS, address - CALLS) if address < KERNEL else bytes(CALLS)
            self._returns[address] = len(before) < CALLS or calls(before)
        return self._returns[address]

    def _at(self, address: int) -> Mapped | None:
        place = bisect.bisect_right(self._starts, address) - 1
        return self._mappings[place] if place >= 0 and address < self._mappings[place].end else None


def calls(before: bytes, machine: str = os.uname().machine) -> bool:
    """Whether the instruction that these bytes end with may call a function: on x86-64 one with the opcodes E8, or FF
    with 2 in bits 3 to 5 of the next byte; on ARM64 BL and BLR."""
    if machine == "x86_64":
        return before[-5] == 0xE8 or any(before[-n] == 0xFF and before[1 - n] >> 3 & 7 == 2 for n in (2, 3, 4, 6, 7))
    instruction = int.from_bytes(before[-4:], "little")
    return machine != "aarch64" or instruction >> 26 == 0b100101 or instruction & 0xFEFFF000 == 0xD63F0000


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
