"""What may block, as a disk may, is done beside the event loop, in threads that nobody waits for at the end."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Busy(Exception):
    """As much as there may be is under way: the disk does not answer."""


class WorkerThreads:
    """At most `most` threads at once, of one event loop."""

    def __init__(self, most: int) -> None:
        self._left = most

    def begin(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Its result, or its exception.  A future that is cancelled ends no thread.  Busy: nothing was begun."""
        if not self._left:
            raise Busy("too much is waiting for the disk")
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
                tell(lambda failed=error: future.set_exception(failed))  # type: ignore[misc]
            else:
                tell(lambda: future.set_result(result))

        def tell(settle: Callable[[], None]) -> None:
            try:
                loop.call_soon_threadsafe(done, settle)
            except RuntimeError:  # the loop is gone
                pass

        threading.Thread(target=run, name="reads", daemon=True).start()
        return future

    async def do(self, work: Callable[[], T], within: float) -> T:
        """TimeoutError: it takes longer than `within` s, and goes on by itself.  Busy."""
        return await asyncio.wait_for(self.begin(work), within)
