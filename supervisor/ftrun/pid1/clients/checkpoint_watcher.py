"""Client of the helper that sees new checkpoint files (`--progress`)."""

from ftrun.core import events as ev
from ftrun.pid1.clients.base import Client
from ftrun.wire import checkpoints as messages


class CheckpointWatcher(Client[messages.Event]):
    name = "watch"
    events = messages.EVENTS

    def start(self) -> None:
        self.context.helpers.want(self.name, *self.context.settings["progress"].value)

    def handle(self, message: messages.Event, now: float) -> list[ev.Event]:
        match message:
            case messages.Saved(path, mono, renamed):
                return [ev.Saved(now, path, mono, renamed)]
        return []
