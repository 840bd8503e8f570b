"""Calls that may never return: each runs in its own thread, which is abandoned if it does not."""

import os
import stat
import threading
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from ftrun.core.text import redaction
from ftrun.host import procfs

T = TypeVar("T")
LINES: Final = 200
TAIL: Final = 65536  # bytes at the end of a file that are read
COMMAND: Final = 300  # characters of a command line


class Task(Generic[T]):
    """A running call.  `value` is set when it has returned, `problem` when it has raised."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.value: T | None = None
        self.problem: str | None = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], T]) -> None:
        try:
            self.value = call()
        except Exception as error:
            self.problem = str(error) or repr(error)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def wait(self, seconds: float) -> bool:
        """Wait for at most `seconds`; returns whether the call has ended."""
        self._thread.join(max(0.0, seconds))
        return not self.running


def read_commands(pids: Iterable[int], into: dict[int, str]) -> None:
    """Store the command lines, without secrets, in `into`, each as soon as it is read: reading one waits for the lock
    of the process's memory."""
    for pid in pids:
        arguments = (procfs.read(f"/proc/{pid}/cmdline", 4 * COMMAND) or b"").rstrip(b"\0").split(b"\0")
        into[pid] = " ".join(redaction.redact_command([os.fsdecode(argument) for argument in arguments]))[:COMMAND]


def tail(path: str, size: int = TAIL) -> str:
    """The last lines of a regular file, in at most `size` bytes; OSError or ValueError if it is not one."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise ValueError("it is not a regular file")
        content = os.pread(fd, size, max(0, about.st_size - size))
    finally:
        os.close(fd)
    lines = content.decode("utf-8", "replace").splitlines()
    if about.st_size > size:
        lines = lines[1:]  # the first line is incomplete
    return "\n".join(lines[-LINES:] if size == TAIL else lines)
