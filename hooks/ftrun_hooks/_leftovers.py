"""Whether a round has left something behind that only the collector of reference cycles can free.

A collection takes 0.2 s in a process that has loaded PyTorch, most of it for PyTorch's own modules, and every rank
would wait for it.  So it happens only if something of the round still exists: a socket that was opened in it (as the
connections of a process group, for whose end the other ranks wait), a value that was given to `run.keep` or
`run.restore`, or memory of a device.  What survives a collection is in use elsewhere: no later round collects for it.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Any, Iterable
from weakref import ReferenceType, ref

from . import _torch_adapter as torch_adapter

SLACK = 128 << 20  # bytes of a device that PyTorch may keep for itself, as the workspaces of cuBLAS


class Leftovers:
    """Of the rounds of this process."""

    def __init__(self) -> None:
        self._sockets: set[str] | None = None
        self._values: list[ReferenceType[Any]] = []
        self._survivors: list[ReferenceType[Any]] = []
        self._allocated: dict[int, int] = {}  # bytes by device, after the last collection

    def begin(self) -> None:
        """A round is about to begin."""
        self._sockets, self._values = _sockets(), []

    def watch(self, values: Iterable[object]) -> None:
        """These values are the state of the round, and shall not outlive it.  The first ones are enough."""
        if not self._values:
            for value in values:
                try:
                    self._values.append(ref(value))
                except TypeError:  # as numbers, lists and dicts
                    pass

    def collect(self) -> None:
        """The round is over, and nothing refers to its state any more but reference cycles."""
        if not self._are_there():
            return
        gc.collect()
        self._survivors = [one for one in self._survivors + self._values if one() is not None]
        self._allocated = torch_adapter.allocated()

    def _are_there(self) -> bool:
        if "torch" not in sys.modules:
            return True  # a collection is cheap then
        known = {id(one()) for one in self._survivors}
        if any(value is not None and id(value) not in known for value in (one() for one in self._values)):
            return True
        if any(size > self._allocated.get(one, 0) + SLACK for one, size in torch_adapter.allocated().items()):
            return True
        now = _sockets()
        return now is None or self._sockets is None or not now <= self._sockets


def _sockets() -> set[str] | None:
    """The open sockets of this process, or None where that cannot be told."""
    found = set()
    try:
        for name in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink("/proc/self/fd/" + name)
            except OSError:  # closed meanwhile, as the one of the folder
                continue
            if target.startswith("socket:"):
                found.add(target)
    except OSError:
        return None
    return found
