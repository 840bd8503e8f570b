"""What is left of a process that cannot be started."""

import errno
import os

import pytest

from ftrun.host import signals, spawn


def test_a_fork_that_fails_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fail)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(BlockingIOError):
        spawn.spawn(spawn.Start(["true"], {}), signals.Inherited(frozenset(), frozenset()))
    assert os.listdir("/proc/self/fd") == before
