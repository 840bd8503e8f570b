"""Sends the view of the group to its members, little by little.

All at once, the rows of a thousand members for each of a thousand members would be 600 MB in the queues of rank 0's
messenger, several times what it may use.
"""

import math
from collections import deque
from collections.abc import Callable, Collection
from typing import Final

from ftrun.messages import group_view as messages
from ftrun.messages.group_view import GroupView, MemberRow

RATE: Final = 4 * messages.BYTES_PER_SECOND  # news may make the views of a group four times as frequent
BURST: Final = 1_000_000  # bytes that are sent at once: the whole view, in a group of up to 40 members
FRESH: Final = 1.0  # s for which the same bytes are sent, since they contain the time


class ViewDelivery:
    """`send` passes bytes to that member; one that does not take them misses these rows until the next view."""

    def __init__(self, send: Callable[[int, bytes], bool]) -> None:
        self._send = send
        self._view: GroupView | None = None
        self._parts: deque[tuple[MemberRow, ...]] = deque()
        self._members: tuple[int, ...] = ()
        self._served = 0  # of the members, with the first part
        self._content, self._made = b"", -math.inf
        self._paid = 0.0  # the time from which on more may be sent

    @property
    def due(self) -> float:
        """When `process` has to be called next; infinity: nothing is left to send."""
        return self._paid if self._parts else math.inf

    def begin(self, view: GroupView, members: Collection[int]) -> None:
        """Send this view to these members, from the next `process` on.  The one before has been sent."""
        self._view, self._members, self._served, self._made = view, tuple(members), 0, -math.inf
        self._parts = deque(_parts(view.rows) if members else ())

    def process(self, now: float) -> None:
        self._paid = max(self._paid, now - BURST / RATE)
        while self._parts and self._paid <= now:
            if now >= self._made + FRESH:
                self._content, self._made = self._dump(now), now
            self._send(self._members[self._served], self._content)
            self._paid += len(self._content) / RATE
            self._served += 1
            if self._served == len(self._members):
                self._parts.popleft()
                self._served, self._made = 0, -math.inf

    def _dump(self, now: float) -> bytes:
        """The first part, as of now."""
        assert self._view is not None
        view, loss = self._view, self._view.loss
        if loss is not None:
            loss = loss._replace(left=max(0.0, loss.left - (now - view.now)))
        return messages.dump(view._replace(now=now, loss=loss, rows=self._parts[0]))


def _parts(rows: tuple[MemberRow, ...]) -> list[tuple[MemberRow, ...]]:
    """The rows by the frames that they are sent in, of at most LIMIT bytes."""
    parts, some, size = [], list[MemberRow](), 0
    for row in rows:
        length = len(messages.dump(row))
        if some and size + length > messages.VIEW_ROWS:
            parts.append(tuple(some))
            some, size = [], 0
        if length <= messages.VIEW_ROWS:
            some.append(row)
            size += length
    return [*parts, tuple(some)]
