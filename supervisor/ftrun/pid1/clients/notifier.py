"""Client of the helper that reports events to commands and webhooks (`--on-event`, `--webhook`)."""

from ftrun.config.derived import job_name, node_name
from ftrun.messages import notifier as messages
from ftrun.pid1.clients.record_follower import RecordFollower


class Notifier(RecordFollower[messages.Event]):
    name = "notifier"
    events = messages.EVENTS

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
