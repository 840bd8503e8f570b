"""How a helper talks with PID 1: requests come in on stdin, events go out on stdout, a JSON object a line."""

import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from ftrun.messages.codec import Malformed, Protocol
from ftrun.messages.helpers import REQUEST_LIMIT, Problem

PROBLEMS: Final = 64  # that are told
PROBLEM: Final = 1000  # characters of one
UNASKED: Final[Protocol[Any]] = Protocol("ask")  # of a helper that is asked nothing


def write(line: bytes) -> None:
    """All of it, to PID 1.  OSError where nobody reads any more."""
    while line:
        line = line[os.write(1, line) :]


class Lines:
    """`events` may be said, `requests` may come.  `ended`: nothing is asked any more, and what was is no longer waited
    for."""

    def __init__(self, events: Protocol[Any], requests: Protocol[Any] = UNASKED) -> None:
        self.ended = False
        self._events, self._requests = events, requests
        self._rest = b""
        self._told: set[str] = set()

    def say(self, message: tuple[Any, ...]) -> None:
        write(self._events.dump(message))

    def problem(self, what: str) -> None:
        """One line for a person, each at most once, and not more than a person reads."""
        what = what[:PROBLEM]
        if what not in self._told and len(self._told) < PROBLEMS:
            self._told.add(what)
            self.say(Problem(what))

    def dropped(self, where: str, why: Sequence[str]) -> None:
        """The same of entries that could not be taken, with the first reason of all."""
        if why:
            self.problem(f"{where}: dropped {why[0]}" + (f" (and {len(why) - 1} more)" if len(why) > 1 else ""))

    def requests(self, timeout: float | None = None, also: int | None = None) -> list[Any]:
        """Those that have come, after at most `timeout` s, or as soon as `also` can be read."""
        poll = select.poll()
        for fd in (None if self.ended else 0, also):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        if 0 not in dict(poll.poll(None if timeout is None else max(0.0, timeout) * 1000 + 1)):
            return []
        content = os.read(0, 65536)
        self.ended = not content
        *lines, self._rest = (self._rest + content).split(b"\n")
        if len(self._rest) > REQUEST_LIMIT:
            raise ValueError("a request without an end")
        return [request for line in lines for request in self._request(line)]

    def pause(self, seconds: float) -> None:
        """That long, or until stdin ends; what is asked meanwhile is lost."""
        until = time.monotonic() + seconds
        while not self.ended and (left := until - time.monotonic()) > 0:
            self.requests(left)

    def _request(self, line: bytes) -> list[Any]:
        """None or one."""
        try:
            return [self._requests.load(line)]
        except Malformed as why:
            self.problem(f"malformed request: {why}")
            return []


def run(body: Callable[[Lines], None], events: Protocol[Any], requests: Protocol[Any] = UNASKED) -> int:
    """The exit code: 0 when `body` is done or nobody reads any more, 1 after a problem that it did not expect."""
    signal.signal(signal.SIGINT, _unmoved)
    os.set_blocking(1, True)
    lines = Lines(events, requests)
    try:
        body(lines)
    except (BrokenPipeError, ConnectionResetError):
        return 0
    except Exception as error:
        try:
            lines.problem(f"it failed: {error!r}")
        except OSError:
            pass
        return 1
    return 0


def _unmoved(*_: object) -> None:
    """Ctrl-C is for the command; we end with PID 1.  A handler, because SIG_IGN would be inherited by what we run."""
