"""A program without Python in it, made without a compiler: it waits on a futex that nobody wakes."""

from __future__ import annotations

import os
import platform
import struct
from typing import NoReturn

from ftrun.hang.setting import Cannot

# futex(stack, FUTEX_WAIT_PRIVATE, 1, no timeout), again and again.  What lies on top of a new program's stack is argc:
# 1, the very value that the call wants to find there.
CODE = {
    "x86_64": bytes.fromhex("b8ca000000 4889e7 be80000000 ba01000000 4d31d2 0f05 ebe7"),
    "aarch64": struct.pack("<7I", 0xD2800C48, 0x910003E0, 0x52801001, 0x52800022, 0xD2800003, 0xD4000001, 0x17FFFFFA),
}
ELF_MACHINE = {"x86_64": 62, "aarch64": 183}
BASE, HEADERS = 0x400000, 64 + 56


def become_futex_wait() -> NoReturn:
    """This process, with its pid and its streams, is that program from now on.  `Cannot` where it may not be."""
    machine = platform.machine()
    if machine not in CODE:
        raise Cannot(f"there is no such program for {machine} machines")
    try:
        program = os.memfd_create("trainer")
        os.write(program, _elf(CODE[machine], ELF_MACHINE[machine]))
        os.execve(program, ["trainer"], os.environ)
    except OSError as error:
        raise Cannot(f"a program in memory may not be executed here: {error.strerror}") from None


def _elf(code: bytes, machine: int) -> bytes:
    """elf(5): the file header, one segment that is loaded, the code."""
    size = HEADERS + len(code)
    kind, version, executable, loaded, read_execute = b"\x7fELF\2\1\1", 1, 2, 1, 5
    file = (executable, machine, version, BASE + HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = (loaded, read_execute, 0, BASE, BASE, size, size, 0x10000)
    return struct.pack("<16sHHIQQQIHHHHHH", kind, *file) + struct.pack("<IIQQQQQQ", *segment) + code
