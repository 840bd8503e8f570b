"""`/events`: server-sent events of the HTML standard.

`snapshot`: the present state.  `record`: one record, with an id.  `fresh`: the records sent before are of another run.
`unread`: nothing can be read, and why.  `beat`: nothing is new.  An interrupted stream continues after `Last-Event-ID`.
"""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Final

from ftctl.page.feed import Feed, View
from ftctl.page.record_follower import StreamPosition
from ftctl.page.threads import Busy

BEAT: Final = 5.0  # s


async def event_stream(feed: Feed, after: StreamPosition | None, all_ranks: bool) -> AsyncIterator[bytes]:
    """The events for one client, until the feed is closed.  All that is kept for it is a position in the records."""
    feed.enter()
    try:
        with contextlib.suppress(Busy):  # an older view will do
            await feed.now()
        yield b"retry: 1000\n\n"
        sent = 0
        while not feed.closed:
            if feed.view.number == sent:
                await feed.next(BEAT)
            view = feed.view
            if view.number == sent:
                yield b": heartbeat\n" + _event("beat", "0")
            elif view.snapshot is None:
                yield _event("unread", json.dumps({"why": view.why}))
            else:
                yield _news(view, after, all_ranks)
                after = view.records.at
            sent = view.number
    finally:
        feed.leave()


def _news(view: View, after: StreamPosition | None, all_ranks: bool) -> bytes:
    restart, records = view.records.after(after)
    parts = [_event("fresh", "0")] if restart else []
    parts += [_event("snapshot", json.dumps(view.snapshot) if all_ranks else view.text)]
    parts += [_event("record", one.text, one.position) for one in records]
    return b"".join(parts)


def _event(name: str, data: str, position: StreamPosition | None = None) -> bytes:
    mark = "" if position is None else f"id: {position}\n"
    return f"{mark}event: {name}\ndata: {data}\n\n".encode()
