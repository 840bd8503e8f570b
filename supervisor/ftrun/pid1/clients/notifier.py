"""Client of the helper that reports events to commands and webhooks (`--on-event`, `--webhook`)."""

import os
from typing import Final

from ftrun.config.derived import job_name, node_name
from ftrun.host.signals import writing
from ftrun.messages import notifier as messages
from ftrun.messages.codec import EXACT
from ftrun.pid1.clients.base import SETTLED, Client

WRITING: Final = 5.0  # s at the very end for reporting the verdict


class Notifier(Client[messages.Event]):
    """The helper follows the records from where they end now: those of earlier ftruns in this run dir are not
    reported."""

    name = "notifier"
    prints_problems = True
    events = messages.EVENTS

    def start(self) -> None:
        context, settings = self.context, self.context.settings
        destinations = messages.Destinations(
            commands=settings["on-event"].value or (),
            urls=settings["webhook"].value or (),
            slack=settings["webhook-format"].value == "slack",
            names=tuple(sorted(settings["notify-on"].value)),
            job=job_name(settings),
            node=node_name(settings),
        )
        folder = context.work_dir.path
        try:
            records = f"{folder}/events.jsonl"
            began = os.path.getsize(records) if os.path.exists(records) else 0
            passed = os.memfd_create("destinations", os.MFD_CLOEXEC)
            with writing():
                os.write(passed, EXACT.dump(destinations).encode())
        except OSError as error:
            self.problem(f"events are not reported: {error.strerror}")
            return
        context.helpers.add(self.name, folder, str(began), passed=(passed,), lasting=True, delay=SETTLED)

    def finish(self) -> str | None:
        """A destination that does not answer in time is left alone: its helper ends by itself, or with the
        container."""
        self.context.helpers.finish(self.name, WRITING)
        return None
