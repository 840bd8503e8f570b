"""Run programs that may never end: each has a deadline, is killed when it passes, and dies with this process."""

import ctypes
import os
import select
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

OUTPUT: Final = 8 << 20  # bytes of the output of one program
ERRORS: Final = 4096  # bytes of its stderr
PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None)  # loaded before the fork: the child only calls it


class ProgramResult(NamedTuple):
    """`killed`: it did not end in time, or its output was too long."""

    output: bytes
    errors: bytes
    killed: bool = False


class _Child:
    """`log`: a file for its stderr.  OSError if it cannot be started."""

    def __init__(self, number: int, command: Sequence[str], log: int, due: float) -> None:
        self.number, self.log, self.due = number, log, due
        self.content = bytearray()
        read, written = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=log,
                start_new_session=True,
                preexec_fn=partial(_bind, os.getpid()),
            )
        except OSError:
            os.close(read)
            raise
        finally:
            os.close(written)
        self.output = read

    def read(self) -> bool:
        """Read what is available; returns whether that was the end."""
        try:
            chunk = os.read(self.output, 1 << 16)
        except BlockingIOError:
            return False
        self.content += chunk
        return not chunk or len(self.content) > OUTPUT

    def kill(self, timed_out: bool) -> ProgramResult:
        """Kill it without waiting for its end: a process that is stuck in the kernel does not die."""
        self.process.kill()
        errors = os.pread(self.log, ERRORS, 0)
        os.close(self.output)
        os.close(self.log)
        return ProgramResult(bytes(self.content), errors, timed_out or len(self.content) > OUTPUT)


def _bind(parent: int) -> None:
    """Have the kernel kill this child when its parent dies, also if it just did.  Between fork and exec."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(127)


def run(
    commands: Sequence[Sequence[str]], at_once: int, each: float, until: float
) -> Iterator[tuple[int, ProgramResult]]:
    """Run the commands in this order, `at_once` at a time, each for at most `each` s; yields index and result as they
    end.

    Commands that were not started by `until` (CLOCK_MONOTONIC) are left out.  The program is an absolute path.
    """
    waiting = deque(enumerate(commands))
    running: dict[int, _Child] = {}
    killed = list[subprocess.Popen[bytes]]()
    poll = select.poll()
    try:
        while True:
            while waiting and len(running) < at_once and (now := time.monotonic()) < until:
                number, command = waiting.popleft()
                log = os.memfd_create("stderr", os.MFD_CLOEXEC)
                try:
                    child = _Child(number, command, log, min(now + each, until))
                except OSError as error:  # no more processes or descriptors
                    os.close(log)
                    yield number, ProgramResult(b"", str(error).encode())
                    continue
                running[child.output] = child
                poll.register(child.output, select.POLLIN)
            if not running:
                return
            wait = min(child.due for child in running.values()) - time.monotonic()
            ended = {fd for fd, _ in poll.poll(max(0.0, wait) * 1000 + 1) if running[fd].read()}
            now = time.monotonic()
            for fd, child in list(running.items()):
                if fd in ended or child.due <= now:
                    poll.unregister(fd)
                    killed.append(child.process)
                    yield child.number, running.pop(fd).kill(fd not in ended)
            killed = [process for process in killed if process.poll() is None]
    finally:
        for child in running.values():
            child.kill(True)
