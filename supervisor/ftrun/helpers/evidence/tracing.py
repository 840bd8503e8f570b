"""Stops a thread for moments, to read its registers (ptrace(2)).

Only stops that leave nothing behind are used: PTRACE_SEIZE, PTRACE_INTERRUPT and PTRACE_SYSCALL.  If this process is
killed at any moment, the thread goes on as if nothing had happened.  A breakpoint or a single step would leave a
SIGTRAP, which ends the thread's process.  A few calls that wait, like epoll_wait, end with EINTR by a stop: of threads
that wait, only those are stopped that then begin the call again (recognized.py).
"""

import ctypes
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

from ftrun.core.named_tuple import NamedTuple

SUPPORTED: Final = platform.machine() == "x86_64"
_SEIZE: Final = 0x4206
_INTERRUPT: Final = 0x4207
_GETREGSET: Final = 0x4204
_CONTINUE: Final = 7
_SYSCALL: Final = 24
_DETACH: Final = 17
_MARK_CALLS: Final = 1  # PTRACE_O_TRACESYSGOOD: a stop at a system call differs from one by a signal
_ANY: Final = 0x40000000  # __WALL: also threads
_INTERRUPTED: Final = 128 << 8 | signal.SIGTRAP  # PTRACE_EVENT_STOP
_AT_CALL: Final = 0x80 | signal.SIGTRAP
_GENERAL: Final = 1  # NT_PRSTATUS
_EXTENDED: Final = 0x202  # NT_X86_XSTATE: floating point and vectors
_NEXT: Final = 16 * 8  # where the general ones have the address of the next instruction
_PAUSE: Final = 0.001  # s
_BYTES: Final = 16384  # of one set of registers


class Acted(Exception):
    """The thread did more than to compute; the text says what."""


class _Buffer(ctypes.Structure):
    """struct iovec."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class Registers(NamedTuple):
    """All of them; `at`: the address of the next instruction."""

    general: bytes
    extended: bytes
    at: int


class Tracee:
    """One thread; stopped within the context, but for the time in `run` and after `resume`.  OSError where that is
    refused.

    All calls have to come from the same thread of this process.
    """

    def __init__(self, tid: int) -> None:
        self._tid = tid
        self._signal = 0  # one that has stopped the thread, and is delivered when it is released
        self._stopped = self._gone = False
        self._space = ctypes.create_string_buffer(_BYTES)

    def __enter__(self) -> "Tracee":
        self._ptrace(_SEIZE, 0, _MARK_CALLS)
        try:
            self.stop()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._release()

    def run(self, seconds: float, enough: Callable[[], bool] = lambda: True, most: float = 1.0) -> None:
        """Let it compute for about so long, and then until it is `enough`, for `most` seconds altogether.  Acted if it
        calls the system, receives a signal or ends."""
        end = time.monotonic() + most
        self._ptrace(_SYSCALL)
        self._stopped = False
        time.sleep(seconds)
        while not enough() and time.monotonic() < end:
            time.sleep(_PAUSE)
        self.stop()

    def resume(self) -> None:
        """Let it go on as if it were not traced."""
        self._ptrace(_CONTINUE)
        self._stopped = False

    def registers(self) -> Registers:
        general = self._read(_GENERAL)
        return Registers(general, self._read(_EXTENDED), int.from_bytes(general[_NEXT : _NEXT + 8], sys.byteorder))

    def stop(self) -> None:
        """Stop it where it is; a call that waits is interrupted and, but for a few, begun again by the kernel
        (signal(7)).  Acted as for `run`."""
        if self._stopped:
            return
        self._ptrace(_INTERRUPT)
        _, status = os.waitpid(self._tid, _ANY)
        if not os.WIFSTOPPED(status):
            self._gone = True
            raise Acted("has ended")
        self._stopped, stop = True, status >> 8
        if stop == _INTERRUPTED:
            return
        if stop == _AT_CALL:
            raise Acted("calls the system")
        if stop >> 8 == 0:  # otherwise a stop of the whole process, which goes on by itself
            self._signal = stop
        raise Acted("has received a signal")

    def _release(self) -> None:
        """It goes on, and receives a signal that has stopped it."""
        try:
            self.stop()
        except Acted:
            pass
        except OSError:
            return  # it has ended
        if not self._gone:
            try:
                self._ptrace(_DETACH, 0, self._signal)
            except OSError:
                pass  # it has ended

    def _read(self, kind: int) -> bytes:
        buffer = _Buffer(ctypes.addressof(self._space), _BYTES)
        self._ptrace(_GETREGSET, kind, ctypes.addressof(buffer))
        return ctypes.string_at(self._space, buffer.length)

    def _ptrace(self, request: int, address: int = 0, data: int = 0) -> None:
        if _libc.ptrace(request, self._tid, address, data) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_ulong, ctypes.c_ulong]
_libc.ptrace.restype = ctypes.c_long
