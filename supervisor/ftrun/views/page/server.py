"""uvicorn, without logs, with bounded connections and a prompt shutdown."""

import socket
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from ftrun.views.page.feed import Feed

CONNECTIONS: Final = 512  # uvicorn answers those above this number with 503; below the usual limit of 1,024 open files
GOODBYE: Final = 1  # s for responses in progress


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, feed: Feed) -> None:
        super().__init__(config)
        self._feed = feed

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Event streams do not end by themselves."""
        self._feed.close()
        await super().shutdown(sockets)


def server(application: ASGIApp, feed: Feed) -> Server:
    """`run([socket])` serves until a signal, which then has its default effect: KeyboardInterrupt for Ctrl-C."""
    config = uvicorn.Config(
        application,
        http="h11",
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
