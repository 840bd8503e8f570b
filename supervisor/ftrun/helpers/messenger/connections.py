"""The TCP connections at rank 0, as its socket monitor reports them.  Guarantees that there is always room for members.

A stranger without the secret can open a connection and hold it for as long as a handshake may take.  When the limit is
reached, the oldest connections on which no member has sent a message are closed: to keep a member out, strangers have
to fill all the room again within the time of its handshake.  A connection of a member is never closed here, so someone
who knows the secret could fill the room.
"""

import os
import resource
import socket
from collections.abc import Callable, Container
from typing import Any, Final

import zmq

from ftrun.core.named_tuple import NamedTuple
from ftrun.helpers.lines import ProtocolLines
from ftrun.helpers.messenger.transport import monitor_events

RESERVED: Final = 64  # descriptors for everything but connections
STRANGERS: Final = 64  # connections beyond two for each member
HANDSHAKE: Final = 3.0  # s
MAX_REPORTED: Final = 16  # strangers that are reported
GIVING_UP: Final = 15.0  # s for which a member with another secret tries at least (handshakes.CERTAIN)
GAVE_UP: Final = 5.0  # s after its last attempt: it makes one each second
SECRETS: Final = (zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC, zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)


class Connection(NamedTuple):
    host: str  # the address of the other end; empty if it was closed in the meantime
    inode: int  # distinguishes it from a later one with the same descriptor; 0 if it was closed in the meantime


class Misfit(NamedTuple):
    """A process with another secret, as seen at one address: since when it has tried, and until when."""

    what: str
    since: float
    last: float


class MemberConnections:
    """`open`: by descriptor, the oldest first.  The owner polls `source`, then calls `closed` and `make_room`."""

    def __init__(self, router: zmq.Socket[bytes], size: int, lines: ProtocolLines) -> None:
        self._lines = lines
        self._limit = connection_limit(size, lines)
        self._strangers: set[str] = set()
        self._misfits: dict[str, Misfit] = {}  # by address
        self._shut: set[int] = set()  # shut down here, and not closed yet
        self._pin = os.dup(0)  # reserves a descriptor, so that `_shut_down` works when none is free
        self.open: dict[int, Connection] = {}
        router.handshake_ivl = int(HANDSHAKE * 1000)
        self.source = router.get_monitor_socket(
            zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        )

    @property
    def misfit(self) -> str:
        """The first process with another secret, for a person; empty: there is none."""
        return next((f"{host} {found.what}" for host, found in self._misfits.items()), "")

    def gave_up(self, now: float) -> str:
        """A process that has tried with another secret for as long as a member does, and has stopped; empty: there is
        none."""
        for host, found in self._misfits.items():
            if found.last >= found.since + GIVING_UP and now >= found.last + GAVE_UP:
                return f"{host} {found.what}"
        return ""

    def fits(self, host: str) -> None:
        """A member has joined from there."""
        self._misfits.pop(host, None)

    def closed(self, now: float) -> list[int]:
        """The descriptors of connections that closed since the last call; other connections may use them by now."""
        found: list[int] = []
        failed: int | None = None
        for event, value in monitor_events(self.source):
            if event == zmq.EVENT_ACCEPTED:
                self.open[value] = describe(value)
            elif event == zmq.EVENT_DISCONNECTED:
                connection = self.open.pop(value, None)
                self._shut.discard(value)
                found.append(value)
                if failed is not None:
                    self._report_stranger(failed, connection.host if connection else "", now)
                failed = None
            else:
                failed = value  # the reason; the event for the disconnection follows
        return found

    def make_room(self, members: Container[int]) -> None:
        """Close the oldest silent connections beyond the limit.  Without a free descriptor libzmq would retry accept
        forever, and nothing else could be opened in this process."""
        excess = len(self.open) - len(self._shut) - self._limit
        if excess <= 0:
            return
        self._lines.problem(
            f"all {self._limit} connections are in use: the oldest on which no member has sent a message are closed"
        )
        silent = [fd for fd in self.open if fd not in members and fd not in self._shut]
        for fd in silent[:excess]:
            self._shut.add(fd)
            self._shut_down(fd, self.open[fd].inode)

    def _shut_down(self, fd: int, inode: int) -> None:
        """Close that connection, and no other that has its descriptor by now: the inode is compared, and a duplicated
        descriptor cannot be closed meanwhile."""
        try:
            os.dup2(fd, self._pin, inheritable=False)
            if os.fstat(self._pin).st_ino == inode:
                connection = socket.socket(fileno=self._pin)
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                finally:
                    connection.detach()
        except OSError:
            pass  # it is already closed
        finally:
            os.dup2(0, self._pin, inheritable=False)

    def _report_stranger(self, reason: int, host: str, now: float) -> None:
        if reason == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
            what = "has a different secret from this group"
        elif reason == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            what = "has no secret, or has one although this group has none"
        else:
            what = "does not use the protocol of a group"
        if host and reason in SECRETS and (host in self._misfits or len(self._misfits) < MAX_REPORTED):
            self._misfits[host] = Misfit(what, self._misfits[host].since if host in self._misfits else now, now)
        if len(self._strangers) < MAX_REPORTED:
            self._strangers.add(f"{host} {what}")
            self._lines.problem(f"{host or 'an unknown address'} was refused: it {what}")


def connection_limit(size: int, lines: ProtocolLines) -> int:
    """The limit of connections: two for each member, because a member may reconnect while its old connection is still
    open, and some for strangers; or as many as the open-files limit of this container allows.  Sets the soft limit."""
    required, limit = size + RESERVED, 2 * size + STRANGERS + RESERVED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    if hard != resource.RLIM_INFINITY and hard < required:
        lines.problem(
            f"rank 0 needs {required} open files for a group of {size}, but its limit is {hard}: not all nodes can"
            f" join; raise the limit of its container (ulimit -Hn {required})"
        )
    return max(1, limit - RESERVED)


def describe(fd: int) -> Connection:
    try:
        return Connection(_host(fd, socket.socket.getpeername), os.fstat(fd).st_ino)
    except OSError:
        return Connection("", 0)


def is_own(host: str) -> bool:
    """Whether this is an address of this machine, or container, by which others reach it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as tried:
            tried.bind((host, 0))
    except (OSError, ValueError):
        return False
    return not host.startswith("127.") and host != "::1"


def own_host(fd: int) -> str:
    """The address of this end; empty if the connection was closed in the meantime."""
    try:
        return _host(fd, socket.socket.getsockname)
    except OSError:
        return ""


def _host(fd: int, name_of: Callable[[socket.socket], Any]) -> str:
    """One end of a connection that is not ours to close; OSError if it was closed in the meantime."""
    connection = socket.socket(fileno=fd)
    try:
        return str(name_of(connection)[0]).removeprefix("::ffff:")
    except IndexError:
        raise OSError("not an address") from None
    finally:
        connection.detach()
