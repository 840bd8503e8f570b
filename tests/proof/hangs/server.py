"""The servers outside the job: one for HTTP, one that echoes lines."""

from __future__ import annotations

import http.server
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Replies(http.server.BaseHTTPRequestHandler):
    """PUT /wait/SECONDS, /429[/SECONDS], /stall/SECONDS, /drip/SECONDS, or /RATE with a body."""

    def do_PUT(self) -> None:
        what, _, argument = self.path.strip("/").partition("/")
        if what == "429":
            self.refuse(argument)
        elif what in ("wait", "stall", "drip"):
            getattr(self, what)(float(argument))
        else:
            self.take(float(what))

    do_GET = do_PUT

    def wait(self, seconds: float) -> None:
        """Answer after that time."""
        time.sleep(seconds)
        self.reply()

    def stall(self, seconds: float) -> None:
        """Send half of the reply, and the rest after that time."""
        self.reply(8)
        self.wfile.write(b"half")
        time.sleep(seconds)
        self.wfile.write(b"half")

    def drip(self, seconds: float) -> None:
        """Send a byte every ten seconds."""
        self.reply(int(seconds / 10) + 1)
        for _ in range(int(seconds / 10)):
            self.wfile.write(b"x")
            time.sleep(10)
        self.wfile.write(b"x")

    def refuse(self, seconds: str) -> None:
        """Too many requests: the first one of a path, with the time after which to try again."""
        first = self.path not in self.server.refused  # type: ignore[attr-defined]
        self.server.refused.add(self.path)  # type: ignore[attr-defined]
        self.send_response(429 if first or not seconds else 200)
        if seconds:
            self.send_header("Retry-After", seconds.split("/")[0])
        self.send_header("Content-Length", "0")
        self.end_headers()

    def take(self, rate: float) -> None:
        """Read the body at so many bytes a second."""
        left, begun, taken = int(self.headers["Content-Length"]), time.monotonic(), 0
        while left > 0 and (piece := self.rfile.read(min(left, max(4096, int(rate / 20))))):
            left, taken = left - len(piece), taken + len(piece)
            time.sleep(max(0.0, begun + taken / rate - time.monotonic()))
        self.reply()

    def reply(self, length: int = 0) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


class Http(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Replies)
        self.refused: set[str] = set()

    def get_request(self) -> tuple[socket.socket, object]:
        connection, address = super().get_request()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        return connection, address

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed is seen from its run."""


class Database(socketserver.StreamRequestHandler):
    """Answers each line `SECONDS ...` after that time."""

    def handle(self) -> None:
        for line in self.rfile:
            time.sleep(float(line.split()[0]))
            self.wfile.write(line)


class Lines(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Database)

    def handle_error(self, request: object, client_address: object) -> None:
        """As above."""


@contextmanager
def serving() -> Iterator[tuple[int, int]]:
    """The ports of the two servers."""
    servers = (Http(), Lines())
    threads = [threading.Thread(target=server.serve_forever) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield servers[0].server_address[1], servers[1].server_address[1]
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()
