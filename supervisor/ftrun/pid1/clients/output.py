"""Clients of the helpers that write to disks and readers which may not answer: `output` (of the command), `line_writer`
(ftrun's own lines, where stderr is a file on a network disk) and `mirror` (a run dir on a network disk)."""

import time
from typing import Final

from ftrun.core.machine import events as ev
from ftrun.messages import output as messages
from ftrun.messages.helpers import PROBLEMS, Problem
from ftrun.pid1.clients.base import SETTLED, Client

DRAINING: Final = 5.0  # s at the very end for output that has not been read yet


class OutputClient(Client[messages.OutputEvent]):
    """`tail`: the last lines of the command's output, once the helper has sent them."""

    name = "output"
    prints_problems = True  # output that is lost
    requests, events = messages.OUTPUT_REQUESTS, messages.OUTPUT_EVENTS

    def start(self) -> None:
        captured = self.context.output_pipes
        self.tail_requested = self._further = False
        self._attempt: messages.AttemptBegins | None = None  # the one that was spawned last
        self.tail: tuple[str, ...] = ()
        # Where the run dir is in the end, since this helper may wait for a disk, and the output may be large.
        arguments = captured.arguments(self.context.work_dir.given)
        self.context.helpers.add(self.name, *arguments, passed=captured.descriptors, lasting=True)

    def handle(self, message: messages.OutputEvent, now: float) -> list[ev.Event]:
        match message:
            case messages.Broken(stream):
                self.context.output_pipes.reader_closed(stream)
            case messages.LastLines(lines):
                self.tail, self.tail_requested = lines, False
        return []

    def on_spawning(self) -> None:
        # Whether the helper runs before the first start depends on what that had to wait for; the log does not.
        number, self._further = self.context.attempt if self._further else 0, True
        self._attempt = messages.AttemptBegins(number, time.monotonic(), self.context.first_rank)
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


WRITING: Final = 2.0  # s at the very end for lines that the disk has not taken yet


class LineWriterClient(Client[Problem]):
    """The lines that the helper cannot take, because the disk does not answer, are lost on stderr; `run.log` has
    them."""

    name = "line_writer"
    requests, events = messages.LINE_REQUESTS, PROBLEMS

    def start(self) -> None:
        self.context.helpers.add(self.name, passed=(2,), prompt=True)

    @property
    def deadline(self) -> float | None:
        return 0.0 if self.context.lines and self.context.helpers.is_running(self.name) else None

    def settle(self, now: float) -> list[ev.Event]:
        if self.context.helpers.is_running(self.name):
            self._forward()
        return []

    def _forward(self) -> None:
        while self.context.lines:
            self.send(messages.Write(self.context.lines.popleft().decode("utf-8", "replace")))

    def finish(self) -> str | None:
        """Write the rest of the lines."""
        self.context.helpers.start(self.name)
        self._forward()
        self.context.helpers.finish(self.name, WRITING)
        return None


COPYING: Final = 5.0  # s at the very end for copying to the network disk


class MirrorClient(Client[messages.MirrorEvent]):
    name = "mirror"
    prints_problems = True
    events = messages.MIRROR_EVENTS

    def start(self) -> None:
        self.context.helpers.add(self.name, *self.context.work_dir.copied, prompt=True, delay=SETTLED)

    def finish(self) -> str | None:
        return None if self.context.helpers.finish(self.name, COPYING) else self.context.work_dir.left
