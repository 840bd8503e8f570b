"""A collective in plain Python: the ranks of one round add vectors of numbers.

Rank 0 listens at MASTER_ADDR:MASTER_PORT; each other rank connects and says which rank it is.  The death of a rank
closes its connections, so the others get a ConnectionError, as with gloo; a rank that hangs makes all others wait.
"""

import os
import socket
import struct
import time
from collections.abc import Sequence

CONNECTING = 0.01  # seconds between two tries: rank 0 may listen later than the others connect
NUMBER = struct.Struct("=Q")


class Together:
    """The connections of this rank.  Use it with `with`, which closes them."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._peers: dict[int, socket.socket] = {}  # of rank 0: by rank; of each other: rank 0

    def __enter__(self) -> "Together":
        address = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "0"))
        try:
            if self.size > 1 and self.rank == 0:
                self._accept(address[1])
            elif self.size > 1:
                self._connect(address)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _accept(self, port: int) -> None:
        with socket.create_server(("", port)) as server:
            while len(self._peers) < self.size - 1:
                peer, _ = server.accept()
                self._peers[NUMBER.unpack(_exactly(peer, NUMBER.size))[0]] = peer

    def _connect(self, address: tuple[str, int]) -> None:
        while not self._peers:
            try:
                self._peers[0] = socket.create_connection(address)
            except ConnectionRefusedError:
                time.sleep(CONNECTING)
        self._peers[0].sendall(NUMBER.pack(self.rank))

    def __exit__(self, *error: object) -> None:
        for peer in self._peers.values():
            peer.close()

    def added(self, own: Sequence[float]) -> tuple[float, ...]:
        """The sum of the vectors of all ranks, added in the order of the ranks: the same bits at each rank, in each
        run.  Raises ConnectionError if a rank is gone."""
        packed = struct.Struct(f"={len(own)}d")
        if self.rank:
            self._peers[0].sendall(packed.pack(*own))
            return packed.unpack(_exactly(self._peers[0], packed.size))
        total = list(own)
        for rank in range(1, self.size):
            theirs = packed.unpack(_exactly(self._peers[rank], packed.size))
            total = [one + other for one, other in zip(total, theirs, strict=True)]
        for peer in self._peers.values():
            peer.sendall(packed.pack(*total))
        return tuple(total)


def _exactly(peer: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        piece = peer.recv(size - len(content))
        if not piece:
            raise ConnectionResetError("another rank has closed its connection")
        content += piece
    return content
