"""Lines with the number of their rank, where several ranks write to one pipe."""

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from ftrun.helpers.output.relay import LONGEST, PrefixedRelay, Relay
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


def relayed(contents: dict[int, bytes], chunk: int = 65536) -> bytes:
    """What the relays of these local ranks write, each after the one before it has ended."""
    end, target = os.pipe()
    found = bytearray()

    def read() -> None:
        while data := os.read(end, 65536):
            found.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    for rank, content in contents.items():
        source, writer = os.pipe()
        listener = Listening()
        relay = PrefixedRelay(rank * NUMBERS + 1, source, target, listener)
        relay.start()
        for start in range(0, len(content), chunk):
            os.write(writer, content[start : start + chunk])
            assert listener.forwarded.wait(60)
            listener.forwarded.clear()
        os.close(writer)
        relay.join(60)
        assert not relay.is_alive()
    os.close(target)
    reader.join(60)
    os.close(end)
    return bytes(found)


def test_a_long_line_remains_one_line_whatever_its_bytes() -> None:
    line = b"\0\xff\x85\x0b\x0c" * 800_000
    assert relayed({0: b"before\n" + line + b"\nafter\n"}) == b"[0] before\n[0] " + line + b"\n[0] after\n"


@pytest.mark.parametrize("chunk", [1, 2, 3, 65536])
def test_each_end_of_a_line_counts_once_however_the_output_arrives(chunk: int) -> None:
    text = b"\n\r\na\rbc\r\n\n\rd\r\r\ne"
    assert relayed({1: text}, chunk) == b"[1] \n[1] \r\n[1] a\r[1] bc\r\n[1] \n[1] \r[1] d\r[1] \r\n[1] e\n"


def test_a_long_line_that_another_rank_interrupts_is_continued_as_a_line_of_its_own() -> None:
    end, target = os.pipe()
    fcntl.fcntl(target, fcntl.F_SETPIPE_SZ, 1 << 20)
    (source, writer), (other_source, other_writer) = os.pipe(), os.pipe()
    long, other = Listening(), Listening()
    relays = PrefixedRelay(1, source, target, long), PrefixedRelay(NUMBERS + 1, other_source, target, other)
    for relay in relays:
        relay.start()
    found = b""
    os.write(writer, b"x" * LONGEST)
    os.write(writer, b"y")
    while b"y" not in found:
        found += os.read(end, 1 << 20)
    os.write(other_writer, b"another\n")
    assert other.forwarded.wait(60)
    os.write(writer, b"z\n")
    for end_of_rank in (writer, other_writer):
        os.close(end_of_rank)
    for relay in relays:
        relay.join(60)
    os.close(target)
    while more := os.read(end, 1 << 20):
        found += more
    os.close(end)
    assert found == b"[0] " + b"x" * LONGEST + b"y\n[1] another\n[0] z\n"
