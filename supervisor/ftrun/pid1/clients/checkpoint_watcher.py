"""Client of the helper that watches for new checkpoint files (`--progress`)."""

import time

from ftrun.core.machine import events as ev
from ftrun.messages import checkpoints as messages
from ftrun.messages.helpers import Ready
from ftrun.pid1.clients.base import Client


class CheckpointWatcher(Client[messages.Event]):
    """`rest_requested`: the helper has yet to report what was saved before the command ended."""

    name = "checkpoint_watcher"
    requests, events = messages.REQUESTS, messages.EVENTS

    def start(self) -> None:
        self.rest_requested = False
        self.context.helpers.add(self.name, *self._arguments(time.monotonic()))

    def _arguments(self, since: float) -> list[str]:
        return [f"{messages.SINCE}{since}", *(self.context.settings.progress or ())]

    def handle(self, message: messages.Event, now: float) -> list[ev.Event]:
        if isinstance(message, messages.Saved | Ready):  # all before that is known, if it is started again
            self.context.helpers.pass_next(self.name, *self._arguments(now))
        match message:
            case messages.Saved(path, mono, renamed, written):
                return [ev.CheckpointSaved(now, path, mono, renamed, written)]
            case messages.AllSent():
                self.rest_requested = False
        return []

    def on_spawning(self) -> None:
        self.rest_requested = False

    def request_rest(self) -> None:
        self.rest_requested = self.context.helpers.is_running(self.name)
        self.send(messages.GetRest())
