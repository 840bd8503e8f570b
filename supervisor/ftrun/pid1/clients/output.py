"""Client of the helper that forwards the output of the command and keeps a copy (`--log-dir`)."""

import time
from typing import Final

from ftrun.core.machine import events as ev
from ftrun.messages import output as messages
from ftrun.pid1.clients.base import Client

DRAINING: Final = 5.0  # s at the very end for output that has not been read yet


class Output(Client[messages.Event]):
    """`tail`: the last lines of the command's output, once the helper has sent them."""

    name = "output"
    prints_problems = True  # output that is lost
    requests, events = messages.REQUESTS, messages.EVENTS

    def start(self) -> None:
        captured = self.context.output_pipes
        self.tail_requested = self._further = False
        self._attempt: messages.Attempt | None = None  # the one that was spawned last
        self.tail: tuple[str, ...] = ()
        arguments = captured.arguments(self.context.work_dir.output)
        self.context.helpers.add(self.name, *arguments, passed=captured.descriptors, lasting=True)

    def handle(self, message: messages.Event, now: float) -> list[ev.Event]:
        match message:
            case messages.Broken(stream):
                self.context.output_pipes.reader_closed(stream)
            case messages.Tail(lines):
                self.tail, self.tail_requested = lines, False
        return []

    def on_spawning(self) -> None:
        # Whether the helper runs before the first start depends on what that had to wait for; the log does not.
        number, self._further = self.context.attempt if self._further else 0, True
        self._attempt = messages.Attempt(number, time.monotonic(), self.context.first_rank)
        self._announce()

    def on_helpers_started(self) -> None:
        self._announce()

    def _announce(self) -> None:
        if self._attempt is not None and self.context.helpers.is_running(self.name):
            self.send(self._attempt)
            self._attempt = self._attempt._replace(number=0)  # the log has its line once, whatever helper comes next

    def request_tail(self) -> None:
        self.tail, self.tail_requested = (), self.context.helpers.is_running(self.name)
        self.send(messages.GetTail())

    def finish(self) -> str | None:
        """Forward the rest of the output."""
        self.context.output_pipes.close_writers()
        self.context.helpers.finish(self.name, DRAINING)
        for name, line in self.context.helpers.read_lines(set(), time.monotonic()):
            if name == self.name and line is not None:
                self.parse(line)  # a problem becomes a record
        self.context.output_pipes.close_readers()
        return None
