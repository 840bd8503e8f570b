"""Lines with the number of their rank, where several ranks write to one pipe."""

import fcntl
import os
import threading

from ftrun.helpers.output.prefixed import PrefixedRelay
from ftrun.host.output_pipes import NUMBERS


class Quiet:
    """A listener that nothing is reported to."""

    def __init__(self) -> None:
        self.lock = threading.Condition()

    def data_read(self, stream: int, data: bytes) -> None: ...
    def data_forwarded(self) -> None: ...
    def reader_gone(self, stream: int) -> None: ...
    def problem(self, description: str) -> None: ...


def test_lines_of_different_ranks_are_not_mixed_in_a_pipe_that_is_full() -> None:
    end, target = os.pipe()
    fcntl.fcntl(target, fcntl.F_SETPIPE_SZ, 4096)
    relays = []
    for rank in range(3):
        source, writer = os.pipe()
        os.write(writer, b"".join(b"line %d of %d\n" % (n, rank) for n in range(3_000)))
        os.close(writer)
        relays.append(PrefixedRelay(rank * NUMBERS + 1, source, target, Quiet()))
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
