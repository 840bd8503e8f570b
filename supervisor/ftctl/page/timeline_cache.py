"""The timeline as SVG, for any number of clients: the records are read once for all of them."""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Final

from ftctl.page.threads import WorkerThreads
from ftctl.timeline.timeline import draw
from ftrun.core.named_tuple import NamedTuple
from ftrun.drawing import svg
from ftrun.records import history
from ftrun.records.history import History

FRESH: Final = 2.0  # s
SHARE: Final = 10  # times the duration of a read until the next one: the records of a week are many MB
PATIENCE: Final = 20.0  # s
NARROWEST, WIDEST = 320, 2400  # px


class Read(NamedTuple):
    """`seen`: size and modification time of the files before the read."""

    run_dir: str
    seen: tuple[tuple[int, int], ...]
    until: float  # CLOCK_MONOTONIC; until then it is recent enough
    history: History

    def is_final(self, seen: tuple[tuple[int, int], ...]) -> bool:
        """The run is over and nothing was written since, so the picture stays as it is."""
        return not self.history.open and self.seen == seen


class TimelineCache:
    """`find` returns the run dir to read, or raises NoRunDir."""

    def __init__(self, find: Callable[[], str], threads: WorkerThreads) -> None:
        self._find, self._threads = find, threads
        self._last: Read | None = None
        self._reading: asyncio.Future[Read] | None = None

    async def picture(self, width: float, alone: bool) -> str:
        """For `alone` see `svg.render`.  Raises NoRunDir, TimeoutError and Busy."""
        if self._reading is None or self._reading.done():
            self._reading = self._threads.begin(self._read)
        reading = self._reading
        await asyncio.wait([reading], timeout=PATIENCE)
        if not reading.done():
            raise TimeoutError
        found = self._last = reading.result()
        wide = min(max(width, NARROWEST), WIDEST)
        return await self._threads.do(lambda: svg.render(draw(found.history, wide), alone), PATIENCE)

    def _read(self) -> Read:
        """In a thread.  Files that have not changed, or were read recently, are not read again."""
        run_dir, begun, last = self._find(), time.monotonic(), self._last
        seen = tuple(_seen(f"{run_dir}/{name}") for name in ("events.jsonl", "steps.jsonl"))
        if last is not None and last.run_dir == run_dir and (begun < last.until or last.is_final(seen)):
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
