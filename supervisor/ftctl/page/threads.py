"""Work that may block on a disk runs beside the event loop, in daemon threads that the exit does not wait for."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Busy(Exception):
    """All threads are busy: the disk does not answer."""


class WorkerThreads:
    """At most `most` threads at once, for one event loop."""

    def __init__(self, most: int) -> None:
        self._left = most

    def begin(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """A future of its result or exception.  Cancelling it ends no thread.  Busy: the work was not started."""
        if not self._left:
            raise Busy("too many reads are waiting for the disk")
        self._left -= 1
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def done(settle: Callable[[], None]) -> None:
            self._left += 1
            if not future.done():
                settle()

        def run() -> None:
            try:
                result = work()
            except Exception as error:
                schedule(lambda failed=error: future.set_exception(failed))  # type: ignore[misc]
            else:
                schedule(lambda: future.set_result(result))

        def schedule(settle: Callable[[], None]) -> None:
            try:
                loop.call_soon_threadsafe(done, settle)
            except RuntimeError:  # the loop is gone
                pass

        threading.Thread(target=run, name="reads", daemon=True).start()
        return future

    async def do(self, work: Callable[[], T], within: float) -> T:
        """TimeoutError: the work takes longer than `within` s; it continues in its thread.  Busy: see `begin`."""
        return await asyncio.wait_for(self.begin(work), within)
