"""Why a server ends each connection to it: what it says of itself before anybody has to know a secret.

ZMTP 3 (rfc.zeromq.org/spec/23): both ends greet with a signature, the version, and the name of the security mechanism.
With CURVE (rfc.zeromq.org/spec/25) a server closes the connection without an answer where the first command of a client
was not made for its key, so that a client with another secret sees a greeting and then the end of the connection.
"""

import errno
import socket
from typing import Final

from ftrun.core.text.durations import seconds
from ftrun.messages import peers

SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f"
VERSION: Final = b"\x03\x00"
MECHANISM: Final = slice(12, 32)  # in a greeting
PATIENCE: Final = 1.0  # s for each of a few steps
FAILED: Final = 3  # handshakes in a row; a single one fails when rank 0 ends in the middle
# A rank 0 of an earlier schedule, with the secret of that one, may answer under the same name until its container is
# gone: pods and Slurm's steps have 30 s to end after SIGTERM.
CERTAIN: Final = 60.0  # s in which a server has to refuse every handshake before a member takes that as final
GAP: Final = 10.0  # s between two failed handshakes; after a longer one the count begins anew
ENDED: Final = (errno.EPIPE, errno.ECONNRESET)  # what libzmq gives where the server closed; EAGAIN: no answer in time


class Handshakes:
    """The handshakes with rank 0 that failed in a row.  `why`: what rank 0 is or has, once that is known, to follow on
    its name or on "it".  `certain`: it has refused each of them for so long that it will not take this node.

    Somebody in the middle of the line can close connections, too, and so bring this about; he can do that only to a
    member that never was in the group, and that he keeps out anyway.
    """

    def __init__(self, place: peers.MemberAddress) -> None:
        self._place = place
        self._since = self._last = 0.0
        self.count = 0
        self.why, self.certain = "", False

    def forget(self) -> None:
        self.count, self.why, self.certain = 0, "", False

    def ended(self, now: float) -> None:
        """Another one that the server ended.  It takes a few seconds at most, and only from the third one on."""
        if not self.count or now > self._last + GAP:
            self.forget()
            self._since = now
        self.count, self._last = self.count + 1, now
        if self.count < FAILED:
            return
        if not self.why:
            self.why = stranger(self._place)
        elif now >= self._since + CERTAIN and not self.certain:
            self.why = stranger(self._place)  # another server may be there by now
            self.certain = bool(self.why)
            self._since = now  # if not, it takes as long again

    @property
    def refusal(self) -> str:
        return f"it {self.why} (it has refused every handshake for {seconds(CERTAIN)})"


def stranger(place: peers.MemberAddress) -> str:
    """What rank 0 is or has, where its greeting shows it; else empty.  It takes a few seconds at most."""
    found = mechanism(place.endpoint)
    if place.secret and found == b"CURVE":
        return f"has another secret than this node, or another server listens there: {place.secret}"
    if place.secret and found == b"NULL":
        return "has no secret, and this node has one"
    if not place.secret and found == b"CURVE":
        return "has a secret, and this node has none"
    return ""


def mechanism(endpoint: str) -> bytes:
    """As the server greets; empty where it does not, as a proxy with nothing behind it.  We do not say ours: it would
    end the connection at once if that is another."""
    host, _, port = endpoint.rpartition(":")
    try:
        with socket.create_connection((host.removeprefix("[").removesuffix("]"), int(port)), PATIENCE) as one:
            one.sendall(SIGNATURE + VERSION)
            said = b""
            while len(said) < MECHANISM.stop and (more := one.recv(MECHANISM.stop - len(said))):
                said += more
    except (OSError, ValueError):
        return b""
    if len(said) < MECHANISM.stop or said[:1] != SIGNATURE[:1] or said[9:10] != SIGNATURE[9:]:
        return b""
    return said[MECHANISM].rstrip(b"\0")
