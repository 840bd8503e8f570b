"""SIGTERM from outside to a PID 1 that has just been executed: how many of those sent after so many ms it obeys.

python tests/proof/bench/bench_early.py [PROGRAM...]      each in one word, with its options; the command is added
The kernel drops a signal for PID 1 that has neither a handler nor a mask for it, and says so to nobody.
"""

import ctypes
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
AFTER = (0, 2, 5, 10, 15, 20, 30, 40, 60, 80, 120)  # ms
EACH = 8
COMMAND = ("sleep", "1")  # ends with 0 where the signal is lost
NEWNS, NEWPID, REC, PRIVATE = 0x20000, 0x20000000, 0x4000, 0x40000
libc = ctypes.CDLL(None)


def pid1(words: list[str]) -> tuple[int, int, int]:
    """Execute it as PID 1 of a new namespace: its parent's pid, its own as seen from here, and a pipe that ends when it
    is executed."""
    executed, until_then = os.pipe2(os.O_CLOEXEC)
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        libc.unshare(NEWNS | NEWPID)
        child = os.fork()
        if child == 0:
            libc.mount(b"none", b"/", None, REC | PRIVATE, None)
            libc.mount(b"proc", b"/proc", b"proc", 0, None)
            null = os.open("/dev/null", os.O_RDWR)
            for number in range(3):
                os.dup2(null, number)
            os.execvp(words[0], words)
        os.close(until_then)
        os.write(writer, str(child).encode())
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
    os.close(until_then)
    os.close(writer)
    child = int(os.read(reader, 32))
    os.close(reader)
    return parent, child, executed


def obeyed(words: list[str], after: float) -> bool:
    parent, child, executed = pid1(words)
    os.read(executed, 1)
    os.close(executed)
    until = time.perf_counter() + after / 1000
    while time.perf_counter() < until:  # not a sleep, which wakes up late
        pass
    os.kill(child, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(parent, 0)[1]) != 0


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        os.environ["TMPDIR"] = folder  # the run dirs of all, which have none of their own, are in it
        measure()


def measure() -> None:
    ftrun = f"{sys.executable} -I {ROOT / 'bin' / 'ftrun'} --no-auto-beat --"
    programs = sys.argv[1:] or [ftrun, *(["tini --"] if shutil.which("tini") else [])]
    print("ms after the exec: " + " ".join(f"{after:>4}" for after in AFTER))
    for program in programs:
        words = [*shlex.split(program), *COMMAND]
        counts = [sum(obeyed(words, after) for _ in range(EACH)) for after in AFTER]
        print(f"of {EACH} obeyed:      " + " ".join(f"{count:>4}" for count in counts) + f"  {program}")


if __name__ == "__main__":
    main()
