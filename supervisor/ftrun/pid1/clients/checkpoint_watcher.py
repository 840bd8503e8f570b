"""Client of the helper that watches for new checkpoint files (`--progress`)."""

from ftrun.core.machine import events as ev
from ftrun.messages import checkpoints as messages
from ftrun.pid1.clients.base import Client


class CheckpointWatcher(Client[messages.Event]):
    name = "checkpoint_watcher"
    events = messages.EVENTS

    def start(self) -> None:
        self.context.helpers.add(self.name, *self.context.settings["progress"].value)

    def handle(self, message: messages.Event, now: float) -> list[ev.Event]:
        match message:
            case messages.Saved(path, mono, renamed):
                return [ev.CheckpointSaved(now, path, mono, renamed)]
        return []
