"""Forwards the output of the command, and keeps a copy of it: `output LOG STREAM...`, started by PID 1.

LOG is a path, with `{}` in it for the local rank where ftrun starts the ranks, or empty: no copy is kept.  A STREAM is
a key of `host/output_pipes.py`, possibly with `:hidden` (it is not forwarded) or `:prefixed` (each line is marked with
its rank).  For each there are two descriptors, from 3 on: the pipe that the command writes to, and the original
destination.  The messages are in messages/output.py.  It exits once stdin and all pipes have ended and everything has
been forwarded and written to the log (for which it waits at most `LOG_PATIENCE`), even if PID 1 has died.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from ftrun.helpers.lines import ProtocolLines, helper
from ftrun.helpers.output.log import Log
from ftrun.helpers.output.relay import HiddenRelay, PrefixedRelay, Relay
from ftrun.helpers.output.tail import Tail
from ftrun.host.output_pipes import NUMBERS
from ftrun.messages import output as messages

PATIENCE: Final = 0.5  # s
LOG_PATIENCE: Final = 2.0  # s
KINDS: Final = {"": Relay, "hidden": HiddenRelay, "prefixed": PrefixedRelay}


@helper(messages.OUTPUT_EVENTS, messages.OUTPUT_REQUESTS)
def main(argv: list[str], lines: ProtocolLines) -> None:
    log, *streams = argv
    Output(log, [stream.partition(":") for stream in streams], lines).run()


class Output:
    """Collects the data of the relays, and replies to the requests of PID 1."""

    def __init__(self, log: str, streams: Sequence[tuple[str, str, str]], lines: ProtocolLines) -> None:
        self.lock = threading.Condition()  # notified when data has been forwarded, and when requests were read
        self._lines, self._send_lock = lines, threading.Lock()
        self._tail = Tail(len(streams))
        ranks = {int(key) // NUMBERS for key, _, _ in streams}
        self._logs = {rank: Log(log.format(rank), self.problem) for rank in ranks} if log else {}
        self._relays = [KINDS[kind](int(key), 3 + 2 * n, 4 + 2 * n, self) for n, (key, _, kind) in enumerate(streams)]

    def run(self) -> None:
        for relay in self._relays:
            relay.start()
        while not self._lines.ended:
            self._lines.has_requests(None)
            with self.lock:
                requests = self._lines.requests(0.0)
                self.lock.notify_all()  # relays that wait run once the lock is released
                for request in requests:
                    self._handle(request)
        for relay in self._relays:
            relay.join()
        until = time.monotonic() + LOG_PATIENCE
        for log in self._logs.values():
            log.close(max(0.0, until - time.monotonic()))

    def _handle(self, request: messages.OutputRequest) -> None:
        match request:
            case messages.AttemptBegins(number, mono, first_rank):
                for relay in self._relays:
                    relay.first_rank = first_rank
                self._tail.begin(mono)
                for log in self._logs.values() if number else ():
                    log.mark(f"attempt {number}")
            case messages.GetTail():
                self.lock.wait_for(lambda: all(relay.is_drained for relay in self._relays), PATIENCE)
                self._send(messages.LastLines(tuple(self._tail.lines())))

    # --- calls from the relays ----------------------------------------------------------------------------------------

    def data_read(self, stream: int, data: bytes) -> None:
        # PID 1 announces an attempt before it starts: the announcement comes first, also if both are read late.
        self.lock.wait_for(lambda: not self._lines.has_requests())
        self._tail.add(time.monotonic(), stream, data)
        if (log := self._logs.get(stream // NUMBERS)) is not None:
            log.put(data)

    def data_forwarded(self) -> None:
        with self.lock:
            self.lock.notify_all()

    def reader_gone(self, stream: int) -> None:
        self._send(messages.Broken(stream))

    def problem(self, description: str) -> None:
        with self._send_lock, suppress(OSError):  # PID 1 has died; the output is still forwarded
            self._lines.problem(description)

    def _send(self, message: messages.OutputEvent) -> None:
        with self._send_lock, suppress(OSError):
            self._lines.send(message)
