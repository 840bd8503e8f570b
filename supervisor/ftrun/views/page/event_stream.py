"""`/events`: server-sent events, as the HTML standard has them.

`snapshot`: how it stands.  `record`: one, with an id.  `fresh`: what was told of records before is not of this run.
`unread`: nothing can be read, and why.  `beat`: nothing is new.  A stream that was cut goes on after `Last-Event-ID`.
"""

import asyncio
import contextlib
import json
from typing import Final

from starlette.types import Receive, Scope, Send

from ftrun.views.page.feed import Feed, View
from ftrun.views.page.record_follower import StreamPosition
from ftrun.views.page.threads import Busy

BEAT: Final = 5.0  # s
SLOW: Final = 10.0  # s that a client may take for what it is sent; one that does not read is dropped
RETRY: Final = b"retry: 1000\n\n"


class EventStream:
    """One client, as an ASGI response.  It holds no more than a place in the records."""

    def __init__(self, feed: Feed, after: StreamPosition | None, whole: bool) -> None:
        self._feed, self._after, self._whole = feed, after, whole

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
            return
        gone = asyncio.create_task(_gone(receive))
        self._feed.enter()
        try:
            with contextlib.suppress(Busy):  # what is there may be old
                await self._feed.now()
            with contextlib.suppress(TimeoutError):
                await self._serve(send, gone)
        finally:
            self._feed.leave()
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone

    async def _serve(self, send: Send, gone: "asyncio.Task[None]") -> None:
        content, seen = RETRY, 0
        while True:
            if content:
                event = {"type": "http.response.body", "body": content, "more_body": True}
                await asyncio.wait_for(send(event), SLOW)
            if gone.done() or self._feed.closed:
                break
            view = self._feed.view
            if view.number == seen:
                await self._feed.next(BEAT, gone)
            view = self._feed.view
            content = b": heartbeat\n" + _event("beat", "0") if view.number == seen else self._news(view)
            seen = view.number
        if not gone.done():
            await asyncio.wait_for(send({"type": "http.response.body", "body": b""}), SLOW)

    def _news(self, view: View) -> bytes:
        if view.snapshot is None:
            return _event("unread", json.dumps({"why": view.why}))
        anew, records = view.records.after(self._after)
        text = json.dumps(view.snapshot) if self._whole else view.text
        parts = [_event("fresh", "0")] if anew else []
        parts += [_event("snapshot", text)]
        parts += [_event("record", one.text, one.place) for one in records]
        self._after = view.records.at
        return b"".join(parts)


def _event(name: str, data: str, place: StreamPosition | None = None) -> bytes:
    mark = "" if place is None else f"id: {place}\n"
    return f"{mark}event: {name}\ndata: {data}\n\n".encode()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
