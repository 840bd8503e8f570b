"""Waiting for the store of a round, which rank 0 serves at MASTER_ADDR and MASTER_PORT, before the function is called.

A client of PyTorch's store that is refused tries again after about 0.5 s.  All ranks begin a round at the same time, so
most of them could be refused.  Here they try more often, for 0.5 s at most.  They do so only where the round before has
met at such a store, and never again once it was in vain: then the program does other things before it makes its groups.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Callable

from . import _torch_adapter as torch_adapter

LONGEST = 0.5  # s
PAUSES = 0.001, 0.02  # s between two attempts: the first one, and the longest


class Rendezvous:
    """Of the rounds of this process."""

    def __init__(self) -> None:
        self._expected, self._in_vain = False, False

    def note(self) -> None:
        """The round is over, its process groups are not ended yet."""
        self._expected = str(torch_adapter.store_port()) == os.environ.get("MASTER_PORT")

    def wait(self, is_over: Callable[[], bool]) -> None:
        """The next round has begun, with its environment.  Returns early if that is over."""
        if not self._expected or self._in_vain or os.environ.get("RANK") == "0":
            return
        try:
            host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
            # Addresses only: a name could take any time.
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except (KeyError, OSError):
            return
        family, kind, _, _, address = found[0]
        end, (pause, longest) = time.monotonic() + LONGEST, PAUSES
        while (left := end - time.monotonic()) > 0 and not is_over():
            with socket.socket(family, kind) as one:
                one.settimeout(left)
                if one.connect_ex(address) == 0:
                    return
            time.sleep(min(pause, left))
            pause = min(2 * pause, longest)
        self._in_vain = not is_over()
