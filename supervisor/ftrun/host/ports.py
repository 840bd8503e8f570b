"""A free TCP port for the rendezvous of the ranks."""

import _socket as socket  # the module `socket` would cost PID 1 more time than all else here


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
