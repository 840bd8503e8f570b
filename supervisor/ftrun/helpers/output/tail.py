"""The last lines of an attempt as they would appear on a terminal."""

import json
from collections import deque
from typing import Final

LINES: Final = 200
SIZE: Final = 16384  # bytes, also of the reply as JSON, since the lines of a helper are limited
LENGTH: Final = 1000  # characters of a line


class LastChunks:
    """The last chunks of one stream, each with the time when it was read."""

    def __init__(self) -> None:
        self.chunks: deque[tuple[float, bytes]] = deque()
        self._size = 0

    def add(self, now: float, data: bytes, max_bytes: int) -> None:
        self.chunks.append((now, data[-max_bytes:]))
        self._size += len(self.chunks[-1][1])
        while self._size - len(self.chunks[0][1]) >= max_bytes:
            self.drop()

    def drop(self) -> None:
        self._size -= len(self.chunks.popleft()[1])


class Tail:
    """The tail of several streams, with a share for each, so that a verbose stream does not displace another."""

    def __init__(self, streams: int = 1) -> None:
        self._streams: dict[int, LastChunks] = {}
        self._max_lines, self._max_bytes = LINES // max(1, streams), SIZE // max(1, streams)

    def add(self, now: float, stream: int, data: bytes) -> None:
        self._streams.setdefault(stream, LastChunks()).add(now, data, self._max_bytes)

    def begin(self, mono: float) -> None:
        """A new attempt starts at that time: earlier output is not part of its tail."""
        for chunks_of_stream in self._streams.values():
            while chunks_of_stream.chunks and chunks_of_stream.chunks[0][0] < mono:
                chunks_of_stream.drop()

    def lines(self) -> list[str]:
        """The lines in the order of their completion; unfinished lines come last."""
        complete: list[tuple[int, bytes]] = []
        unfinished: dict[int, bytes] = {}
        chunks = [
            (now, stream, data)
            for stream, chunks_of_stream in self._streams.items()
            for now, data in chunks_of_stream.chunks
        ]
        for _, stream, data in sorted(chunks, key=lambda chunk: chunk[0]):
            *ended, unfinished[stream] = (unfinished.get(stream, b"") + data).split(b"\n")
            complete += ((stream, line) for line in ended)
        complete += ((stream, line) for stream, line in unfinished.items() if line)

        found: deque[str] = deque()
        lines, max_bytes = dict.fromkeys(unfinished, self._max_lines), dict.fromkeys(unfinished, self._max_bytes)
        for stream, content in reversed(complete):
            line = _visible(content) if lines[stream] > 0 else ""
            lines[stream] -= 1
            max_bytes[stream] -= len(json.dumps(line)) + 2
            if lines[stream] >= 0 and max_bytes[stream] >= 0:
                found.appendleft(line)
        return list(found)


def _visible(line: bytes) -> str:
    """The text that a terminal shows: a progress bar overwrites itself, so only the part after the last CR counts."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")[:LENGTH]
