"""One stream of the command: from PID 1's pipe to where it would have gone without us, as it is and at once.

What has not arrived is still in the pipe: it is looked at by tee(2), which takes nothing out.  Into another pipe it is
moved by splice(2), so that even SIGKILL neither loses nor doubles a byte.  Everything else is written to, and what is
written is taken out after that: splice refuses files opened for appending, and does not heed that another program's
writes move the same offset.  A SIGKILL in between costs a second copy of at most a pipeful.
Where tee is not permitted, what a SIGKILL meets on its way is lost.
"""

import ctypes
import errno
import os
import select
import stat
import threading
import traceback
from typing import Final, Protocol

PIPEFUL: Final = 65536  # bytes: the default of Linux
_libc = ctypes.CDLL(None, use_errno=True)


class Listener(Protocol):
    """Told by several relays, each from a thread of its own."""

    lock: threading.Condition

    def seen(self, stream: int, data: bytes) -> None:
        """With the lock held, before it is passed on."""

    def passed(self) -> None:
        """All that was seen is passed on, or the stream is at its end."""

    def broken(self, stream: int) -> None:
        """Nobody reads it any more; the relay has let go of the pipe."""

    def problem(self, what: str) -> None:
        """One line for a person."""


class Relay(threading.Thread):
    """It ends when nobody can write any more, or nobody reads."""

    def __init__(self, stream: int, source: int, target: int, to: Listener) -> None:
        super().__init__(daemon=True)
        self._stream, self._source, self._target, self._to = stream, source, target, to
        self._pipe = stat.S_ISFIFO(os.fstat(target).st_mode)
        self._copy: tuple[int, int] | None = os.pipe()  # for tee; None where that is not permitted
        self._ended = False

    @property
    def dry(self) -> bool:
        """Whether all that was written has been seen.  To be asked under the lock."""
        return self._ended or not select.select([self._source], [], [], 0)[0]

    def run(self) -> None:
        try:
            broken = False
            try:
                self._run()
            except (BrokenPipeError, ConnectionResetError):
                broken = True
            with self._to.lock:
                self._ended = True
                os.close(self._source)
            if broken:
                self._to.broken(self._stream)
            self._to.passed()
        except BaseException:  # the command would wait for us for ever: the next helper has to do it
            traceback.print_exc()
            os._exit(1)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        # A nameless pipe whose reader has left never gets another: the command is to feel it at its next write.
        if self._pipe and os.readlink(f"/proc/self/fd/{self._target}").startswith("pipe:"):
            poll.register(self._target, 0)
        while True:
            if self._source not in dict(poll.poll()):
                raise BrokenPipeError
            with self._to.lock:
                data = self._look()
                if data:
                    self._to.seen(self._stream, data)
            if not data:
                return
            self._pass_on(data)
            self._to.passed()

    def _look(self) -> bytes:
        """What is in the pipe; it stays there, if that is possible.  Nothing: the end."""
        if self._copy is not None:
            number = _libc.tee(self._source, self._copy[1], ctypes.c_size_t(PIPEFUL), 0)
            if number >= 0:
                return os.read(self._copy[0], number) if number else b""
            self._copy = None
        return os.read(self._source, PIPEFUL)

    def _pass_on(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self._move(left) :]
            except BlockingIOError:  # whoever shares it with us has set it so
                poll = select.poll()
                poll.register(self._target, select.POLLOUT)
                poll.poll()
            except (BrokenPipeError, ConnectionResetError):
                raise
            except OSError as error:  # a full disk: the command cannot be told, and is not to die of it
                self._to.problem(f"output is lost: {error.strerror}")
                self._take(len(left))
                return

    def _move(self, data: memoryview) -> int:
        if self._pipe and self._copy is not None:
            try:
                return os.splice(self._source, self._target, len(data))
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EPERM):
                    raise
                self._pipe = False
        written = os.write(self._target, data)
        self._take(written)
        return written

    def _take(self, number: int) -> None:
        """Out of the pipe, if it is still there."""
        while self._copy is not None and number:
            number -= len(os.read(self._source, number))
