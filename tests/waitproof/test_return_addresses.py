"""Which numbers on a stack are addresses to which functions return."""

import array
import os
import threading

import pytest

from support.runs import wait_for
from waitproof import libraries, threads
from waitproof.mappings import Mappings

# Instructions as the GNU assembler writes them, and whether they call a function.
X86 = {
    "call rel32": ("e810200000", True),
    "call *%rax": ("ffd0", True),
    "call *%r11": ("41ffd3", True),
    "call *8(%rax)": ("ff5008", True),
    "call *8(%rsp)": ("ff542408", True),
    "call *0x1000(%rip)": ("ff1500100000", True),
    "call *0x1000(%rax,%rbx,8)": ("ff94d800100000", True),
    "jmp *%rax": ("ffe0", False),
    "mov %rax,%rbx": ("4889c3", False),
    "nop": ("90", False),
}
ARM = {
    "bl .+4096": ("00040094", True),
    "blr x8": ("00013fd6", True),
    "blraa x8, x9": ("09093fd7", True),
    "br x8": ("00011fd6", False),
    "ret": ("c0035fd6", False),
}
CODES = [("x86_64", *row) for row in X86.values()] + [("aarch64", *row) for row in ARM.values()]


@pytest.mark.parametrize(("machine", "code", "calls"), CODES, ids=[*X86, *ARM])
def test_a_return_address_follows_a_call(machine: str, code: str, calls: bool) -> None:
    assert libraries.calls(bytes.fromhex(code).rjust(libraries.CALLS, b"\x90"), machine) is calls


@pytest.mark.parametrize("returns", [True, False])
def test_a_number_names_a_library_only_if_a_function_may_return_there(
    returns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the stack of a real thread, as it is read with one number more."""
    lock, pid = threading.Lock(), os.getpid()
    lock.acquire()
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    try:
        tid, really = thread.native_id or 0, os.pread
        wait_for(lambda: threads.thread(pid, tid, Mappings()).state == "S", "its wait")
        code = next(m for m in Mappings().all(pid) if "x" in m.permissions and "/_ctypes." in m.path)
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            content = really(memory.fileno(), code.end - code.start, code.start)
        places = range(libraries.CALLS, len(content))
        at = next(n for n in places if libraries.calls(content[n - libraries.CALLS : n]) is returns)

        def read(fd: int, size: int, place: int) -> bytes:
            found = really(fd, size, place)
            return found if size <= libraries.CALLS else array.array("Q", [code.start + at]).tobytes() + found[8:]

        monkeypatch.setattr(os, "pread", read)
        seen = libraries.read([(pid, threads.thread(pid, tid, Mappings()))], {(pid, tid)}).threads[pid, tid]
        assert (code.path in seen.near) is returns
    finally:
        monkeypatch.undo()
        lock.release()
        thread.join()
