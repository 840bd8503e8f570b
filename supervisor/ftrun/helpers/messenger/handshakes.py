"""Finds out why a server closes each connection, by reading its greeting, which requires no secret.

ZMTP 3 (rfc.zeromq.org/spec/23): both ends send a greeting with a signature, the version, and the name of the security
mechanism.  With CURVE (rfc.zeromq.org/spec/25) a server closes the connection without a reply if the first command of
a client was not encrypted for its key, so that a client with another secret sees a greeting and then the end of the
connection.
"""

import errno
import socket
from typing import Final

from ftrun.core.text.durations import seconds
from ftrun.helpers.messenger.transport import split
from ftrun.messages import peers

SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f"
VERSION: Final = b"\x03\x00"
MECHANISM: Final = slice(12, 32)  # of a greeting
OPERATION: Final = 1.0  # s for each of a few operations
FAILED: Final = 3  # failed handshakes in a row; a single one also fails when rank 0 ends during it
# The rank 0 of an earlier schedule, which has another secret, may answer under the same name until its container is
# gone.  Most programs end within seconds after SIGTERM.
CERTAIN: Final = 20.0  # s in which a server has to refuse every handshake before a member treats the refusal as final
GAP: Final = 10.0  # s between two failed handshakes; after a longer gap the count is reset
ENDED: Final = (errno.EPIPE, errno.ECONNRESET)  # what libzmq reports if the server closed; EAGAIN: no reply in time


class Handshakes:
    """The handshakes with rank 0 that failed in a row.  `why`: the diagnosis, once it is known, as a predicate of
    rank 0 or "it".  `certain`: rank 0 has refused every handshake for so long that it will not accept this node, or
    somebody on the way has, who could keep it out anyway."""

    def __init__(self, address: peers.MemberAddress) -> None:
        self._address = address
        self._since = self._last = 0.0
        self.count = 0
        self.why, self.certain = "", False

    def reset(self) -> None:
        self.count, self.why, self.certain = 0, "", False

    def failed(self, now: float) -> None:
        """The server has closed another handshake.  From the third connection on this takes up to a few seconds."""
        if not self.count or now > self._last + GAP:
            self.reset()
            self._since = now
        self.count, self._last = self.count + 1, now
        if self.count < FAILED:
            return
        if not self.why:
            self.why = diagnose(self._address)
        elif now >= self._since + CERTAIN and not self.certain:
            self.why = diagnose(self._address)  # another server may listen there by now
            self.certain = bool(self.why)
            self._since = now  # if it is not certain, the interval starts again

    @property
    def refusal(self) -> str:
        return f"it {self.why} (it has refused every handshake for {seconds(CERTAIN)})"


def diagnose(address: peers.MemberAddress) -> str:
    """The mismatch that the greeting of rank 0 shows, else an empty string.  Takes a few seconds at most."""
    server_mechanism = mechanism(address.endpoint)
    if address.secret and server_mechanism == b"CURVE":
        return f"has a different secret from this node, or another server listens there: {address.secret}"
    if address.secret and server_mechanism == b"NULL":
        return "has no secret, and this node has one"
    if not address.secret and server_mechanism == b"CURVE":
        return "has a secret, and this node has none"
    return ""


def mechanism(endpoint: str) -> bytes:
    """The security mechanism in the greeting of the server; empty if there is none, as from a proxy without a backend.
    Ours is not sent: the server would close the connection at once if it differs."""
    host, port = split(endpoint)
    try:
        with socket.create_connection((host, int(port)), OPERATION) as connection:
            connection.sendall(SIGNATURE + VERSION)
            greeting = b""
            while len(greeting) < MECHANISM.stop and (more := connection.recv(MECHANISM.stop - len(greeting))):
                greeting += more
    except (OSError, ValueError):
        return b""
    if len(greeting) < MECHANISM.stop or greeting[:1] != SIGNATURE[:1] or greeting[9:10] != SIGNATURE[9:]:
        return b""
    return greeting[MECHANISM].rstrip(b"\0")
