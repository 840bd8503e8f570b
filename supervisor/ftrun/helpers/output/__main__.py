"""Passes on what the command writes, and keeps a copy of it: `output LOG STREAM...`, started by PID 1.

For each STREAM (1 or 2, the command's number of it) there are two descriptors, from 3 on: the pipe that the command
writes to, and where that would have gone without us.  What it is asked, one JSON object a line on stdin:
    {"ask": "attempt", "number": N, "mono": T}   told at T, before it was started: the tail is of what is seen from then
                                         on, and a line in the log says so
    {"ask": "tail"}                      what were the last lines?
What it says on stdout, JSON lines, ASCII:
    {"event": "tail", "lines": [...]}    once all that was written is seen, or after `PATIENCE`
    {"event": "broken", "stream": N}     nobody reads that stream any more, and the helper has let go of its pipe
    {"event": "problem", "what": TEXT}   one line for a person, each once
It ends with 0 when its stdin and all pipes have, and all is passed on and in the log (which it waits for at most
`LOG_PATIENCE`), and not before: also when PID 1 has died.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from ftrun.helpers.output.log import Log
from ftrun.helpers.output.relay import Relay
from ftrun.helpers.output.tail import Tail

PATIENCE: Final = 0.5  # s
LOG_PATIENCE: Final = 2.0  # s
LINE_LIMIT: Final = 1 << 16  # bytes of a request


def main(argv: Sequence[str]) -> int:
    log, *streams = argv
    Output(log, [int(stream) for stream in streams]).run()
    return 0


class Output:
    """Listens to the relays, and answers."""

    def __init__(self, log: str, streams: Sequence[int]) -> None:
        self.lock = threading.Condition()  # notified when something was passed on
        self._saying = threading.Lock()
        self._told: set[str] = set()  # problems
        self._tail = Tail(len(streams))
        self._log = Log(log, self.problem)
        self._relays = [Relay(stream, 3 + 2 * n, 4 + 2 * n, self) for n, stream in enumerate(streams)]

    def run(self) -> None:
        for relay in self._relays:
            relay.start()
        while line := sys.stdin.buffer.readline(LINE_LIMIT):
            try:
                self._answer(json.loads(line))
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                self.problem(f"a request that is none: {error!r}")
        for relay in self._relays:
            relay.join()
        self._log.close(LOG_PATIENCE)

    def _answer(self, request: dict[str, Any]) -> None:
        if request["ask"] == "attempt":
            number, mono = int(request["number"]), float(request["mono"])
            with self.lock:
                self._tail.begin(mono)
                self._log.mark(f"attempt {number}")
        elif request["ask"] == "tail":
            with self.lock:
                self.lock.wait_for(lambda: all(relay.dry for relay in self._relays), PATIENCE)
                lines = self._tail.lines()
            self._say("tail", lines=lines)
        else:
            raise ValueError(request["ask"])

    # --- what the relays say ----------------------------------------------------------------------------------------

    def seen(self, stream: int, data: bytes) -> None:
        self._tail.add(time.monotonic(), stream, data)
        self._log.put(data)

    def passed(self) -> None:
        with self.lock:
            self.lock.notify()

    def broken(self, stream: int) -> None:
        self._say("broken", stream=stream)

    def problem(self, what: str) -> None:
        with self._saying:
            known = what in self._told
            self._told.add(what)
        if not known:
            self._say("problem", what=what)

    def _say(self, event: str, **more: Any) -> None:
        content = json.dumps({"event": event} | more).encode("ascii") + b"\n"
        try:
            with self._saying:
                while content:
                    content = content[os.write(1, content) :]
        except OSError:
            pass  # PID 1 has died; the output goes on


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
