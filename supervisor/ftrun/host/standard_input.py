"""The standard input of the command, from which a program itself may come: `ftrun python - <<EOF`, `ftrun bash -s`."""

import fcntl
import os
import stat
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ftrun.host.inotify import Inotify


class StandardInput:
    """Created before the first start.  A regular file can be given to each attempt from where it was then; what
    was read from a pipe or a socket is gone.  Terminals and devices, such as /dev/null, are left alone."""

    def __init__(self) -> None:
        self._offset: int | None = None
        self._waiting: int | None = None  # bytes in the pipe or socket; None: it is neither
        self._reads: Inotify | None = None
        self._is_spent = False
        with suppress(OSError):  # closed, or nothing that can be observed
            mode = _mode()
            if stat.S_ISREG(mode):
                self._offset = os.lseek(0, 0, os.SEEK_CUR)
            elif stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                self._waiting = _waiting()
                self._reads = _watch_reads()

    def rewind(self) -> None:
        """Before each start: a regular file is where it was at the first one."""
        if self._offset is not None:
            with suppress(OSError):  # a network disk that has lost the file: the command sees that as well
                os.lseek(0, self._offset, os.SEEK_SET)

    def is_spent(self) -> bool:
        """Whether something was read from the pipe or socket, which no other attempt can read again."""
        if self._waiting is None or self._is_spent:
            return self._is_spent
        try:
            less = _waiting() < self._waiting
        except OSError:
            less = False
        self._is_spent = less or (self._reads is not None and any(event.mask & ACCESS for event in self._reads.read()))
        if self._is_spent:
            self.close()
        return self._is_spent

    def close(self) -> None:
        if self._reads is not None:
            self._reads.close()
            self._reads = None


class RankInputs:
    """Regular files share their position between all that inherit them, so that each rank gets one that was opened for
    it, once and before the first start, and is where the standard input was then."""

    def __init__(self) -> None:
        self._offset: int | None = None
        self._opened: dict[int, int] = {}  # by local rank; rank 0 has the standard input itself
        with suppress(OSError):
            if stat.S_ISREG(_mode()):
                self._offset = os.lseek(0, 0, os.SEEK_CUR)

    def of_starting(self, local_rank: int) -> int | None:
        """For a rank that is about to start, at the offset where it reads; None: it inherits the standard input."""
        if self._offset is None:
            return None
        with suppress(OSError):  # not permitted to open it: `refusal` was asked before whether that matters
            if local_rank and local_rank not in self._opened:
                self._opened[local_rank] = _open_again()
            os.lseek(self._opened.get(local_rank, 0), self._offset, os.SEEK_SET)
        return self._opened.get(local_rank)

    def close(self) -> None:
        while self._opened:
            os.close(self._opened.popitem()[1])


def refusal() -> str | None:
    """Why several processes cannot each read a program from the standard input; None: they can, or there is none."""
    try:
        mode = _mode()
    except OSError:
        return None
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return "it is a pipe or a socket, of which each would get a part"
    try:
        if stat.S_ISREG(mode):
            os.close(_open_again())
    except OSError as error:
        return f"it cannot be opened for each of them: {error.strerror}"
    return None


def _mode() -> int:
    """Zero for a descriptor of ftrun, which may have number 0 if that was closed at the start.  Raises OSError."""
    return 0 if fcntl.fcntl(0, fcntl.F_GETFD) & fcntl.FD_CLOEXEC else os.fstat(0).st_mode


def _open_again() -> int:
    return os.open("/proc/self/fd/0", os.O_RDONLY | os.O_CLOEXEC)


ACCESS, ONESHOT = 0x1, 0x80000000  # of inotify(7)


def _waiting() -> int:
    import termios  # only for a pipe or a socket

    return int.from_bytes(fcntl.ioctl(0, termios.FIONREAD, bytes(4)), sys.byteorder)


def _watch_reads() -> "Inotify | None":
    """The first read is an event.  Linux does not keep the access time of pipes any more."""
    from ftrun.host.inotify import Inotify  # loads ctypes: only for a pipe or a socket

    try:
        watch = Inotify()
    except OSError:
        return None
    try:
        watch.add("/proc/self/fd/0", ACCESS | ONESHOT)
    except OSError:
        watch.close()
        return None
    return watch
