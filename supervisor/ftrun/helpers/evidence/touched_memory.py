"""Which memory a process touches, by the accessed bits of its page tables (/proc/<pid>/smaps, clear_refs; proc(5)).

A processor sets the bit of a page when it looks the page up, and then keeps the result (in its TLB).  The kernel does
not make it forget that when the bits are cleared, so that a page which is used all the time can look untouched: in half
of all windows of 20 ms on a machine with nothing else to do.  Only after `clear(..., exact=True)` is nothing missed.
"""

import os
import re
from collections.abc import Container, Iterable
from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.helpers.evidence.world import ACCELERATORS
from ftrun.host import procfs

LIMIT: Final = 64 << 20  # bytes of one table
# Flags of mappings whose pages are not counted: of devices, of memory that is no page, and huge pages of a file.
_UNSEEN: Final = frozenset({"io", "pf", "mm", "ht"})
# Of which the kernel may fill buffers, which are private memory, at any time (io_submit(2), io_uring(7)).
_ASYNCHRONOUS: Final = ("/[aio]", "anon_inode:[io_uring]")
_SIZES: Final = frozenset({"Rss", "Shared_Clean", "Shared_Dirty", "Referenced", "Anonymous"})
_KERNELS: Final = ("[vvar]", "[vvar_vclock]", "[vsyscall]")
# Programs that read no clock, no random number and no counter of the processor but by a system call or the vDSO: the
# interpreter, its own modules, and the C library; also zlib and libffi, which nearly each interpreter loads, so that
# they look touched whenever another one ends.  What libffi calls is code of another mapping.  An interpreter may have
# been built with other libraries in its own files (clocks.py).
_OWN: Final = r"/(lib)?python\d[^/]*$|/lib-dynload/(?!_ctypes)[^/]+\.so$"
_INTERPRETER: Final = re.compile(rf"{_OWN}|/(libc|libm|libpthread|libz|libffi)[-.][^/]*$|/ld-(linux|musl)[^/]*$")
_BUILT: Final = re.compile(_OWN)


# Files of the C library, which no program waits for.  Each process that ends makes them look touched for all others.
_LOCALE: Final = re.compile(r"^/usr/(lib|share)/locale/|/gconv/gconv-modules\.cache$")


class Area(NamedTuple):
    """One mapping.

    `touched`: bytes that were read or written since the bits were cleared.  `common`: whether it has pages that other
    processes map, too, so that they look touched when another process ends: of a file, or from before a fork.
    `unseen`: the kernel does not know whether it is touched.  `offset`: where in its file it begins.
    """

    start: int
    end: int
    permissions: str
    path: str
    common: bool = False
    touched: int = 0
    unseen: bool = False
    offset: int = 0

    @property
    def is_shared(self) -> bool:
        return self.permissions[3:4] == "s"

    @property
    def is_written(self) -> bool:
        """Whether the process alone can have written to it."""
        return self.permissions[1:2] == "w" and not self.is_shared

    @property
    def is_locale(self) -> bool:
        return bool(_LOCALE.search(self.path))

    @property
    def is_code(self) -> bool:
        return "x" in self.permissions


def clear(pid: int, *, exact: bool = False) -> None:
    """Forget what was touched so far.  OSError if that is refused.

    `exact`: the processors forget it too, so that each page which is touched from now on is seen.  The kernel flushes
    their TLBs when it clears the marks of written pages, which is for programs like CRIU that save what has changed;
    where it keeps such marks (CONFIG_MEM_SOFT_DIRTY), the next write to each page costs a page fault.
    """
    with open(f"/proc/{pid}/clear_refs", "wb", buffering=0) as file:
        file.write(b"1")
        if exact:
            file.write(b"4")


def read(pid: int) -> list[Area]:
    """All mappings; empty if access is denied."""
    found: list[Area] = []
    sizes: dict[str, int] = {}  # in kB, of the last one
    for line in os.fsdecode(procfs.read(f"/proc/{pid}/smaps", LIMIT) or b"").splitlines():
        name, separator, value = line.partition(":")
        if name in _SIZES:
            sizes[name] = int(value.split()[0])
        elif name == "VmFlags":
            copied = sizes.get("Anonymous", 0)  # pages of its own
            common = bool(sizes.get("Rss", 0) - copied or sizes.get("Shared_Clean") or sizes.get("Shared_Dirty"))
            unseen = bool(_UNSEEN & set(value.split()))
            found[-1] = found[-1]._replace(touched=sizes.get("Referenced", 0) << 10, common=common, unseen=unseen)
        elif not separator or " " in name:  # 7f00-7f01 rw-p 00000000 00:00 0  /path
            fields = line.split(None, 5)
            start, _, end = fields[0].partition("-")
            path = fields[5] if len(fields) > 5 else ""
            found.append(Area(int(start, 16), int(end, 16), fields[1], path, offset=int(fields[2], 16)))
            sizes = {}
    return found


def built(pid: int) -> list[Area]:
    """The code of the interpreter's own files and of its modules."""
    return [area for area in read(pid) if area.is_code and _BUILT.search(area.path)]


def influences(areas: Iterable[Area], harmless: str = "", clocked: Container[str] = ()) -> dict[str, str]:
    """What the process uses that may change without its doing: for each mapping a text like `reads ...`.  `harmless`:
    the path of a file that does not count.  `clocked`: files with code that may read a clock of the processor.

    The bits of the page of a file are those of all processes that map it: one which ends makes it look touched.
    """
    areas = list(areas)
    programs = {area.path for area in areas if area.is_code}
    found: dict[str, str] = {}
    for area in areas:
        what = None
        if area.path.startswith(_ASYNCHRONOUS):
            what = "has asynchronous input or output, which may change its memory"
        elif area.unseen and area.path not in _KERNELS and not area.path.startswith(ACCELERATORS):
            what = f"has memory that cannot be observed, {area.path or 'without a name'}"
        elif not area.touched or area.path == harmless or area.is_locale:
            continue
        elif area.is_shared:
            what = f"uses memory that others may change, {area.path or 'without a name'}"
        elif area.is_code:
            what = runs(area, clocked)
        elif area.path.startswith("/") and area.path not in programs:
            what = f"reads the mapped file {area.path}"
        if what is not None:
            found[f"{area.start:x} {what}"] = what
    if not any(area.touched and area.is_code for area in areas):
        found[""] = "runs code of which nothing is known"
    return found


def runs(area: Area | None, clocked: Container[str] = ()) -> str | None:
    """What may influence a process that runs code in this area; None: nothing.  `clocked`: as above."""
    if area is not None and area.path == "[vdso]":
        return "asks for the time"
    if area is None or not _INTERPRETER.search(area.path):
        return f"runs code of {os.path.basename(area.path if area else '') or 'no file'}"
    if area.path in clocked:
        return f"runs code of {os.path.basename(area.path)}, which may read a clock of the processor"
    return None
