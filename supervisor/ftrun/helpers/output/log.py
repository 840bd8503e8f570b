"""Writes `output.log` in a thread of its own, so that a slow, full or dead disk delays nothing but the log."""

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

LIMIT: Final = 8 << 20  # bytes that wait for the disk
EACH: Final = 64  # bytes of overhead of a chunk
MISSING: Final = "{} bytes are missing here: the disk was too slow, or full"


class Log:
    """Data beyond LIMIT is dropped, and a line in the log gives its size.  Only the thread can block."""

    def __init__(self, path: str, problem: Callable[[str], None]) -> None:
        self._path, self._problem = path, problem
        self._fd = -1
        self._queue: deque[bytes | str | int] = deque()  # str: a line of ftrun; int: a number of dropped bytes
        self._size = 0  # bytes that are not written yet
        self._ended = False
        self._line_ended = True
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, data: bytes) -> None:
        with self._changed:
            if self._size + len(data) + EACH > LIMIT:
                last = self._queue[-1] if self._queue else None
                if isinstance(last, int):
                    self._queue[-1] = last + len(data)
                else:
                    self._queue.append(len(data))
            else:
                self._queue.append(data)
                self._size += len(data) + EACH
                self._changed.notify()

    def mark(self, text: str) -> None:
        """Add a line of ftrun."""
        with self._changed:
            self._queue.append(text)
            self._size += len(text) + EACH
            self._changed.notify()

    def close(self, seconds: float) -> None:
        """Write the pending data, for at most that long."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._size or self._ended)
                batch, size, last = list(self._queue), self._size, self._ended
                self._queue.clear()
            lost = self._write(b"".join(map(self._bytes, batch)))
            with self._changed:
                self._size -= size
                if lost:
                    first = self._queue.popleft() if self._queue and isinstance(self._queue[0], int) else 0
                    assert isinstance(first, int)
                    self._queue.appendleft(lost + first)
            if last:
                return

    def _bytes(self, entry: bytes | str | int) -> bytes:
        if isinstance(entry, int):
            entry = MISSING.format(entry)
        if isinstance(entry, str):
            entry = f"{'' if self._line_ended else chr(10)}--- {entry} ---\n".encode()
        self._line_ended = entry.endswith(b"\n")
        return entry

    def _write(self, data: bytes) -> int:
        """Write the data.  Returns the number of bytes that could not be written."""
        left = memoryview(data)
        try:
            if self._fd < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
                self._fd = os.open(self._path, flags, 0o600)
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            self._problem(f"{self._path} cannot be written ({error.strerror}); the output itself is still forwarded")
        return len(left)
