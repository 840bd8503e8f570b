"""What is left of a process that cannot be started."""

import errno
import os

import pytest

from ftrun.host import oom, signals, spawn


def test_a_fork_that_fails_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fail)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(BlockingIOError):
        spawn.spawn(spawn.Start(["true"], {}), signals.Inherited(frozenset(), frozenset()))
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("expendable", [False, True])
def test_an_expendable_helper_is_the_first_that_is_killed_for_memory(expendable: bool) -> None:
    with open(os.devnull, "wb") as log:
        helper = spawn.spawn_helper(["/bin/cat", oom.PATH], log.fileno(), expendable=expendable)
    os.set_blocking(helper.output, True)
    score = os.read(helper.output, 64).strip()
    os.waitpid(helper.pid, 0)
    os.close(helper.output)
    os.close(helper.held)
    assert score == (oom.FIRST_TO_KILL if expendable else oom.given_score())
