"""Relays the output of one rank with the number of the rank before each line (`--prefix-ranks`)."""

import os
import re
import threading
from typing import Final

from ftrun.helpers.output.relay import Listener, Relay
from ftrun.host.output_pipes import NUMBERS

LONGEST: Final = 65536  # bytes of a line that is held back until it is complete
_ENDS: Final = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)")  # a progress bar ends its line with a carriage return
_TURNS: Final = dict[tuple[int, int], threading.Lock]()  # by the file to which several relays write


class PrefixedRelay(Relay):
    """Each line is written at once and as a whole, so that lines of different ranks are not mixed.  A line is held back
    until it is complete; SIGKILL of this program may lose it, or forward it twice."""

    def __init__(self, stream: int, source: int, target: int, listener: Listener) -> None:
        super().__init__(stream, source, target, listener)
        self._local_rank = stream // NUMBERS
        self._rest = b""
        status = os.fstat(target)
        self._turn = _TURNS.setdefault((status.st_dev, status.st_ino), threading.Lock())

    @property
    def _prefix(self) -> bytes:
        return b"[%d] " % (self.first_rank + self._local_rank)

    def _forward(self, data: bytes) -> None:
        self._remove(len(data))
        content = self._rest + data
        lines = _ENDS.findall(content)
        self._rest = content[sum(map(len, lines)) :]
        if len(self._rest) > LONGEST:
            lines, self._rest = [*lines, self._rest], b""
        prefix = self._prefix
        self._write(b"".join(prefix + line for line in lines))

    def _finish(self) -> None:
        if self._rest:
            self._write(self._prefix + self._rest + b"\n")

    def _write(self, data: bytes) -> None:
        with self._turn:  # a pipe takes more than PIPE_BUF bytes in parts, and other writers in between: pipe(7)
            self._pass_on(data, lambda left: os.write(self._target, left))
