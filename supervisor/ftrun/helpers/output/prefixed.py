"""Relays the output of one rank with the number of the rank before each line (`--prefix-ranks`)."""

import os
import re
from typing import Final

from ftrun.helpers.output.relay import Listener, Relay
from ftrun.host.output_pipes import NUMBERS

LONGEST: Final = 65536  # bytes of a line that is held back until it is complete
_ENDS: Final = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)")  # a progress bar ends its line with a carriage return


class PrefixedRelay(Relay):
    """Each line is written at once and as a whole, so that lines of different ranks are not mixed.  A line is held back
    until it is complete; SIGKILL of this program may lose it, or forward it twice."""

    def __init__(self, stream: int, source: int, target: int, listener: Listener) -> None:
        super().__init__(stream, source, target, listener)
        self._prefix = b"[%d] " % (stream // NUMBERS)
        self._rest = b""

    def _forward(self, data: bytes) -> None:
        self._remove(len(data))
        content = self._rest + data
        lines = _ENDS.findall(content)
        self._rest = content[sum(map(len, lines)) :]
        if len(self._rest) > LONGEST:
            lines, self._rest = [*lines, self._rest], b""
        self._write(b"".join(self._prefix + line for line in lines))

    def _finish(self) -> None:
        if self._rest:
            self._write(self._prefix + self._rest + b"\n")

    def _write(self, data: bytes) -> None:
        self._pass_on(data, lambda left: os.write(self._target, left))
