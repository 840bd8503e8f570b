"""The page as an ASGI application, which only reads the run dir, and the server for it."""

import asyncio
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from ftctl.page.feed import Feed, StreamPosition, event_stream
from ftctl.page.middleware import Middleware
from ftctl.page.reports import PICTURE_HEADERS, ReadMember, Reports
from ftctl.page.threads import Busy, WorkerThreads
from ftctl.timeline.timeline import NARROWEST, WIDEST, draw
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.text import states
from ftrun.drawing import svg
from ftrun.records.files.rundir import NoRunDir
from ftrun.records.past import history, schedules
from ftrun.records.past.history import History

STREAMS: Final = 32
CONNECTIONS: Final = 512  # uvicorn answers those above this number with 503; below the usual limit of 1,024 open files
GOODBYE: Final = 1  # s for responses in progress at the end
THREADS: Final = 8
PROMPT: Final = 1.0  # s for /healthz
PATIENCE: Final = 10.0  # s, for the state dir
FRESH: Final = 2.0  # s for which a picture of the timeline is recent enough
SHARE: Final = 10  # times the duration of a read until the next one: the records of a week are many MB
DRAWING: Final = 20.0  # s
LIVES: Final = 64  # of the history, the last ones that are shown
SCRIPTS: Final = ("app.js", "cells.js", "draw.js", "job.js", "ranks.js", "records.js")
FILES: Final = {"index.html": "text/html", **dict.fromkeys(SCRIPTS, "text/javascript")} | {
    "style.css": "text/css",
    "icon.svg": "image/svg+xml",
}


class Page:
    """`find` returns the run dir to read; it is called each time.  For `read_member` see `Reports`."""

    def __init__(self, find: Callable[[], str], read_member: ReadMember | None = None) -> None:
        self._threads = WorkerThreads(THREADS)
        self._reports = Reports(find, self._threads, read_member)
        self.feed = Feed(find, self._threads)
        self._timeline_cache = TimelineCache(find, self._threads)
        self._find = find

    def application(self, hosts: frozenset[str] = frozenset(), any_address: bool = False) -> ASGIApp:
        """The ASGI application.  For `hosts` and `any_address` see `Middleware`."""
        routes = [
            Route("/", _file("index.html")),
            *(Route(f"/{name}", _file(name)) for name in FILES if name != "index.html"),
            Route("/snapshot.json", self._snapshot),
            Route("/events", self._events),
            Route("/timeline.svg", self._timeline),
            Route("/history.json", self._history),
            *self._reports.routes,
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
        """The response of `respond` to the present view; 503 where nothing can be read."""
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

    async def _history(self, request: Request) -> Response:
        """The schedules of the job and their attempts.  The state dir may be on another disk than the run dir."""

        def read() -> dict[str, Any]:
            run_dir = self._find()
            lives, source = schedules.of_job(run_dir)
            folder = "" if source == os.path.abspath(run_dir) else source
            return {"source": source, "rows": schedules.table(lives[-LIVES:], folder, run_dir)}

        try:
            found = await self._threads.do(read, PATIENCE)
        except NoRunDir as error:
            return _plain(str(error), 404)
        except (Busy, TimeoutError, OSError):
            return _unavailable("the disk does not answer")
        return Response(json.dumps(found), media_type="application/json")


class TimelineRead(NamedTuple):
    """`seen`: size and modification time of the files before the read."""

    run_dir: str
    seen: tuple[tuple[int, int], ...]
    until: float  # CLOCK_MONOTONIC; until then it is recent enough
    history: History

    def is_final(self, seen: tuple[tuple[int, int], ...]) -> bool:
        """The run is over and nothing was written since, so the picture stays as it is."""
        return not self.history.open and self.seen == seen


class TimelineCache:
    """The timeline as SVG, for any number of clients: the records are read once for all of them.  `find` returns the
    run dir to read, or raises NoRunDir."""

    def __init__(self, find: Callable[[], str], threads: WorkerThreads) -> None:
        self._find, self._threads = find, threads
        self._last: TimelineRead | None = None
        self._reading: asyncio.Future[TimelineRead] | None = None

    async def picture(self, width: float, alone: bool) -> str:
        """For `alone` see `svg.render`.  Raises NoRunDir, TimeoutError and Busy."""
        if self._reading is None or self._reading.done():
            self._reading = self._threads.begin(self._read)
        reading = self._reading
        await asyncio.wait([reading], timeout=DRAWING)
        if not reading.done():
            raise TimeoutError
        found = self._last = reading.result()
        wide = min(max(width, NARROWEST), WIDEST)
        return await self._threads.do(lambda: svg.render(draw(found.history, wide), alone), DRAWING)

    def _read(self) -> TimelineRead:
        """Read the history, in a thread.  Files that have not changed, or were read recently, are not read again."""
        run_dir, begun, last = self._find(), time.monotonic(), self._last
        seen = tuple(_seen(f"{run_dir}/{name}") for name in ("events.jsonl", "steps.jsonl"))
        if last is not None and last.run_dir == run_dir and (begun < last.until or last.is_final(seen)):
            return last
        found = history.read(run_dir)
        done = time.monotonic()
        return TimelineRead(run_dir, seen, done + max(FRESH, SHARE * (done - begun)), found)


def _seen(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


class PageServer(uvicorn.Server):
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


def _file(name: str) -> Callable[[Request], Awaitable[Response]]:
    content = (files("ftctl.page") / name).read_text(encoding="utf-8") + (svg.STYLE if name == "style.css" else "")

    async def answer(request: Request) -> Response:
        return Response(content, media_type=FILES[name])

    return answer


def _unavailable(why: str) -> Response:
    return _plain(why, 503, {"retry-after": "5"})


def _plain(text: str, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A response of plain text.  A path in it may contain bytes that cannot be decoded."""
    return PlainTextResponse(f"{text}\n".encode("utf-8", "backslashreplace"), status, headers)
