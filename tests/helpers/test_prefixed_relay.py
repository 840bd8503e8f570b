"""Lines with the number of their rank, where several ranks write to one pipe."""

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from ftrun.helpers.output.prefixed import PrefixedRelay
from ftrun.helpers.output.relay import Relay
from ftrun.host.output_pipes import NUMBERS


class Listening:
    """A listener.  `forwarded`: data has been passed on."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.forwarded, self.problems = threading.Event(), list[str]()

    def data_read(self, stream: int, data: bytes) -> None: ...
    def reader_gone(self, stream: int) -> None: ...

    def data_forwarded(self) -> None:
        self.forwarded.set()

    def problem(self, description: str) -> None:
        self.problems.append(description)


def test_lines_of_different_ranks_are_not_mixed_in_a_pipe_that_is_full() -> None:
    end, target = os.pipe()
    fcntl.fcntl(target, fcntl.F_SETPIPE_SZ, 4096)
    relays = []
    for rank in range(3):
        source, writer = os.pipe()
        os.write(writer, b"".join(b"line %d of %d\n" % (n, rank) for n in range(3_000)))
        os.close(writer)
        relays.append(PrefixedRelay(rank * NUMBERS + 1, source, target, Listening()))
    expected = sorted(b"[%d] line %d of %d" % (rank, n, rank) for rank in range(3) for n in range(3_000))
    for relay in relays:
        relay.start()
    found, size = b"", sum(len(line) + 1 for line in expected)
    while len(found) < size:
        found += os.read(end, 4096)
    for relay in relays:
        relay.join(60)
    os.close(end)
    os.close(target)
    assert sorted(found.splitlines()) == expected


@pytest.mark.parametrize(("relay", "lost"), [(Relay, 21), (PrefixedRelay, 33)])
def test_a_disk_that_stays_full_is_one_problem_and_its_end_another(
    tmp_path: Path, relay: type[Relay], lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of four lines are lost."""
    source, writer = os.pipe()
    target = os.open(tmp_path / "target", os.O_WRONLY | os.O_CREAT)
    listener, write, full = Listening(), os.write, [True, True, True]

    def write_to_disk(fd: int, data: bytes) -> int:
        if fd == target and full:
            full.pop()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    monkeypatch.setattr(os, "write", write_to_disk)
    running = relay(1, source, target, listener)
    running.start()
    for number in range(4):
        write(writer, b"line %d\n" % number)
        assert listener.forwarded.wait(60)
        listener.forwarded.clear()
    os.close(writer)
    running.join(60)
    os.close(target)
    full_disk = "output is lost: No space left on device"
    assert listener.problems == [full_disk, f"output arrives again; {lost} bytes of it are lost"]
    assert (tmp_path / "target").read_bytes().endswith(b"line 3\n")
