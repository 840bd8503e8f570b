"""The timeouts of another process's sockets, which no file in /proc shows."""

import ctypes
import os
import socket
from typing import Final

PIDFD_GETFD: Final = 438  # the same on all machines


def has_timeout(pid: int, fd: int, sends: bool) -> bool:
    """Whether a blocking call on this socket ends by itself: SO_SNDTIMEO, or else SO_RCVTIMEO, is set.

    OSError if access is denied.  The socket is duplicated into this process for that moment.
    """
    option = socket.SO_SNDTIMEO if sends else socket.SO_RCVTIMEO
    return any(_option(pid, fd, socket.SOL_SOCKET, option, 16))


def ends_unacknowledged(pid: int, fd: int) -> bool:
    """Whether this connection ends when what it has sent is not acknowledged in time.  OSError as above."""
    return any(_option(pid, fd, socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 4))


def _option(pid: int, fd: int, level: int, option: int, length: int) -> bytes:
    process = os.pidfd_open(pid)
    try:
        copy = _libc.syscall(PIDFD_GETFD, process, fd, 0)
    finally:
        os.close(process)
    if copy < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    with socket.socket(fileno=copy) as found:
        return found.getsockopt(level, option, length)


_libc: Final = ctypes.CDLL(None, use_errno=True)
