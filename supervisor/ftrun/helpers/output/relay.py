"""Relays one stream of the command from PID 1's pipe to its original destination, unmodified and without delay.

tee(2) reads data without removing it from the pipe.  To another pipe it is moved by splice(2), so that even SIGKILL
neither loses nor duplicates a byte.  To all other destinations (splice rejects files opened for appending, and ignores
that another program moves the same offset) it is written and then removed; a SIGKILL in between causes a second copy of
at most one pipe buffer.  If tee is not permitted, SIGKILL loses the data in transit.
"""

import ctypes
import errno
import os
import select
import stat
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from ftrun.host.output_pipes import NUMBERS

PIPE_SIZE: Final = 65536  # bytes: the default of Linux
_libc = ctypes.CDLL(None, use_errno=True)


class Listener(Protocol):
    """The owner of several relays, which call it from their own threads."""

    lock: threading.Condition

    def data_read(self, stream: int, data: bytes) -> None:
        """Data has been read, and is forwarded next.  Called with the lock held, which may be released meanwhile."""

    def data_forwarded(self) -> None:
        """All data read so far has been forwarded, or the stream has ended."""

    def reader_gone(self, stream: int) -> None:
        """The destination has no reader any more; the relay has closed the pipe."""

    def problem(self, description: str) -> None:
        """Report one line for a person."""


class Relay(threading.Thread):
    """The thread ends when the pipe has no writer any more, or the destination no reader."""

    def __init__(self, stream: int, source: int, target: int, listener: Listener) -> None:
        super().__init__(daemon=True)
        self.stream, self._source, self._target, self._listener = stream, source, target, listener
        self.first_rank = 0  # number of local rank 0 in the job
        self._to_pipe = stat.S_ISFIFO(os.fstat(target).st_mode)
        self._tee_pipe: tuple[int, int] | None = None  # for tee; None if that is not permitted
        with suppress(OSError):  # there may be no descriptor left
            self._tee_pipe = os.pipe()
        self._ended = False
        self._is_delivering = False  # data has been read that the listener does not have yet
        self._lost = 0  # bytes, since the last ones that arrived

    @property
    def is_drained(self) -> bool:
        """Whether everything written so far has been read.  Call it with the lock held."""
        return self._ended or not (self._is_delivering or select.select([self._source], [], [], 0)[0])

    def run(self) -> None:
        try:
            reader_gone = False
            try:
                self._run()
            except (BrokenPipeError, ConnectionResetError):
                reader_gone = True
            with self._listener.lock:
                self._ended = True
                os.close(self._source)
            if reader_gone:
                self._listener.reader_gone(self.stream)
            self._listener.data_forwarded()
        except BaseException:  # otherwise the command would block forever; the next helper takes over
            traceback.print_exc()
            os._exit(1)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        # An anonymous pipe never gets a new reader: the command must get EPIPE at its next write.
        if self._to_pipe and os.readlink(f"/proc/self/fd/{self._target}").startswith("pipe:"):
            poll.register(self._target, 0)
        while True:
            if self._source not in dict(poll.poll()):
                raise BrokenPipeError
            with self._listener.lock:
                data = self._peek()
                if data:
                    self._is_delivering = True
                    self._listener.data_read(self.stream, data)
                    self._is_delivering = False
            if not data:
                self._finish()
                return
            self._forward(data)
            self._listener.data_forwarded()

    def _peek(self) -> bytes:
        """The data in the pipe, which stays there if tee is permitted; empty at the end of the stream."""
        if self._tee_pipe is not None:
            number = _libc.tee(self._source, self._tee_pipe[1], ctypes.c_size_t(PIPE_SIZE), 0)
            if number >= 0:
                return os.read(self._tee_pipe[0], number) if number else b""
            self._tee_pipe = None
        return os.read(self._source, PIPE_SIZE)

    def _forward(self, data: bytes) -> None:
        self._remove(self._pass_on(data, self._move))

    def _finish(self) -> None:
        """The stream has ended."""

    def _pass_on(self, data: bytes, move: Callable[[memoryview], int]) -> int:
        """Move all data to the target; `move` returns how many bytes it has moved.  Returns how many are lost."""
        left = memoryview(data)
        while left:
            try:
                left = left[move(left) :]
                if self._lost:
                    self._listener.problem(f"output arrives again; {self._lost:,} bytes of it are lost")
                    self._lost = 0
            except BlockingIOError:  # another process has made the shared descriptor non-blocking
                poll = select.poll()
                poll.register(self._target, select.POLLOUT)
                poll.poll()
            except (BrokenPipeError, ConnectionResetError):
                raise
            except OSError as error:  # a full disk: the command cannot get this error, and must not die of it
                if not self._lost:
                    self._listener.problem(f"output is lost: {error.strerror}")
                self._lost += len(left)
                return len(left)
        return 0

    def _move(self, data: memoryview) -> int:
        if self._to_pipe and self._tee_pipe is not None:
            try:
                return os.splice(self._source, self._target, len(data))
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EPERM):
                    raise
                self._to_pipe = False
        written = os.write(self._target, data)
        self._remove(written)
        return written

    def _remove(self, number: int) -> None:
        """Remove data from the pipe, if tee has left it there."""
        while self._tee_pipe is not None and number:
            number -= len(os.read(self._source, number))


class HiddenRelay(Relay):
    """Reads a stream that is kept in a file and not forwarded."""

    def __init__(self, stream: int, source: int, target: int, listener: Listener) -> None:
        super().__init__(stream, source, target, listener)
        self._to_pipe = False  # a reader of the target that is gone does not matter

    def _forward(self, data: bytes) -> None:
        self._remove(len(data))


LONGEST: Final = 65536  # bytes of a line that is held back until it is complete
_ENDS: Final = (b"\n", b"\r")  # a progress bar ends its line with a carriage return


class Destination:
    """A file to which several relays write in turns.  `unfinished`: the relay that has begun the last line there, as a
    line longer than LONGEST is written in parts; None: the last line is complete."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.unfinished: PrefixedRelay | None = None


_DESTINATIONS: Final = dict[tuple[int, int], Destination]()  # by device and inode


class PrefixedRelay(Relay):
    """A line up to LONGEST is held back until it is complete, and written as a whole, so that those of different ranks
    are not mixed.  A longer one is written in parts, and its next part is a line of its own if another rank has written
    meanwhile.  SIGKILL of this program may lose a line, or forward it twice."""

    def __init__(self, stream: int, source: int, target: int, listener: Listener) -> None:
        super().__init__(stream, source, target, listener)
        self._local_rank = stream // NUMBERS
        self._rest = bytearray()
        self._after_return = False  # a newline that follows belongs to the line before it
        status = os.fstat(target)
        self._destination = _DESTINATIONS.setdefault((status.st_dev, status.st_ino), Destination())

    def _forward(self, data: bytes) -> None:
        self._remove(len(data))
        end = max(data.rfind(mark) for mark in _ENDS) + 1
        if end or len(self._rest) + len(data) > LONGEST:
            end = end or len(data)
            self._write(bytes(self._rest) + data[:end])
            self._rest.clear()
        self._rest += data[end:]

    def _finish(self) -> None:
        if self._rest or self._destination.unfinished is self:
            self._write(bytes(self._rest) + b"\n")

    def _write(self, content: bytes) -> None:
        prefix = b"[%d] " % (self.first_rank + self._local_rank)
        marked = prefix.join(content.splitlines(keepends=True))  # of bytes: only \n, \r and \r\n end a line
        destination = self._destination
        with destination.turn:  # a pipe takes more than PIPE_BUF bytes in parts, and other writers in between: pipe(7)
            if destination.unfinished is not self and not (self._after_return and content.startswith(b"\n")):
                marked = (b"\n" if destination.unfinished else b"") + prefix + marked
            self._pass_on(marked, lambda left: os.write(self._target, left))
            destination.unfinished = None if content.endswith(_ENDS) else self
        self._after_return = content.endswith(b"\r")
