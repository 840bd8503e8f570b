"""What may never come back: each in a thread of its own, which is left behind if it does not."""

import os
import stat
import threading
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from ftrun.core.text import redaction
from ftrun.host import procfs

T = TypeVar("T")
LINES: Final = 200
TAIL: Final = 65536  # bytes of a file that are looked at
COMMAND: Final = 300  # characters of a command line


class Task(Generic[T]):
    """A call under way.  `value` once it has come back; `problem` if it raised."""

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
        """Whether it has come back, within `seconds`."""
        self._thread.join(max(0.0, seconds))
        return not self.running


def commands(pids: Iterable[int], into: dict[int, str]) -> None:
    """The command lines, without secrets, each as soon as it is known: reading one waits for a lock of its memory."""
    for pid in pids:
        words = (procfs.read(f"/proc/{pid}/cmdline", 4 * COMMAND) or b"").rstrip(b"\0").split(b"\0")
        into[pid] = " ".join(redaction.command([os.fsdecode(word) for word in words]))[:COMMAND]


def tail(path: str) -> str:
    """The last lines of a regular file; OSError or ValueError where there is none."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise ValueError("it is no regular file")
        content = os.pread(fd, TAIL, max(0, about.st_size - TAIL))
    finally:
        os.close(fd)
    lines = content.decode("utf-8", "replace").splitlines()
    if about.st_size > TAIL:
        lines = lines[1:]  # cut in the middle
    return "\n".join(lines[-LINES:])
