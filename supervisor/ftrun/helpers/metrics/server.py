"""The HTTP server of the metrics: prometheus_client's request handler, with a thread for each connection.  Their
number and duration, and the size of a request, are bounded, so that no client holds up another."""

import io
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import ThreadingHTTPServer
from threading import BoundedSemaphore, Thread
from typing import Any, Final

from prometheus_client import CollectorRegistry, MetricsHandler
from prometheus_client.registry import Collector

CONNECTIONS: Final = 32  # the oldest one is closed to make room for a new one
REQUEST: Final = 8192  # bytes; a longer request gets no answer
PATIENCE: Final = 5.0  # s, from the connection to its end
TURN: Final = 1.0  # s between checks for connections that are over their time


class RequestHandler(MetricsHandler):
    server_version, sys_version = "ftrun", ""
    timeout = PATIENCE

    def setup(self) -> None:
        """Reads the whole request first, since http.server alone would accept several MiB of headers."""
        super().setup()
        head = b""
        while b"\r\n\r\n" not in head and (more := self.connection.recv(REQUEST)):
            head += more
            if len(head) > REQUEST:
                raise ConnectionError("the request is too long")
        self.rfile = io.BytesIO(head)


class MetricsServer(ThreadingHTTPServer):
    """Listens from its creation on and answers in threads of its own; OSError where it cannot listen.  An empty `host`:
    all addresses of this machine.  `problem` gets one line for each unexpected exception."""

    daemon_threads = True

    def __init__(self, host: str, port: int, collector: Collector, problem: Callable[[str], None]) -> None:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        super().__init__(("", port), RequestHandler.factory(registry), bind_and_activate=False)
        self.socket.close()
        self.socket = _listen(host, port)
        self._problem = problem
        self._open: dict[Any, float] = {}  # the oldest connection first, with the time at which it is closed
        self._room = BoundedSemaphore(CONNECTIONS)
        Thread(target=self.serve_forever, args=(TURN,), daemon=True).start()

    @property
    def address(self) -> str:
        """HOST:PORT, with the port that it got."""
        host, port = self.socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def verify_request(self, request: Any, client_address: object) -> bool:
        for oldest in list(self._open)[: max(0, len(self._open) - CONNECTIONS + 1)]:
            _cut(oldest)
        if not self._room.acquire(timeout=TURN):  # all threads are in use, for example blocked by a dead disk
            return False
        self._open[request] = time.monotonic() + PATIENCE
        return True

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        if self._open.pop(request, None) is not None:
            self._room.release()

    def service_actions(self) -> None:
        now = time.monotonic()
        for request, until in list(self._open.items()):
            if until <= now:
                _cut(request)

    def handle_error(self, request: object, client_address: object) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            self._problem(f"a scrape failed: {error!r}")


def _cut(request: socket.socket) -> None:
    """Ends the connection, and so the thread that reads from it or writes to it."""
    with suppress(OSError):  # it has just ended by itself
        request.shutdown(socket.SHUT_RDWR)


def _listen(host: str, port: int) -> socket.socket:
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=CONNECTIONS, dualstack_ipv6=True)
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    return socket.create_server(address, family=family, backlog=CONNECTIONS)
