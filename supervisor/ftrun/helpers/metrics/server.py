"""A web server for one page: whoever asks slowly, too much, or never, is dropped and hinders nobody.

One thread, and all in it is bounded: connections, bytes of a request, and the time from a connection to its end.
"""

import select
import socket
import time
from collections.abc import Callable
from typing import Final, NamedTuple

CONNECTIONS: Final = 32  # of more, the oldest is dropped
REQUEST: Final = 8192  # bytes
PATIENCE: Final = 5.0  # s, from the connection to its end
ACCEPTED: Final = 64  # a turn
PATHS: Final = ("/metrics", "/")


class Page(NamedTuple):
    content: bytes
    headers: tuple[tuple[str, str], ...]


class Asked(NamedTuple):
    """`headers` by name in lower case."""

    method: str
    path: str
    headers: dict[str, str]


class Connection:
    def __init__(self, stream: socket.socket, now: float) -> None:
        self.stream, self.until = stream, now + PATIENCE
        self.request = b""
        self.answer: memoryview | None = None


class Server:
    """Listens from the start; OSError where it cannot.  `fd` can be read when there is something to do: call `turn`.

    `page` makes what is answered; what it raises, but for an OSError, goes through.
    """

    def __init__(self, host: str, port: int, page: Callable[[Asked], Page]) -> None:
        self._page = page
        self._listener = _listen(host, port)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._open: dict[int, Connection] = {}  # the oldest first

    @property
    def fd(self) -> int:
        return self._epoll.fileno()

    @property
    def address(self) -> str:
        """HOST:PORT, with the port that it got."""
        host, port = self._listener.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def deadline(self) -> float | None:
        return next((connection.until for connection in self._open.values()), None)

    def turn(self) -> None:
        """Whatever is to be done now; waits for nobody."""
        for fd, _ in self._epoll.poll(0):
            if fd == self._listener.fileno():
                self._accept()
            elif fd in self._open:
                self._serve(fd, self._open[fd])
        now = time.monotonic()
        for fd in [fd for fd, connection in self._open.items() if connection.until <= now]:
            self._drop(fd)

    def close(self) -> None:
        for fd in list(self._open):
            self._drop(fd)
        self._epoll.close()
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTED):
            try:
                stream, _ = self._listener.accept()
            except OSError:  # none left; or no descriptors, and then who connected has to wait
                return
            if len(self._open) >= CONNECTIONS:
                self._drop(next(iter(self._open)))
            stream.setblocking(False)
            self._open[stream.fileno()] = Connection(stream, time.monotonic())
            self._epoll.register(stream, select.EPOLLIN)

    def _serve(self, fd: int, connection: Connection) -> None:
        try:
            if connection.answer is None:
                more = connection.stream.recv(REQUEST + 1 - len(connection.request))
                connection.request += more
                if not more:
                    self._drop(fd)
                elif b"\r\n\r\n" in connection.request or len(connection.request) > REQUEST:
                    connection.answer = memoryview(self._answer(connection.request))
                    self._epoll.modify(fd, select.EPOLLOUT)
            elif connection.answer:
                connection.answer = connection.answer[connection.stream.send(connection.answer) :]
                if not connection.answer:
                    # A close while there is something to read would be a reset, and that discards the answer.
                    connection.stream.shutdown(socket.SHUT_WR)
                    self._epoll.modify(fd, select.EPOLLIN)
            elif not connection.stream.recv(REQUEST):
                self._drop(fd)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(fd)

    def _answer(self, request: bytes) -> bytes:
        if len(request) > REQUEST:
            return _response("431 Request Header Fields Too Large")
        asked = parse(request)
        if asked is None:
            return _response("400 Bad Request")
        if asked.method not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", headers=(("Allow", "GET, HEAD"),))
        if asked.path not in PATHS:
            return _response("404 Not Found")
        page = self._page(asked)
        return _response("200 OK", page.content, page.headers, body=asked.method == "GET")

    def _drop(self, fd: int) -> None:
        connection = self._open.pop(fd)
        connection.stream.close()  # which takes it out of the epoll set


def parse(request: bytes) -> Asked | None:
    """None for what is no request of HTTP/1."""
    first, *lines = request.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return None
    pairs = [line.partition(":") for line in lines]
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return Asked(words[0], words[1].partition("?")[0], headers)


def _response(status: str, content: bytes = b"", headers: tuple[tuple[str, str], ...] = (), body: bool = True) -> bytes:
    if not status.startswith("200"):
        content, headers = status.encode() + b"\n", (("Content-Type", "text/plain"), *headers)
    fixed = (("Content-Length", str(len(content))), ("Connection", "close"), ("Cache-Control", "no-store"))
    head = "\r\n".join([f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in (*headers, *fixed))])
    return head.encode("latin-1") + b"\r\n\r\n" + (content if body else b"")


def _listen(host: str, port: int) -> socket.socket:
    """On the first address that this host has; on all of this machine where it is empty."""
    if not host and socket.has_dualstack_ipv6():
        return _bound(socket.AF_INET6, ("", port), dual=True)
    family, _, _, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
        0
    ]
    return _bound(family, address)


def _bound(family: int, address: tuple[object, ...], dual: bool = False) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if dual:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        listener.listen(CONNECTIONS)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
