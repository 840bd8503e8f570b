"""Client of the helper that writes ftrun's own lines where stderr is a file on a network disk."""

from typing import Final

from ftrun.core.machine import events as ev
from ftrun.messages import line_writer as messages
from ftrun.pid1.clients.base import Client

WRITING: Final = 2.0  # s at the very end for lines that the disk has not taken yet


class LineWriter(Client[messages.Event]):
    """The lines that the helper cannot take, because the disk does not answer, are lost on stderr; `run.log` has
    them."""

    name = "line_writer"
    requests, events = messages.REQUESTS, messages.EVENTS

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
