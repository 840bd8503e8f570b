"""Client of the helper that exports the records to an OpenTelemetry collector and to journald."""

import os
from typing import Final

from ftrun.config.derived import job_name, node_name, uses_journal
from ftrun.host.signals import writing
from ftrun.messages import telemetry as messages
from ftrun.messages.codec import EXACT
from ftrun.pid1.clients.base import SETTLED, Client

WRITING: Final = 5.0  # s at the very end for the last spans and logs


class Telemetry(Client[messages.Event]):
    """The helper follows the records from where they end before the first start: those of earlier ftruns in this run
    dir are not exported."""

    name = "telemetry"
    prints_problems = True
    events = messages.EVENTS

    def start(self) -> None:
        context, settings, ledger = self.context, self.context.settings, self.context.ledger
        exports = messages.Exports(
            otlp=settings["otlp"].value or "",
            journal=uses_journal(settings),
            job=job_name(settings),
            node=node_name(settings),
            schedule="" if ledger is None else str(ledger.schedule_cnt),
            beat_dir=context.beat_dir,
        )
        folder = context.work_dir.path
        try:
            records = f"{folder}/events.jsonl"
            began = os.path.getsize(records) if os.path.exists(records) else 0
            passed = os.memfd_create("exports", os.MFD_CLOEXEC)
            with writing():
                os.write(passed, EXACT.dump(exports).encode())
        except OSError as error:
            self.problem(f"the records are not exported: {error.strerror}")
            return
        context.helpers.add(self.name, folder, str(began), passed=(passed,), lasting=True, delay=SETTLED)

    def finish(self) -> str | None:
        """A collector that does not answer in time is left alone, as the destinations of `Notifier`."""
        self.context.helpers.finish(self.name, WRITING)
        return None
