"""Clients of the helpers that pass on what happens: `metrics`, `notifier` (`--on-event`, `--webhook`), `telemetry`."""

import os
from typing import Any, Final

from ftrun.config.derived import job_name, node_name, uses_journal
from ftrun.core.machine import events as ev
from ftrun.host.signals import writing
from ftrun.messages import exports as messages
from ftrun.messages.codec import EXACT
from ftrun.messages.helpers import PROBLEMS, Problem
from ftrun.pid1.clients.base import SETTLED, Client, Message

PASSING: Final = 5.0  # s at the very end in which the helper may pass on the last records


class RecordFollower(Client[Message]):
    """The helper follows the records from where they end when it is started: those of earlier ftruns in this run dir
    are passed over."""

    prints_problems = True

    def follow_records(self, configuration: tuple[Any, ...], failed: str) -> None:
        """Start the helper.  Its configuration may contain secrets, so it gets that through a memory file, which no
        other user can read.  `failed`: what does not happen if the helper cannot be started, as a clause."""
        folder = self.context.work_dir.path
        try:
            records = f"{folder}/events.jsonl"
            began = os.path.getsize(records) if os.path.exists(records) else 0
            passed = os.memfd_create(self.name, os.MFD_CLOEXEC)
            with writing():
                os.write(passed, EXACT.dump(configuration).encode())
        except OSError as error:
            self.problem(f"{failed}: {error.strerror}")
            return
        self.context.helpers.add(self.name, folder, str(began), passed=(passed,), lasting=True, delay=SETTLED)

    def finish(self) -> str | None:
        """A destination that does not answer in time is left alone: the helper ends by itself, or with the
        container."""
        self.context.helpers.finish(self.name, PASSING)
        return None


WRITING: Final = 2.0  # s at the very end for writing the metrics with the verdict


class MetricsClient(Client[messages.MetricsEvent]):
    name = "metrics"
    prints_problems = True
    events = messages.METRICS_EVENTS

    def start(self) -> None:
        context = self.context
        address, self._file = context.settings.metrics or "", context.settings.metrics_file or ""
        arguments = (context.work_dir.path, address, self._file)
        context.helpers.add(self.name, *arguments, lasting=bool(self._file), delay=SETTLED)

    def handle(self, message: messages.MetricsEvent, now: float) -> list[ev.Event]:
        match message:
            case messages.Listening(address):
                fields = (("helper", self.name), ("address", address))
                self.context.records.append(("listening", fields, f"{self.name}: http://{address}/metrics"))
        return []

    def finish(self) -> str | None:
        if self._file:
            self.context.helpers.finish(self.name, WRITING)
        return None


class NotifierClient(RecordFollower[Problem]):
    name = "notifier"
    events = PROBLEMS

    def start(self) -> None:
        settings = self.context.settings
        destinations = messages.Destinations(
            commands=settings.on_event or (),
            urls=settings.webhook or (),
            slack=settings.webhook_format == "slack",
            names=tuple(sorted(settings.notify_on)),
            job=job_name(settings),
            node=node_name(settings),
            member=None if self.context.group is None else self.context.group.rank,
        )
        self.follow_records(destinations, "events are not reported")


class TelemetryClient(RecordFollower[Problem]):
    name = "telemetry"
    events = PROBLEMS

    def start(self) -> None:
        context, settings, ledger = self.context, self.context.settings, self.context.ledger
        exports = messages.Exports(
            otlp=settings.otlp or "",
            journal=uses_journal(settings),
            job=job_name(settings),
            node=node_name(settings),
            schedule="" if ledger is None else str(ledger.schedule_cnt),
            beat_dir=context.beat_dir,
        )
        self.follow_records(exports, "the records are not exported")
