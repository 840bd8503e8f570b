"""The connections of rank 0, as its monitor tells of them: which are open, who is a stranger, and that there is room.

Who does not know the secret can open one, and hold it for as long as a handshake may take.  Beyond the room the oldest
in which nobody of the group has spoken are closed: to keep a member out, strangers have to fill the room again within
the moment that its handshake takes.  Who has spoken is never closed here, so that who knows the secret could fill it.
"""

import os
import resource
import socket
from collections.abc import Container
from typing import TYPE_CHECKING, Final, NamedTuple

from ftrun.helpers.lines import Lines
from ftrun.helpers.messenger.member_link import happened

if TYPE_CHECKING:
    import zmq

OWN: Final = 64  # descriptors for everything but connections
STRANGE: Final = 64  # connections beyond two of each member, of whoever
HANDSHAKE: Final = 3.0  # s
TOLD: Final = 16  # strangers that are told


class Connection(NamedTuple):
    where: str  # the address of its other end; empty if it was closed again
    inode: int  # tells it from a later one of the same number; 0 likewise


class Connections:
    """`open` has the oldest first.  `source` is to be polled; then `closed`, and `make_room`."""

    def __init__(self, router: "zmq.Socket[bytes]", size: int, lines: Lines) -> None:
        import zmq

        self._lines = lines
        self._room = room(size, lines)
        self._strangers: set[str] = set()
        self._ended: set[int] = set()  # by us, and not closed yet
        self._pin = os.dup(0)  # with a number of our own no descriptor is needed where there is none left
        self.open: dict[int, Connection] = {}
        router.handshake_ivl = int(HANDSHAKE * 1000)
        self.source = router.get_monitor_socket(
            zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        )

    def closed(self) -> list[int]:
        """Those that were since the last call; others may have their numbers by now."""
        import zmq

        found: list[int] = []
        failed: int | None = None
        for event, value in happened(self.source):
            if event == zmq.EVENT_ACCEPTED:
                self.open[value] = _looked_at(value)
            elif event == zmq.EVENT_DISCONNECTED:
                connection = self.open.pop(value, None)
                self._ended.discard(value)
                found.append(value)
                if failed is not None:
                    self._stranger(failed, connection.where if connection else "")
                failed = None
            else:
                failed = value  # why; it is disconnected next
        return found

    def make_room(self, spoken: Container[int]) -> None:
        """Without a descriptor left, libzmq would try to accept for ever, and nothing else could be opened here."""
        many = len(self.open) - len(self._ended) - self._room
        if many <= 0:
            return
        self._lines.problem(f"{self._room} connections, and no room for more: the oldest that say nothing are closed")
        silent = [fd for fd in self.open if fd not in spoken and fd not in self._ended]
        for fd in silent[:many]:
            self._ended.add(fd)
            self._end(fd, self.open[fd].inode)

    def _end(self, fd: int, inode: int) -> None:
        """That connection, and no other that has its number by now: who was seen as it is gone from the monitor first,
        and what is pinned is not closed meanwhile."""
        try:
            os.dup2(fd, self._pin, inheritable=False)
            if os.fstat(self._pin).st_ino == inode:
                connection = socket.socket(fileno=self._pin)
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                finally:
                    connection.detach()
        except OSError:
            pass  # it is closed
        finally:
            os.dup2(0, self._pin, inheritable=False)

    def _stranger(self, reason: int, where: str) -> None:
        import zmq

        if reason == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
            what = "has another secret than this group"
        elif reason == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            what = "has no secret, or has one where this group has none"
        else:
            what = "does not speak the protocol of a group"
        if len(self._strangers) < TOLD:
            self._strangers.add(f"{where} {what}")
            self._lines.problem(f"{where or 'an unknown address'} is refused: it {what}")


def room(size: int, lines: Lines) -> int:
    """How many connections there may be: two of each member, since who comes back does so while its old one may still
    be open, and some of strangers; or as many as the limit of this container allows."""
    need, wanted = size + OWN, 2 * size + STRANGE + OWN
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if hard != resource.RLIM_INFINITY and hard < need:
        lines.problem(
            f"rank 0 needs {need} open files for a group of {size}, and may have {hard}: not all nodes can join; give"
            f" its container more (ulimit -Hn {need})"
        )
    return max(1, wanted - OWN)


def _looked_at(fd: int) -> Connection:
    try:
        connection = socket.socket(fileno=fd)
        try:
            return Connection(
                str(connection.getpeername()[0]).removeprefix("::ffff:"), os.fstat(connection.fileno()).st_ino
            )
        finally:
            connection.detach()
    except (OSError, IndexError):
        return Connection("", 0)
