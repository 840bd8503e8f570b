"""`/events`: server-sent events of the HTML standard.

`snapshot`: the present state.  `record`: one record, with an id.  `fresh`: the records sent before are of another run.
`unread`: nothing can be read, and why.  `beat`: nothing is new.  An interrupted stream continues after `Last-Event-ID`.
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
SLOW: Final = 10.0  # s that a client may take to read what it is sent; then it is dropped
RETRY: Final = b"retry: 1000\n\n"


class EventStream:
    """One client, as an ASGI response.  All that it holds is a position in the records."""

    def __init__(self, feed: Feed, after: StreamPosition | None, all_ranks: bool) -> None:
        self._feed, self._after, self._all_ranks = feed, after, all_ranks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
            return
        disconnected = asyncio.create_task(_disconnect(receive))
        self._feed.enter()
        try:
            with contextlib.suppress(Busy):  # an older view will do
                await self._feed.now()
            with contextlib.suppress(TimeoutError):
                await self._serve(send, disconnected)
        finally:
            self._feed.leave()
            disconnected.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await disconnected

    async def _serve(self, send: Send, disconnected: "asyncio.Task[None]") -> None:
        content, sent = RETRY, 0
        while True:
            if content:
                event = {"type": "http.response.body", "body": content, "more_body": True}
                await asyncio.wait_for(send(event), SLOW)
            if disconnected.done() or self._feed.closed:
                break
            view = self._feed.view
            if view.number == sent:
                await self._feed.next(BEAT, disconnected)
            view = self._feed.view
            content = b": heartbeat\n" + _event("beat", "0") if view.number == sent else self._news(view)
            sent = view.number
        if not disconnected.done():
            await asyncio.wait_for(send({"type": "http.response.body", "body": b""}), SLOW)

    def _news(self, view: View) -> bytes:
        if view.snapshot is None:
            return _event("unread", json.dumps({"why": view.why}))
        restart, records = view.records.after(self._after)
        text = json.dumps(view.snapshot) if self._all_ranks else view.text
        parts = [_event("fresh", "0")] if restart else []
        parts += [_event("snapshot", text)]
        parts += [_event("record", one.text, one.position) for one in records]
        self._after = view.records.at
        return b"".join(parts)


def _event(name: str, data: str, position: StreamPosition | None = None) -> bytes:
    mark = "" if position is None else f"id: {position}\n"
    return f"{mark}event: {name}\ndata: {data}\n\n".encode()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
