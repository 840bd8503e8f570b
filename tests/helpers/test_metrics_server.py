"""The small web server of the metrics: what it answers, and that nobody can hinder it."""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from ftrun.helpers.metrics import server as module
from ftrun.helpers.metrics.server import CONNECTIONS, Asked, Page, Server, parse
from runs import wait_for

CONTENT = b"ftrun_up 1.0\n"
Address = tuple[str, int]


class Served:
    """Turns it in a thread as the helper does, until the end of the test."""

    def __init__(self, host: str, content: bytes) -> None:
        self.asked: list[Asked] = []
        self._content = content
        self.server = Server(host, 0, self._page)
        self.address: Address = (host or "127.0.0.1", int(self.server.address.rpartition(":")[2]))
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._turn)
        self._thread.start()

    def _page(self, asked: Asked) -> Page:
        self.asked.append(asked)
        return Page(self._content, (("Content-Type", "text/plain"),))

    def _turn(self) -> None:
        while not self._ending.wait(0.001):
            self.server.turn()

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        self.server.close()


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served("127.0.0.1", CONTENT)
    yield made
    made.close()


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
    return head.partition(b"\r\n")[0].decode(), body


@pytest.mark.parametrize(
    ("request_", "status", "content"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "200 OK", CONTENT),
        (b"GET /metrics?name[]=a HTTP/1.0\r\n\r\n", "200 OK", CONTENT),
        (b"GET / HTTP/1.1\r\n\r\n", "200 OK", CONTENT),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", "200 OK", b""),
        (b"GET /other HTTP/1.1\r\n\r\n", "404 Not Found", None),
        (b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", "404 Not Found", None),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", "405 Method Not Allowed", None),
        (b"GET /metrics\r\n\r\n", "400 Bad Request", None),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", "400 Bad Request", None),
        (b"\xff\xfe \xff HTTP/1.1\r\n\r\n", "405 Method Not Allowed", None),
        (b"GET /metrics HTTP/1.1\r\nA: " + b"x" * 20_000, "431 Request Header Fields Too Large", None),
    ],
)
def test_what_is_answered(served: Served, request_: bytes, status: str, content: bytes | None) -> None:
    found, body = ask(served.address, request_)
    assert found == f"HTTP/1.1 {status}"
    if content is not None:
        assert body == content


def test_headers_are_read_whatever_their_case(served: Served) -> None:
    ask(served.address, b"GET /metrics HTTP/1.1\r\nACCEPT:  application/openmetrics-text \r\nbroken\r\n\r\n")
    assert served.asked[0].headers["accept"] == "application/openmetrics-text"
    assert parse(b"\r\n\r\n") is None


def test_a_request_may_come_in_pieces(served: Served) -> None:
    with socket.create_connection(served.address, 30) as stream:
        for byte in b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n":
            stream.sendall(bytes([byte]))
        assert answer(stream) == ("HTTP/1.1 200 OK", CONTENT)


def test_more_who_say_nothing_than_there_is_room_for_hinder_nobody(served: Served) -> None:
    silent = [socket.create_connection(served.address, 30) for _ in range(3 * CONNECTIONS)]
    try:
        for stream in silent[::2]:
            stream.sendall(b"GET /metrics HT")
        for _ in range(5):
            assert ask(served.address) == ("HTTP/1.1 200 OK", CONTENT)
        wait_for(lambda: len(served.server._open) <= CONNECTIONS, "the oldest are dropped")
        assert silent[0].recv(1) == b"", "the oldest was dropped"
    finally:
        for stream in silent:
            stream.close()


def test_one_who_drips_is_dropped_in_time(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_one_who_does_not_read_is_dropped_and_hinders_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 2.0)
    with closing(Served("127.0.0.1", b"x" * (16 << 20))) as served:
        deaf = [socket.create_connection(served.address, 30) for _ in range(4)]
        try:
            for stream in deaf:
                stream.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            wait_for(lambda: len(served.asked) == 4, "they have asked")
            assert ask(served.address)[0] == "HTTP/1.1 200 OK"
            wait_for(lambda: not served.server._open, "they are dropped")
        finally:
            for stream in deaf:
                stream.close()


def test_one_who_resets_hinders_nobody(served: Served) -> None:
    for content in (b"", b"GET /metrics HTTP/1.1\r\n\r\n"):
        stream = socket.create_connection(served.address, 30)
        stream.sendall(content)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stream.close()
    assert ask(served.address) == ("HTTP/1.1 200 OK", CONTENT)
    wait_for(lambda: not served.server._open, "nothing of them is left")


def test_all_interfaces_are_both_families() -> None:
    with closing(Served("", CONTENT)) as served:
        assert ask(("127.0.0.1", served.address[1])) == ("HTTP/1.1 200 OK", CONTENT)
        if socket.has_dualstack_ipv6():
            assert ask(("::1", served.address[1])) == ("HTTP/1.1 200 OK", CONTENT)


def test_the_address_of_ipv6_is_told_in_brackets() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with closing(Server("::1", 0, lambda _: Page(b"", ()))) as server:
        assert server.address.startswith("[::1]:")


def test_an_address_in_use_is_an_error(served: Served) -> None:
    with pytest.raises(OSError, match="in use"):
        Server(*served.address, lambda _: Page(b"", ()))
