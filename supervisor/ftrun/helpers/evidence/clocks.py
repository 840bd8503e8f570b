"""Whether a program can ask the processor for the time or a random number without a trace: by an instruction.

The interpreter itself has no such instruction.  OpenSSL has several, and some builds have it, or other libraries, in
the file of the interpreter or of one of its modules (python-build-standalone has).  What is searched for are the
instructions as compilers and OpenSSL write them: the bare code of `rdtsc` is found in any large program by chance.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from ftrun.helpers.evidence.touched_memory import Area

_PIECE: Final = 4 << 20
_LONGEST: Final = 16  # bytes of what is searched for, at most
_JOINED: Final = b"\x48\xc1\xe2\x20"  # shl $32, %rdx: what was read is in two registers
_RDTSC: Final = b"\x0f\x31" + _JOINED
_RDTSCP: Final = b"\x0f\x01\xf9"  # another register is often stored before they are joined
_RANDOM: Final = b"\x0f\xc7"  # rdrand and rdseed, if a register of 64 bits follows
_MARK: Final = b"CRYPTOGAMS"  # of OpenSSL's programs in assembler, which all libraries that stem from it have


def reading(pid: int, areas: Iterable[Area]) -> frozenset[str]:
    """The files of those areas of code of a process which can do that, or which cannot be read."""
    return frozenset(area.path for area in areas if _reads(f"/proc/{pid}/root{area.path}", area))


def _reads(path: str, area: Area) -> bool:
    left, end = area.end - area.start, b""
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(area.offset)
            while left > 0 and (piece := file.read(min(_PIECE, left))):
                if _has(end + piece):
                    return True
                left, end = left - len(piece), piece[-_LONGEST:]
    except OSError:
        return True
    return False


def _has(code: bytes) -> bool:
    if _RDTSC in code or _MARK in code or any(_JOINED in code[at : at + _LONGEST] for at in _places(_RDTSCP, code)):
        return True
    return any(
        code[at - 1 : at] in (b"\x48", b"\x49") and code[at + 2 : at + 3] >= b"\xf0" for at in _places(_RANDOM, code)
    )


def _places(what: bytes, code: bytes) -> Iterator[int]:
    at = code.find(what)
    while at >= 0:
        yield at
        at = code.find(what, at + 1)
