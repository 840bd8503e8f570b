"""The page as an ASGI application, which only reads the run dir, and the server for it."""

import asyncio
import errno
import html
import json
import os
import re
import socket
import stat
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from ftrun.core.text import states
from ftrun.views.page.event_stream import event_stream
from ftrun.views.page.feed import Feed
from ftrun.views.page.middleware import Middleware
from ftrun.views.page.record_follower import StreamPosition
from ftrun.views.page.threads import Busy, WorkerThreads
from ftrun.views.page.timeline_cache import TimelineCache
from ftrun.views.rundir import NoRunDir
from ftrun.views.svg import STYLE

STREAMS: Final = 32
CONNECTIONS: Final = 512  # uvicorn answers those above this number with 503; below the usual limit of 1,024 open files
GOODBYE: Final = 1  # s for responses in progress at the end
PICTURE_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
}
THREADS: Final = 8
PROMPT: Final = 1.0  # s for /healthz
PATIENCE: Final = 10.0  # s, for a file
REPORT_MOST: Final = 1 << 20  # bytes
FILES: Final = {"index.html": "text/html", "app.js": "text/javascript", "draw.js": "text/javascript"} | {
    "style.css": "text/css",
    "icon.svg": "image/svg+xml",
}
REPORT: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Report of attempt {number} – ftrun</title>
<link rel="icon" href="../icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="../style.css">
</head>
<body class="report">
<header><h1>Report of attempt {number}</h1><p><a href="../">Back to the run</a></p></header>
<main>{picture}<pre tabindex="0" role="region" aria-label="The report">{text}</pre></main>
</body>
</html>
"""


class Page:
    """`find` returns the run dir to read; it is called each time."""

    def __init__(self, find: Callable[[], str]) -> None:
        self._threads = WorkerThreads(THREADS)
        self.feed = Feed(find, self._threads)
        self._timeline_cache = TimelineCache(find, self._threads)
        self._find = find

    def application(self, hosts: frozenset[str] = frozenset(), any_address: bool = False) -> ASGIApp:
        """For `hosts` and `any_address` see `Middleware`."""
        routes = [
            Route("/", _file("index.html")),
            *(Route(f"/{name}", _file(name)) for name in FILES if name != "index.html"),
            Route("/snapshot.json", self._snapshot),
            Route("/events", self._events),
            Route("/timeline.svg", self._timeline),
            Route("/report/{number}", self._report),
            Route("/report/{number}/waits-{picture}.svg", self._waits),
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
        ]
        return Middleware(Starlette(routes=routes), hosts, any_address)

    async def _snapshot(self, request: Request) -> Response:
        return await self._answer(lambda now: Response(json.dumps(now), media_type="application/json"))

    async def _healthz(self, request: Request) -> Response:
        """503 if the run has ended badly, or is gone without a verdict.  A disk that does not answer is no reason: this
        server works."""
        try:
            view = await asyncio.wait_for(self.feed.now(), PROMPT)
        except (Busy, TimeoutError):
            view = self.feed.view
        now = view.snapshot
        if now is None or now["alive"] or now["exit_code"] == 0 or not now["attempt"]:
            return _plain("ok")
        return _unavailable(now["headline"])

    async def _readyz(self, request: Request) -> Response:
        """200 only while the command runs under supervision: not after its end, however good that was."""

        def ready(now: dict[str, Any]) -> Response:
            runs = now["alive"] and now["phase"] in states.LIVE
            return _plain("ok") if runs else _unavailable(now["headline"])

        return await self._answer(ready)

    async def _answer(self, respond: Callable[[dict[str, Any]], Response]) -> Response:
        """The response to what is known now; 503 where that is nothing."""
        try:
            view = await self.feed.now()
        except Busy as busy:
            return _unavailable(str(busy))
        return _unavailable(f"{view.why}") if view.snapshot is None else respond(view.snapshot)

    async def _events(self, request: Request) -> Response:
        if self.feed.clients >= STREAMS:
            return _unavailable(f"{STREAMS} pages are open already")
        after = StreamPosition.of(request.headers.get("last-event-id") or request.query_params.get("after", ""))
        kind, headers = "text/event-stream", {"x-accel-buffering": "no"}
        if request.method == "HEAD":
            return Response(media_type=kind, headers=headers)
        events = event_stream(self.feed, after, request.query_params.get("ranks") == "all")
        return StreamingResponse(events, media_type=kind, headers=headers)

    async def _timeline(self, request: Request) -> Response:
        """Query: `width` in px; `inline`: the picture is put into the page."""
        width, inline = request.query_params.get("width", ""), "inline" in request.query_params
        wide = float(width) if width.isdecimal() and len(width) < 6 else 1200.0
        try:
            text = await self._timeline_cache.picture(wide, not inline)
        except NoRunDir as error:
            return _plain(str(error), 404)
        except (Busy, TimeoutError):
            return _unavailable("the disk does not answer")
        return Response(text, media_type="image/svg+xml", headers=None if inline else PICTURE_HEADERS)

    async def _report(self, request: Request) -> Response:
        number = request.path_params["number"]
        if not re.fullmatch(r"[1-9][0-9]{0,8}", number):
            return _plain("no such report", 404)
        try:
            text = await self._threads.do(lambda: _text(f"{self._find()}/reports/attempt-{number}/report.md"), PATIENCE)
        except (Busy, TimeoutError):
            return _unavailable("the disk does not answer")
        except (NoRunDir, OSError):
            return _plain(f"no report of attempt {number}", 404)
        found = re.search(r"^!\[[^\]\n]*\]\((waits-[1-9][0-9]{0,3}\.svg)\)$", text, re.MULTILINE)
        picture = f'<img src="{number}/{found[1]}" alt="What waits for what">' if found else ""
        return HTMLResponse(REPORT.format(number=number, picture=picture, text=html.escape(text)))

    async def _waits(self, request: Request) -> Response:
        """The picture to which a report refers."""
        number, picture = request.path_params["number"], request.path_params["picture"]
        if not all(re.fullmatch(r"[1-9][0-9]{0,8}", one) for one in (number, picture)):
            return _plain("no such picture", 404)
        path = f"reports/attempt-{number}/waits-{picture}.svg"
        try:
            text = await self._threads.do(lambda: _text(f"{self._find()}/{path}"), PATIENCE)
        except (Busy, TimeoutError):
            return _unavailable("the disk does not answer")
        except (NoRunDir, OSError):
            return _plain("no such picture", 404)
        return Response(text, media_type="image/svg+xml", headers=PICTURE_HEADERS)


class Server(uvicorn.Server):
    """Without logs, with bounded connections.  `run([socket])` serves until a signal, which then has its default
    effect: KeyboardInterrupt for Ctrl-C."""

    def __init__(self, application: ASGIApp, feed: Feed) -> None:
        self._feed = feed
        super().__init__(
            uvicorn.Config(
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
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Event streams do not end by themselves."""
        self._feed.close()
        await super().shutdown(sockets)


def _text(path: str) -> str:
    """The text of a regular file: a symbolic link that the job put in its place is not followed."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        content = os.read(fd, REPORT_MOST)
    finally:
        os.close(fd)
    text = content.decode("utf-8", "replace")
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def _file(name: str) -> Callable[[Request], Awaitable[Response]]:
    content = (files("ftrun.views.page") / name).read_text(encoding="utf-8") + (STYLE if name == "style.css" else "")

    async def answer(request: Request) -> Response:
        return Response(content, media_type=FILES[name])

    return answer


def _unavailable(why: str) -> Response:
    return _plain(why, 503, {"retry-after": "5"})


def _plain(text: str, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A path in it may contain bytes that cannot be decoded."""
    return PlainTextResponse(f"{text}\n".encode("utf-8", "backslashreplace"), status, headers)
