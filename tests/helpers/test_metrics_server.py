"""The HTTP server of the metrics: its responses, and that no client can delay another."""

import socket
import time
from collections.abc import Iterator

import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ftrun.helpers.metrics import server as module
from ftrun.helpers.metrics.server import CONNECTIONS, MetricsServer
from support.runs import wait_for

CONTENT = b"# HELP ftrun_up Up.\n# TYPE ftrun_up gauge\nftrun_up 1.0\n"
Address = tuple[str, int]


class Up(Collector):
    """One metric with a help text that may be long; or an exception."""

    def __init__(self, text: str = "Up.") -> None:
        self.text, self.collected = text, 0

    def collect(self) -> Iterator[GaugeMetricFamily]:
        self.collected += 1
        if not self.text:
            raise ValueError("no help")
        yield GaugeMetricFamily("ftrun_up", self.text, 1.0)


class Served:
    """A server on a free port, until the end of the test."""

    def __init__(self, host: str = "127.0.0.1", text: str = "Up.") -> None:
        self.collector = Up(text)
        self.problems: list[str] = []
        self.server = MetricsServer(host, 0, self.collector, self.problems.append)
        self.address: Address = (host or "127.0.0.1", int(self.server.address.rpartition(":")[2]))

    def __enter__(self) -> "Served":
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(module, "PATIENCE", 60.0)  # so that a busy machine does not matter
    with Served() as made:
        yield made


def ask(address: Address, request: bytes = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n") -> tuple[str, bytes]:
    """The status line and the content."""
    with socket.create_connection(address, 30) as stream:
        stream.sendall(request)
        return answer(stream)


def answer(stream: socket.socket) -> tuple[str, bytes]:
    content = b""
    while more := stream.recv(65536):
        content += more
    head, _, body = content.partition(b"\r\n\r\n")
    return head.partition(b"\r\n")[0].decode("latin-1"), body


@pytest.mark.parametrize(
    ("request_", "status", "content"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "200 OK", CONTENT),
        (b"GET /metrics HTTP/1.0\r\n\r\n", "200 OK", CONTENT),
        (b"GET / HTTP/1.1\r\n\r\n", "200 OK", CONTENT),
        (b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", "200 OK", CONTENT),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", "501 Unsupported method ('POST')", None),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", None, None),
        (b"\xff\xfe \xff HTTP/1.1\r\n\r\n", None, None),
    ],
)
def test_only_a_get_gets_the_metrics(
    served: Served, request_: bytes, status: str | None, content: bytes | None
) -> None:
    found, body = ask(served.address, request_)
    if status is not None:
        assert found == f"HTTP/1.0 {status}"
    if content is not None:
        assert body == content
    else:
        assert b"ftrun_up" not in body
    assert ask(served.address) == ("HTTP/1.0 200 OK", CONTENT)
    assert served.problems == []


def test_a_request_that_is_too_long_gets_no_answer(served: Served) -> None:
    with socket.create_connection(served.address, 30) as stream, pytest.raises(ConnectionError):
        stream.sendall(b"A: " + b"x" * (64 << 20))
    assert served.problems == []


def test_an_unexpected_exception_is_a_problem_and_the_server_goes_on() -> None:
    with Served(text="") as served:
        for _ in range(2):
            assert ask(served.address) == ("", b"")
        wait_for(lambda: served.problems == ["a scrape failed: ValueError('no help')"] * 2, "both")


def test_more_silent_clients_than_connections_block_no_one(served: Served) -> None:
    silent = [socket.create_connection(served.address, 30) for _ in range(3 * CONNECTIONS)]
    try:
        for stream in silent[::2]:
            stream.sendall(b"GET /metrics HT")
        for _ in range(5):
            assert ask(served.address) == ("HTTP/1.0 200 OK", CONTENT)
        wait_for(lambda: len(served.server._open) <= CONNECTIONS, "the oldest are dropped")
        assert silent[0].recv(1) == b"", "the oldest was dropped"
    finally:
        for stream in silent:
            stream.close()


def test_a_client_that_sends_slowly_is_dropped_in_time(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.3)
    with socket.create_connection(served.address, 30) as stream:
        began = time.monotonic()

        def dropped() -> bool:
            try:
                stream.sendall(b"x")
            except OSError:
                return True
            return False

        wait_for(dropped, "it is dropped though it goes on")
        assert time.monotonic() - began >= 0.3


def test_a_client_that_does_not_read_is_dropped_and_blocks_no_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 2.0)
    with Served(text="x" * (16 << 20)) as served:
        deaf = [socket.create_connection(served.address, 30) for _ in range(4)]
        try:
            for stream in deaf:
                stream.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            wait_for(lambda: served.collector.collected == 4, "they have asked")
            served.collector.text = "Up."
            assert ask(served.address)[0] == "HTTP/1.0 200 OK"
            wait_for(lambda: not served.server._open, "they are dropped")
        finally:
            for stream in deaf:
                stream.close()


def test_an_empty_host_means_both_address_families() -> None:
    with Served("") as served:
        assert ask(("127.0.0.1", served.address[1])) == ("HTTP/1.0 200 OK", CONTENT)
        if socket.has_dualstack_ipv6():
            assert ask(("::1", served.address[1])) == ("HTTP/1.0 200 OK", CONTENT)
