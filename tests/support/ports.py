"""TCP ports for tests: below the range from which the kernel gives ports to connections and to `bind` with port 0, and
in a block of numbers that no other process of any test run on this machine uses at the same time."""

import errno
import os
import socket
from itertools import count

FIRST, BLOCK, BLOCKS = 10_000, 64, 150  # below 19,600; Linux hands out ports from 32,768 on
NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
_lock: socket.socket | None = None
_owner = _start = 0
_numbers = count()


def free_ports(number: int) -> list[int]:
    """As many different ports that nobody uses.  The tests of other processes never get them, and those of this one
    only after more than 50 others."""
    found: list[int] = []
    for _ in range(BLOCK):
        if len(found) == number:
            return found
        port = _block() + next(_numbers) % BLOCK
        if _is_unused(port):
            found.append(port)
    raise AssertionError(f"no {number} free ports from {_block()} on")


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]


def _block() -> int:
    """The first port of this process's block, which is its own until it ends: a name without a file is bound for it."""
    global _lock, _owner, _start
    if _owner != os.getpid():
        for index in range(BLOCKS):
            start = FIRST + BLOCK * ((os.getpid() + index) % BLOCKS)
            lock = socket.socket(socket.AF_UNIX)
            try:
                lock.bind(f"\0ftrun-test-ports-{start}")
            except OSError:
                lock.close()
            else:
                _lock, _owner, _start = lock, os.getpid(), start
                break
        else:
            raise AssertionError("all blocks of ports are in use by tests")
    return _start


def _is_unused(port: int) -> bool:
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family) as one:
                if family == socket.AF_INET6:
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind((address, port))
        except OSError as error:
            if family == socket.AF_INET or error.errno not in NO_IPV6:
                return False
    return True
