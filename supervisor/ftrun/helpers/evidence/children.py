"""Run programs that may never end: each has a deadline, is killed when it passes, and dies with this process."""

import os
import select
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.host import spawn

OUTPUT: Final = 8 << 20  # bytes of the output of one program
ERRORS: Final = 4096  # bytes of its stderr


class ProgramResult(NamedTuple):
    """`killed`: it did not end in time, or its output was too long."""

    output: bytes
    errors: bytes
    killed: bool = False


class _Child:
    def __init__(self, number: int, piped: spawn.Piped, log: int, due: float) -> None:
        self.number, self.piped, self.log, self.due = number, piped, log, due
        self.content = bytearray()

    def read(self) -> bool:
        """Read what is available; returns whether that was the end."""
        try:
            chunk = os.read(self.piped.output, 1 << 16)
        except BlockingIOError:
            return False
        self.content += chunk
        return not chunk or len(self.content) > OUTPUT

    def kill(self, timed_out: bool) -> ProgramResult:
        """Kill it without waiting for its end: a process that is stuck in the kernel does not die."""
        os.kill(self.piped.pid, signal.SIGKILL)  # not reaped yet, so the pid is still its own
        errors = os.pread(self.log, ERRORS, 0)
        for fd in (self.piped.output, self.piped.held, self.log):
            os.close(fd)
        return ProgramResult(bytes(self.content), errors, timed_out or len(self.content) > OUTPUT)


def run(
    commands: Sequence[Sequence[str]], at_once: int, each: float, until: float
) -> Iterator[tuple[int, ProgramResult]]:
    """Run the commands in this order, `at_once` at a time, each for at most `each` s; yields index and result as they
    end.

    Commands that were not started by `until` (CLOCK_MONOTONIC) are left out.  The program is an absolute path.
    """
    waiting = deque(enumerate(commands))
    running: dict[int, _Child] = {}
    killed: set[int] = set()
    poll = select.poll()
    try:
        while True:
            while waiting and len(running) < at_once and (now := time.monotonic()) < until:
                number, command = waiting.popleft()
                log = os.memfd_create("stderr", os.MFD_CLOEXEC)
                try:
                    piped = spawn.spawn_helper(command, log)
                except OSError as error:  # no more processes or descriptors
                    os.close(log)
                    yield number, ProgramResult(b"", str(error).encode())
                    continue
                running[piped.output] = _Child(number, piped, log, min(now + each, until))
                poll.register(piped.output, select.POLLIN)
            if not running:
                return
            wait = min(child.due for child in running.values()) - time.monotonic()
            ended = {fd for fd, _ in poll.poll(max(0.0, wait) * 1000 + 1) if running[fd].read()}
            now = time.monotonic()
            for fd, child in list(running.items()):
                if fd in ended or child.due <= now:
                    poll.unregister(fd)
                    killed.add(child.piped.pid)
                    yield child.number, running.pop(fd).kill(fd not in ended)
            killed -= {pid for pid in killed if os.waitpid(pid, os.WNOHANG)[0]}
    finally:
        for child in running.values():
            child.kill(True)
