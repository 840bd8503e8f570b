"""Relays the output of one rank with the number of the rank before each line (`--prefix-ranks`)."""

import os
import threading
from typing import Final

from ftrun.helpers.output.relay import Listener, Relay
from ftrun.host.output_pipes import NUMBERS

LONGEST: Final = 65536  # bytes of a line that is held back until it is complete
_ENDS: Final = (b"\n", b"\r")  # a progress bar ends its line with a carriage return


class Destination:
    """A file to which several relays write in turns.  `unfinished`: the relay that has begun the last line there, as a
    line longer than LONGEST is written in parts; None: the last line is complete."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.unfinished: PrefixedRelay | None = None


_DESTINATIONS: Final = dict[tuple[int, int], Destination]()  # by device and inode


class PrefixedRelay(Relay):
    """Each line up to LONGEST is written at once and as a whole, so that lines of different ranks are not mixed.  A
    longer line remains one line, unless another rank writes meanwhile: then its next part is a line of its own.  A line
    is held back until it is complete; SIGKILL of this program may lose it, or forward it twice."""

    def __init__(self, stream: int, source: int, target: int, listener: Listener) -> None:
        super().__init__(stream, source, target, listener)
        self._local_rank = stream // NUMBERS
        self._rest = bytearray()
        self._after_return = False  # a newline that follows belongs to the line before it
        status = os.fstat(target)
        self._destination = _DESTINATIONS.setdefault((status.st_dev, status.st_ino), Destination())

    def _forward(self, data: bytes) -> None:
        self._remove(len(data))
        end = max(data.rfind(mark) for mark in _ENDS) + 1
        if end or len(self._rest) + len(data) > LONGEST:
            end = end or len(data)
            self._write(bytes(self._rest) + data[:end])
            self._rest.clear()
        self._rest += data[end:]

    def _finish(self) -> None:
        if self._rest or self._destination.unfinished is self:
            self._write(bytes(self._rest) + b"\n")

    def _write(self, content: bytes) -> None:
        prefix = b"[%d] " % (self.first_rank + self._local_rank)
        marked = prefix.join(content.splitlines(keepends=True))  # of bytes: only \n, \r and \r\n end a line
        destination = self._destination
        with destination.turn:  # a pipe takes more than PIPE_BUF bytes in parts, and other writers in between: pipe(7)
            if destination.unfinished is not self and not (self._after_return and content.startswith(b"\n")):
                marked = (b"\n" if destination.unfinished else b"") + prefix + marked
            self._pass_on(marked, lambda left: os.write(self._target, left))
            destination.unfinished = None if content.endswith(_ENDS) else self
        self._after_return = content.endswith(b"\r")
