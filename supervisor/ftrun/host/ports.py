"""TCP ports that PID 1 holds: a free one for the rendezvous of the ranks, and one that shows that it lives."""

import _socket as socket  # the module `socket` would cost PID 1 more time than all else here
from contextlib import suppress
from typing import Final

BACKLOG: Final = 64  # connections of the other members, or of strangers, that nobody reads


class ReservedPort:
    """A TCP port that no other program is given automatically while it is reserved.

    The socket is bound and never listens.  SO_REUSEADDR on both sides lets rank 0 bind and listen on the port all the
    same (socket(7)): torch's store sets it, as servers usually do.  Raises OSError if there is no free port.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("0.0.0.0", 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()


class LifeSign:
    """A TCP port that accepts connections as long as this process lives, and no longer: nobody inherits it.

    The kernel completes the connections, which are never read.  So a member that was once accepted, and is refused
    later, knows that this process is dead.  Raises OSError if there is no free port.
    """

    def __init__(self) -> None:
        kind = socket.SOCK_STREAM | socket.SOCK_CLOEXEC
        try:
            self._socket = socket.socket(socket.AF_INET6, kind)
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            self._socket.bind(("::", 0))
        except OSError:  # no IPv6 here
            self._socket = socket.socket(socket.AF_INET, kind)
            self._socket.bind(("0.0.0.0", 0))
        self._socket.listen(BACKLOG)
        self.number: int = self._socket.getsockname()[1]

    def clear(self) -> None:
        """Close connections that were made, as many as can wait at once, so that there is room for others.  It never
        waits, and ends also if somebody connects again and again."""
        self._socket.setblocking(False)
        with suppress(OSError):  # there are no more
            for _ in range(BACKLOG + 1):
                connection, _ = self._socket._accept()  # type: ignore[attr-defined]
                socket.close(connection)

    def close(self) -> None:
        self._socket.close()
