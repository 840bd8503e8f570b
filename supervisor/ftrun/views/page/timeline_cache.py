"""The timeline as SVG, for as many as ask for it: the records are read once for all of them."""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from ftrun.views import history, svg
from ftrun.views.history import History
from ftrun.views.page.threads import WorkerThreads
from ftrun.views.timeline import draw

FRESH: Final = 2.0  # s
SHARE: Final = 10  # times as long as it takes to read the records it is not done again: a week of them is many MB
PATIENCE: Final = 20.0  # s
NARROWEST, WIDEST = 640, 2400  # px


class Read(NamedTuple):
    """`seen`: what the files were like before."""

    run_dir: str
    seen: tuple[tuple[int, int], ...]
    until: float  # monotonic; so long it is good enough
    history: History

    def over(self, seen: tuple[tuple[int, int], ...]) -> bool:
        """Nothing comes any more: time does not go on in this picture."""
        return not self.history.open and self.seen == seen


class TimelineCache:
    """`find` says which run dir to read; NoRunDir."""

    def __init__(self, find: Callable[[], str], aside: WorkerThreads) -> None:
        self._find, self._aside = find, aside
        self._last: Read | None = None
        self._reading: asyncio.Future[Read] | None = None

    async def picture(self, width: float, alone: bool) -> str:
        """For `alone` see `svg.render`.  NoRunDir, TimeoutError, Busy."""
        if self._reading is None or self._reading.done():
            self._reading = self._aside.begin(self._read)
        reading = self._reading
        await asyncio.wait([reading], timeout=PATIENCE)
        if not reading.done():
            raise TimeoutError
        found = self._last = reading.result()
        wide = min(max(width, NARROWEST), WIDEST)
        return await self._aside.do(lambda: svg.render(draw(found.history, wide), alone, "timeline"), PATIENCE)

    def _read(self) -> Read:
        """In a thread.  What has not changed, or was read just now, is not read again."""
        run_dir, begun, last = self._find(), time.monotonic(), self._last
        seen = tuple(_seen(f"{run_dir}/{name}") for name in ("events.jsonl", "steps.jsonl"))
        if last is not None and last.run_dir == run_dir and (begun < last.until or last.over(seen)):
            return last
        found = history.read(run_dir)
        done = time.monotonic()
        return Read(run_dir, seen, done + max(FRESH, SHARE * (done - begun)), found)


def _seen(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns
