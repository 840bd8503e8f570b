"""The sockets of a group: the address of rank 0, and the CURVE keys, which are derived from the secret of the group.

Without the secret no messages can be sent or read.  A client has to know the public key of the server, and that is
never sent.
"""

import ipaddress
import struct
from typing import Final

import zmq
from zmq.utils import z85

from ftrun.config.group_config import read_secret
from ftrun.config.option_table import ConfigError
from ftrun.messages import peers

try:
    from _blake2 import blake2b  # the same as below, without the 4 MiB of OpenSSL
except ImportError:
    from hashlib import blake2b

RETRY: Final = 1.0  # s until an address or a secret that could not be used is tried again
RESUMED: Final = 5.0  # s in which the members of a job are resumed that was suspended as a whole
LATE: Final = 1.0  # s; if a messenger wakes up later than planned by this much, it was stopped, so timeouts start again


def split(endpoint: str) -> tuple[str, str]:
    """Host and port; an address of IPv6 without its brackets."""
    host, _, port = endpoint.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), port


def server(address: peers.MemberAddress, bind: bool) -> str:
    """The address of rank 0 for zmq; ConfigError if the endpoint is invalid or unsafe."""
    host, port = split(address.endpoint)
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigError(f"the endpoint of the group is not HOST:PORT: {address.endpoint}")
    host = "127.0.0.1" if host == "localhost" else host
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if address.secret is None and not loopback:
        raise ConfigError(f"a group without a secret needs a loopback endpoint: {address.endpoint}")
    if bind and not loopback:
        return f"tcp://*:{port}"
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def secure(socket: zmq.Socket[bytes], address: peers.MemberAddress, bind: bool) -> bytes | None:
    """Restrict the socket to peers with the secret, which is returned.  Without one the group stays on this machine.
    ConfigError if the file of the secret, which may have changed since the start, is not valid."""
    if address.secret is None:
        return None
    secret = read_secret(address.secret)
    server_secret, server_public = _keys(secret, "server")
    if bind:
        socket.curve_secretkey, socket.curve_publickey, socket.curve_server = server_secret, server_public, True
    else:
        socket.curve_secretkey, socket.curve_publickey = _keys(secret, "client")
        socket.curve_serverkey = server_public
    return secret


def _keys(secret: bytes, role: str) -> tuple[bytes, bytes]:
    """The secret and the public key of `role`, either the server or its clients; identical on every node."""
    key = z85.encode(digest(secret, 32, f"ftrun-{role}"))
    return key, zmq.curve_public(key)


def digest(content: bytes, size: int, purpose: str = "") -> bytes:
    return blake2b(content, digest_size=size, person=purpose.encode()).digest()


def monitor_events(monitor: zmq.Socket[bytes]) -> list[tuple[int, int]]:
    """The pending events of a socket monitor: (event, value)."""
    found: list[tuple[int, int]] = []
    try:
        while True:
            event, value = struct.unpack("=Hi", monitor.recv_multipart(zmq.NOBLOCK)[0])
            found.append((event, value))
    except zmq.Again:
        return found
