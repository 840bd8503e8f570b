"""What is excluded as an influence on a thread, by windows in which it was observed.  Pure.

What looks untouched may have been used all the same, if something else has cleared the accessed bits within the window:
the kernel does so when it looks for memory to reclaim (multi-generational LRU), and so do profilers.  Then memory that
the thread certainly uses looks untouched, too.  So a window counts only if as much of the thread's own memory looks
touched as in the fullest ones, and nothing is excluded unless nearly all windows are like that.
"""

from collections.abc import Mapping
from typing import Final

TIMES: Final = 3  # windows in which something has to be untouched, at least
COUNTED: Final = 0.75  # of the windows have to count


class Windows:
    """`slack`: the share of its own memory by which the windows of the thread differ."""

    def __init__(self, slack: float = 0.0) -> None:
        self._share = 1.0 - slack
        self._seen: list[tuple[int, Mapping[str, str]]] = []

    def add(self, own: int, touched: Mapping[str, str]) -> None:
        """`own`: bytes of its own memory that look touched; `touched`: by a key, what else does, as a text."""
        self._seen.append((own, touched))

    @property
    def few(self) -> bool:
        """Whether there are too few windows, of whatever kind."""
        return len(self._seen) < TIMES

    def left(self) -> str | None:
        """One of the influences that are not excluded, since they look touched in most windows that count; empty if
        there is none, None if there are too few windows that count."""
        if self.few:
            return None
        fullest = sorted(own for own, _ in self._seen)[-TIMES]  # fuller ones are exceptions
        counted = [touched for own, touched in self._seen if own and own >= self._share * fullest]
        if len(counted) < max(TIMES, COUNTED * len(self._seen)):
            return None
        needed = max(TIMES, (len(counted) + 1) // 2)
        texts = {key: text for touched in counted for key, text in touched.items()}
        often = (text for key, text in texts.items() if sum(key not in touched for touched in counted) < needed)
        return next(often, "")
