"""Client of the helper that exports metrics for Prometheus (`--metrics`, `--metrics-file`)."""

from typing import Final

from ftrun.core.machine import events as ev
from ftrun.messages import metrics as messages
from ftrun.pid1.clients.base import SETTLED, Client

WRITING: Final = 2.0  # s at the very end for writing the metrics with the verdict


class Metrics(Client[messages.Event]):
    name = "metrics"
    prints_problems = True
    events = messages.EVENTS

    def start(self) -> None:
        context = self.context
        address, self._file = context.settings.metrics or "", context.settings.metrics_file or ""
        arguments = (context.work_dir.path, address, self._file)
        context.helpers.add(self.name, *arguments, lasting=bool(self._file), delay=SETTLED)

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
