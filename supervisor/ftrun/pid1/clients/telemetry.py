"""Client of the helper that exports the records to an OpenTelemetry collector and to journald."""

from ftrun.config.derived import job_name, node_name, uses_journal
from ftrun.messages import telemetry as messages
from ftrun.pid1.clients.record_follower import RecordFollower


class Telemetry(RecordFollower[messages.Event]):
    name = "telemetry"
    events = messages.EVENTS

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
