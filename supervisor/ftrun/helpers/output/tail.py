"""The last lines of an attempt, as a person would see them on a terminal."""

import json
from collections import deque
from typing import Final

LINES: Final = 200
SIZE: Final = 16384  # bytes, and of the answer as JSON: a line that a helper says has a limit
LENGTH: Final = 1000  # characters of a line


class Kept:
    """The last chunks of one stream, each with the time when it was seen."""

    def __init__(self) -> None:
        self.chunks: deque[tuple[float, bytes]] = deque()
        self._size = 0

    def add(self, now: float, data: bytes, most: int) -> None:
        self.chunks.append((now, data[-most:]))
        self._size += len(self.chunks[-1][1])
        while self._size - len(self.chunks[0][1]) >= most:
            self.drop()

    def drop(self) -> None:
        self._size -= len(self.chunks.popleft()[1])


class Tail:
    """Of several streams, of which each has its share: what one says at length hides nothing that another said.

    Costs no more than memory, about twice `SIZE`, until it is asked for.
    """

    def __init__(self, streams: int = 1) -> None:
        self._kept: dict[int, Kept] = {}
        self._lines, self._most = LINES // max(1, streams), SIZE // max(1, streams)

    def add(self, now: float, stream: int, data: bytes) -> None:
        self._kept.setdefault(stream, Kept()).add(now, data, self._most)

    def begin(self, mono: float) -> None:
        """Another attempt was about to begin at that time: what came before is not part of it."""
        for kept in self._kept.values():
            while kept.chunks and kept.chunks[0][0] < mono:
                kept.drop()

    def lines(self) -> list[str]:
        """In the order in which they were completed; what has no end yet comes last."""
        whole: list[tuple[int, bytes]] = []
        rest: dict[int, bytes] = {}
        chunks = [(now, stream, data) for stream, kept in self._kept.items() for now, data in kept.chunks]
        for _, stream, data in sorted(chunks, key=lambda chunk: chunk[0]):
            *ended, rest[stream] = (rest.get(stream, b"") + data).split(b"\n")
            whole += ((stream, line) for line in ended)
        whole += ((stream, line) for stream, line in rest.items() if line)

        found: deque[str] = deque()
        lines, most = dict.fromkeys(rest, self._lines), dict.fromkeys(rest, self._most)
        for stream, content in reversed(whole):
            line = _seen(content) if lines[stream] > 0 else ""
            lines[stream] -= 1
            most[stream] -= len(json.dumps(line)) + 2
            if lines[stream] >= 0 and most[stream] >= 0:
                found.appendleft(line)
        return list(found)


def _seen(line: bytes) -> str:
    """A progress bar draws over itself: what was drawn last."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")[:LENGTH]
