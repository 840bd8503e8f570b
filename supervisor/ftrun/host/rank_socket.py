"""A Unix socket for packets (SOCK_SEQPACKET), on which the ranks of the command reach PID 1.  No call waits."""

import _socket as socket  # the module `socket` would cost PID 1 more time than all else here
import os
import struct
from contextlib import suppress
from typing import Final

from ftrun.host.signals import writing

PEERS: Final = 128  # connections that may wait to be accepted
CREDENTIALS: Final = struct.Struct("=iII")  # pid, uid, gid: unix(7)


class RankConnection:
    """One connection.  `pid`: of the process that connected, as the kernel knows it; 0: it is not in this namespace."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        content = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        self.fd, self.pid = fd, CREDENTIALS.unpack(content)[0]

    def receive(self, limit: int) -> bytes | None:
        """The next packet, cut after `limit` bytes; empty at the end of the connection; None: there is none now."""
        # A process that ends with an unread packet resets the connection once, before the packets that it has sent.
        for _ in range(2):
            try:
                return self._socket.recv(limit)
            except BlockingIOError:
                return None
            except ConnectionResetError:
                continue
            except OSError:
                break
        return b""

    def send(self, packet: bytes) -> bool:
        """Send a packet; whether the kernel has taken it."""
        try:
            with writing():
                return self._socket.send(packet) == len(packet)
        except OSError:
            return False

    def close(self) -> None:
        self._socket.close()


class RankSocket:
    """Listens at `path`, which must not exist.  Raises OSError."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            self._socket.setblocking(False)
            self._socket.bind(path)
            os.chmod(path, 0o600)  # independent of the umask; other users get access as to the beat file
            self._socket.listen(PEERS)
        except OSError:
            self._socket.close()
            raise
        self.fd: int = self._socket.fileno()

    def accept(self) -> RankConnection | None:
        """The next connection, or None."""
        try:
            fd, _ = self._socket._accept()  # type: ignore[attr-defined]  # of CPython, as `socket` uses it
            os.set_inheritable(fd, False)
            return RankConnection(fd)
        except OSError:
            return None

    def close(self) -> None:
        self._socket.close()
        with suppress(OSError):
            os.unlink(self.path)
