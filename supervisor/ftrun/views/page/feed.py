"""The one reader of the run dir, for all who look at the page: a look a second while anybody is there."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ftrun.views.page.payload import brief, payload
from ftrun.views.page.record_follower import Follower, Records
from ftrun.views.page.threads import Busy, WorkerThreads
from ftrun.views.run_snapshot import look
from ftrun.views.rundir import NoRunDir
from ftrun.views.steps import paces

PERIOD: Final = 1.0  # s
PATIENCE: Final = 5.0  # s that a disk may take before it is said


class View(NamedTuple):
    """A look.  `number`: rises with each that shows something new; 0: there was none yet.  `snapshot` has all ranks,
    and `text` is the same in brief, as JSON; without them `why` says why nothing can be read."""

    number: int = 0
    run_dir: str = ""
    records: Records = Records()
    snapshot: dict[str, Any] | None = None
    text: str = ""
    why: str | None = None


class Feed:
    """`find` says which run dir to read, anew each time; NoRunDir: none any more."""

    def __init__(self, find: Callable[[], str], aside: WorkerThreads) -> None:
        self.view = View()
        self.closed = False
        self._find, self._aside = find, aside
        self._follower = Follower()
        self._watchers = 0
        self._looked = float("-inf")
        self._reading: asyncio.Future[View | str] | None = None
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    async def now(self) -> View:
        """Not older than a second.  Busy: the disk does not answer."""
        if time.monotonic() - self._looked >= PERIOD:
            await self._refresh()
        if self.view.number == 0:
            raise Busy("the disk does not answer")
        return self.view

    async def next(self, within: float, gone: "asyncio.Task[None]") -> None:
        """Until there is news, or so many seconds have passed, or who waits is gone."""
        news = asyncio.create_task(self._news.wait())
        await asyncio.wait([news, gone], timeout=within, return_when=asyncio.FIRST_COMPLETED)
        news.cancel()

    def enter(self) -> None:
        """Somebody watches: the looking goes on by itself until all have left."""
        self._watchers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())

    def leave(self) -> None:
        self._watchers -= 1

    def close(self) -> None:
        self.closed = True
        self._tell()

    async def _watch(self) -> None:
        while self._watchers and not self.closed:
            begun = time.monotonic()
            await self._refresh()
            await asyncio.sleep(max(0.05, begun + PERIOD - time.monotonic()))

    async def _refresh(self) -> None:
        """One look; for who asks while it is under way, it is the same."""
        if self._reading is None:
            try:
                self._reading = self._aside.begin(self._look)
            except Busy as busy:
                return self._unread(str(busy))
        reading = self._reading
        await asyncio.wait([reading], timeout=PATIENCE)
        if not reading.done():
            return self._unread("the disk does not answer")
        if self._reading is reading:
            self._reading = None
            self._looked = time.monotonic()
            found = reading.result()
            if isinstance(found, str):
                self._unread(found)
            else:
                self._publish(found)
        return None

    def _unread(self, why: str) -> None:
        self._publish(self.view._replace(snapshot=None, text="", why=why))

    def _publish(self, view: View) -> None:
        """`snapshot` is new each time, `text` only if there is something new in it."""
        new = self.view.number == 0 or view._replace(snapshot=None) != self.view._replace(snapshot=None)
        self.view = view._replace(number=self.view.number + new)
        if new:
            self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _look(self) -> View | str:
        """In a thread.  Whatever goes wrong is said: the page is there for runs that are in trouble."""
        run_dir = self.view.run_dir
        try:
            run_dir = self._find()
            shown = look(run_dir)
            records = self._follower.read(f"{run_dir}/events.jsonl")
            whole = payload(shown, paces(shown.run_dir, shown.attempt))
            return View(self.view.number, run_dir, records, whole, json.dumps(brief(whole)))
        except NoRunDir as error:
            return str(error)
        except OSError as error:
            return f"{error.filename or run_dir}: {error.strerror}"
        except Exception as error:
            return f"{run_dir}: it cannot be read: {error!r}"
