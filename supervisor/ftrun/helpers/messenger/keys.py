"""The keys of a group, all from its secret: who does not know it neither gets a word in, nor one out.

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
    """One line: why there is no secret."""


class Keys(NamedTuple):
    public: bytes
    secret: bytes


def read(path: str) -> bytes:
    """The secret, as the options' check reads it; it may have changed since."""
    try:
        return read_secret(path)
    except ConfigError as error:
        raise Unusable(str(error)) from None


def made(secret: bytes, of: str) -> Keys:
    """The same on every node, `of` the server or its clients."""
    import zmq
    from zmq.utils import z85

    key = z85.encode(blake2b(secret, digest_size=32, person=f"ftrun-{of}".encode()).digest())
    return Keys(zmq.curve_public(key), key)
