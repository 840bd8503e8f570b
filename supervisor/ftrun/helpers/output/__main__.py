"""Passes on what the command writes, and keeps a copy of it: `output LOG STREAM...`, started by PID 1.

For each STREAM (1 or 2, the command's number of it) there are two descriptors, from 3 on: the pipe that the command
writes to, and where that would have gone without us.  What it is asked, and says, is in messages/output.py; `Tail`
comes
once all that was written is seen, or after `PATIENCE`; a line in the log says where an attempt begins.  It ends with 0
when its stdin and all pipes have, and all is passed on and in the log (which it waits for at most `LOG_PATIENCE`), and
not before: also when PID 1 has died.
"""

import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

from ftrun.helpers.lines import write
from ftrun.helpers.output.log import Log
from ftrun.helpers.output.relay import Relay
from ftrun.helpers.output.tail import Tail
from ftrun.messages import output as messages
from ftrun.messages.codec import Malformed
from ftrun.messages.helpers import LINE_LIMIT, Problem
from ftrun.messages.output import EVENTS, REQUESTS, Attempt, Broken, Event, GetTail, Request

PATIENCE: Final = 0.5  # s
LOG_PATIENCE: Final = 2.0  # s


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
                self._answer(REQUESTS.load(line))
            except Malformed as why:
                self.problem(f"malformed request: {why}")
        for relay in self._relays:
            relay.join()
        self._log.close(LOG_PATIENCE)

    def _answer(self, request: Request) -> None:
        match request:
            case Attempt(number, mono):
                with self.lock:
                    self._tail.begin(mono)
                    self._log.mark(f"attempt {number}")
            case GetTail():
                with self.lock:
                    self.lock.wait_for(lambda: all(relay.dry for relay in self._relays), PATIENCE)
                    lines = self._tail.lines()
                self._say(messages.Tail(tuple(lines)))

    # --- what the relays say ----------------------------------------------------------------------------------------

    def seen(self, stream: int, data: bytes) -> None:
        self._tail.add(time.monotonic(), stream, data)
        self._log.put(data)

    def passed(self) -> None:
        with self.lock:
            self.lock.notify()

    def broken(self, stream: int) -> None:
        self._say(Broken(stream))

    def problem(self, what: str) -> None:
        with self._saying:
            known = what in self._told
            self._told.add(what)
        if not known:
            self._say(Problem(what))

    def _say(self, message: Event) -> None:
        try:
            with self._saying:
                write(EVENTS.dump(message))
        except OSError:
            pass  # PID 1 has died; the output goes on


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
