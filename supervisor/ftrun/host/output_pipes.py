"""Routes the command's output through pipes of ftrun, so that a helper can keep a copy of it (`--log-dir`).

PID 1 holds both ends of each pipe and neither reads nor writes: a helper that dies causes no SIGPIPE in the command,
and the next helper continues where it stopped, since data that was not passed on is still in the pipe.  A terminal and
a closed stream are never captured: job control and `isatty` behave as without ftrun.
"""

import fcntl
import os
from collections.abc import Sequence
from typing import Final

LOG: Final = "output.log"  # file name in the run dir


class OutputPipes:
    """`streams`: the command's stdout and stderr, as `spawn.spawn` takes them; empty if none is captured.  If both are
    the same file they share one pipe, which keeps the order."""

    def __init__(self, numbers: Sequence[int] = (1, 2)) -> None:
        self.streams: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        for number in numbers:
            if not _captured(number):
                continue
            if 1 in self.streams and _file(1) == _file(2):
                self.streams[2] = self.streams[1]
            else:
                self._ends[number], self.streams[number] = os.pipe2(os.O_CLOEXEC)

    def arguments(self, run_dir: str) -> Sequence[str]:
        """Return the helper's arguments; it has the descriptors `descriptors` as 3 and up."""
        return f"{run_dir}/{LOG}", *map(str, self._ends)

    @property
    def descriptors(self) -> Sequence[int]:
        """For each argument but the first: the end to read from, and the stream to write to."""
        return [fd for number, end in self._ends.items() for fd in (end, number)]

    def reader_closed(self, number: int) -> None:
        """The helper reports that the reader of this stream is gone: the command gets SIGPIPE, as it would without
        ftrun."""
        if number not in self._ends:
            return
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(null, self._ends[number], inheritable=False)  # the number stays valid for the next helper
        os.close(null)

    def close_writers(self) -> None:
        """The command and its tree are dead: the helper reaches the end of the pipes when it has passed on
        everything."""
        for fd in set(self.streams.values()):
            os.close(fd)
        self.streams = {}

    def close_readers(self) -> None:
        """No further helper will be started; one that still runs has its own copies of the descriptors."""
        for fd in self._ends.values():
            os.close(fd)
        self._ends = {}


def _captured(number: int) -> bool:
    """Return whether this stream was inherited, is not a terminal and can be written to."""
    try:
        opened_by_ftrun = (
            fcntl.fcntl(number, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        )  # ftrun may have opened that number itself
        writable = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
        return not opened_by_ftrun and writable and not os.isatty(number)
    except OSError:
        return False


def _file(number: int) -> tuple[int, int]:
    status = os.fstat(number)
    return status.st_dev, status.st_ino
