"""The CURVE keys of a group, derived from its secret.  Without the secret nobody can send or read messages.

A client has to know the public key of the server, and that is never sent.
"""

from typing import NamedTuple

from ftrun.config.group_config import read_secret
from ftrun.config.option_table import ConfigError

try:
    from _blake2 import blake2b  # the same as below, without the 4 MiB of OpenSSL
except ImportError:
    from hashlib import blake2b


class Unusable(ValueError):
    """The secret cannot be used; the text is one line with the reason."""


class Keys(NamedTuple):
    public: bytes
    secret: bytes


def read(path: str) -> bytes:
    """The secret, validated as on the command line; the file may have changed since."""
    try:
        return read_secret(path)
    except ConfigError as error:
        raise Unusable(str(error)) from None


def derive(secret: bytes, role: str) -> Keys:
    """The keys of `role`, either the server or its clients; identical on every node."""
    import zmq
    from zmq.utils import z85

    key = z85.encode(blake2b(secret, digest_size=32, person=f"ftrun-{role}".encode()).digest())
    return Keys(zmq.curve_public(key), key)
