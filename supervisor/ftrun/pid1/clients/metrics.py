"""Client of the helper that exports metrics for Prometheus (`--metrics`, `--metrics-file`)."""

from typing import Final

from ftrun.core.machine import events as ev
from ftrun.messages import metrics as messages
from ftrun.pid1.clients.base import SETTLED, Client, Context

WRITING: Final = 2.0  # s at the very end for writing the metrics with the verdict


def options(context: Context) -> tuple[str, str]:
    """The address to listen at and the file to write; each may be empty."""
    return context.settings["metrics"].value or "", context.settings["metrics-file"].value or ""


class Metrics(Client[messages.Event]):
    name = "metrics"
    aloud = True
    events = messages.EVENTS

    def start(self) -> None:
        address, self._file = options(self.context)
        words = (self.context.place.path, address, self._file)
        self.context.helpers.add(self.name, *words, lasting=bool(self._file), delay=SETTLED)

    def handle(self, message: messages.Event, now: float) -> list[ev.Event]:
        match message:
            case messages.Listening(address):
                fields = (("helper", self.name), ("address", address))
                self.context.records.append(("listening", fields, f"{self.name}: http://{address}/metrics"))
        return []

    def finish(self) -> str | None:
        if self._file:
            self.context.helpers.finish(self.name, WRITING)
        return None
