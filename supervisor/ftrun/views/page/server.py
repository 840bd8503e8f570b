"""uvicorn, quiet, bounded, and gone as soon as it is asked to go."""

import asyncio
import socket
from typing import Any, Final

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ftrun.views.page.feed import Feed

CONNECTIONS: Final = 128
ASKING: Final = 5.0  # s for a whole request, from the connection or the last answer on; who needs longer is dropped
GOODBYE: Final = 1  # s for answers that are under way


class Protocol(H11Protocol):
    """uvicorn's own, which would wait for ever for the rest of a request."""

    _asking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._asking is not None:
            self._asking.cancel()

    def _await_request(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
        self._asking = self.loop.call_later(ASKING, self._drop)

    def _drop(self) -> None:
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self.transport.abort()


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, feed: Feed) -> None:
        super().__init__(config)
        self._feed = feed

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Streams have no end of their own."""
        self._feed.close()
        await super().shutdown(sockets)


def server(application: ASGIApp, feed: Feed) -> Server:
    """`run([socket])` serves until a signal, which then does what it does by default: KeyboardInterrupt for Ctrl-C."""
    config = uvicorn.Config(
        application,
        http=Protocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=GOODBYE,
    )
    return Server(config, feed)
