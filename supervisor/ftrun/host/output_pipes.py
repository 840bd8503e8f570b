"""What the command writes goes through pipes of ours, so that a helper can keep a copy of it (`--log-dir`).

PID 1 holds both ends of each pipe and neither reads nor writes: a helper that dies costs the command no SIGPIPE, and
the next one goes on where it stopped, for what it has not passed on is still in the pipe.  A terminal is never
captured, nor is a stream that is closed: job control and `isatty` are as without us.
"""

import fcntl
import os
from collections.abc import Sequence
from typing import Final

LOG: Final = "output.log"  # in the run dir


class OutputPipes:
    """`streams`: the command's stdout and stderr, as `spawn.spawn` takes them; empty where none is to be captured.
    One pipe for both where they are one file, which keeps the order."""

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
        """What the helper is started with; it has the descriptors `passed`, from 3 on."""
        return f"{run_dir}/{LOG}", *map(str, self._ends)

    @property
    def descriptors(self) -> Sequence[int]:
        """For each word but the first: the end that is read, and where that has to go."""
        return [fd for number, end in self._ends.items() for fd in (end, number)]

    def reader_closed(self, number: int) -> None:
        """Nobody reads this stream any more, as the helper says: the command gets SIGPIPE, as it would without us."""
        if number not in self._ends:
            return
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(null, self._ends[number], inheritable=False)  # the number stays, for the next helper
        os.close(null)

    def close_writers(self) -> None:
        """The command and its tree are dead: the helper comes to the end of the pipes when all is passed on."""
        for fd in set(self.streams.values()):
            os.close(fd)
        self.streams = {}

    def close_readers(self) -> None:
        """No helper is to be started any more; one that still runs has ends of its own."""
        for fd in self._ends.values():
            os.close(fd)
        self._ends = {}


def _captured(number: int) -> bool:
    """Whether it was given to us, is no terminal and can be written to."""
    try:
        ours = fcntl.fcntl(number, fcntl.F_GETFD) & fcntl.FD_CLOEXEC  # we may have opened that number ourselves
        writable = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
        return not ours and writable and not os.isatty(number)
    except OSError:
        return False


def _file(number: int) -> tuple[int, int]:
    found = os.fstat(number)
    return found.st_dev, found.st_ino
