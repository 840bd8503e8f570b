"""How a helper communicates with PID 1: requests arrive on stdin, events leave on stdout, one JSON object per line."""

import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from ftrun.messages.codec import Malformed, Protocol
from ftrun.messages.helpers import REQUEST_LIMIT, UNEXPECTED, Problem

MAX_PROBLEMS: Final = 64  # distinct problems that one helper reports
MAX_PROBLEM_LENGTH: Final = 1000  # characters of one problem
LONGEST: Final = 86400.0  # s of one wait: poll(2) takes 24 days at most
NO_REQUESTS: Final[Protocol[Any]] = Protocol("ask")  # of a helper that accepts no requests
Body = Callable[[list[str], "ProtocolLines"], None]  # what a helper does, with its arguments
Main = Callable[[list[str]], int]


def write(line: bytes) -> None:
    """Write the complete line to PID 1.  OSError if PID 1 no longer reads."""
    while line:
        line = line[os.write(1, line) :]


class ProtocolLines:
    """The connection of a helper to PID 1.  `events` are the messages that it may send, `requests` those that it
    accepts.  `ended`: stdin has ended, so no further requests arrive, and outstanding replies are not needed."""

    def __init__(self, events: Protocol[Any], requests: Protocol[Any] = NO_REQUESTS) -> None:
        self.ended = False
        self._events, self._requests = events, requests
        self._partial = b""
        self._reported: set[str] = set()

    def send(self, message: tuple[Any, ...]) -> None:
        write(self._events.dump(message))

    def problem(self, what: str) -> None:
        """Report a problem as one line for a person: each at most once, and `MAX_PROBLEMS` at most."""
        what = what[:MAX_PROBLEM_LENGTH]
        if what not in self._reported and len(self._reported) < MAX_PROBLEMS:
            self._reported.add(what)
            self.send(Problem(what))

    def report_dropped(self, source: str, reasons: Sequence[str]) -> None:
        """Report the entries of `source` that were invalid as one problem, which gives the first reason."""
        if reasons:
            more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
            self.problem(f"{source}: dropped {reasons[0]}{more}")

    def has_requests(self, timeout: float | None = 0.0) -> bool:
        """Whether `requests` has something to read, a request or the end of stdin.  Waits for it at most that long."""
        return not self.ended and bool(select.select([0], [], [], timeout)[0])

    def requests(self, timeout: float | None = None, wake_fd: int | None = None) -> list[Any]:
        """The requests that have arrived.  Waits for at most `timeout` seconds and `LONGEST`, or until
        `wake_fd` becomes readable."""
        poll = select.poll()
        for fd in (None if self.ended else 0, wake_fd):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        if 0 not in dict(poll.poll(None if timeout is None else min(max(0.0, timeout), LONGEST) * 1000 + 1)):
            return []
        content = os.read(0, 65536)
        self.ended = not content
        *lines, self._partial = (self._partial + content).split(b"\n")
        if len(self._partial) > REQUEST_LIMIT:
            raise ValueError(f"a request is longer than {REQUEST_LIMIT} bytes")
        return [request for line in lines for request in self._parse(line)]

    def pause(self, seconds: float) -> None:
        """Wait for that long, or until stdin ends.  Requests that arrive meanwhile are discarded."""
        until = time.monotonic() + seconds
        while not self.ended and (left := until - time.monotonic()) > 0:
            self.requests(left)

    def _parse(self, line: bytes) -> list[Any]:
        """The request in a list, or an empty list if it is malformed."""
        try:
            return [self._requests.load(line)]
        except Malformed as error:
            self.problem(f"malformed request: {error}")
            return []


def helper(events: Protocol[Any], requests: Protocol[Any] = NO_REQUESTS) -> Callable[[Body], Main]:
    """The decorated function as the `main` of a helper, which sends these events and accepts these requests.  The exit
    code is 0 when it returns or PID 1 no longer reads, and 1 after an unexpected exception."""

    def decorated(body: Body) -> Main:
        def main(argv: list[str]) -> int:
            signal.signal(signal.SIGINT, _ignore)
            os.set_blocking(1, True)
            lines = ProtocolLines(events, requests)
            try:
                body(argv, lines)
            except (BrokenPipeError, ConnectionResetError):
                return 0
            except Exception as error:
                try:
                    lines.problem(f"{UNEXPECTED}{error!r}")
                except OSError:
                    pass
                return 1
            return 0

        return main

    return decorated


def _ignore(*_: object) -> None:
    """Ignore Ctrl-C, which is meant for the command.  A handler is used because child processes would inherit
    SIG_IGN."""
