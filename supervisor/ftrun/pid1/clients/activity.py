"""Clients of the helpers that see what the command does.

`sampler` samples the activity of its processes, for the idle rule.  Unless a timeout was given, it starts with the
first heartbeat or the first accelerator: the rule applies to no other job.  `checkpoint_watcher` watches for new
checkpoint files (`--progress`).
"""

import time
from typing import Final

from ftrun.core.machine import events as ev
from ftrun.core.machine.states import Job
from ftrun.core.machine.values import Attempt
from ftrun.core.rules import idle
from ftrun.messages import activity as messages
from ftrun.messages.helpers import Ready
from ftrun.pid1.clients.base import Client

SILENCE: Final = 25.0  # s; a scan of /proc that takes longer counts as stuck


class SamplerClient(Client[messages.SamplerEvent]):
    name = "sampler"
    requests, events = messages.SAMPLER_REQUESTS, messages.SAMPLER_EVENTS

    def start(self) -> None:
        self._root: int | None = None
        self._runs = False
        if self.context.policy.limits.idle_given or self.context.devices:
            self._run()

    def _run(self) -> None:
        period, self._runs = self.context.idle_period, True
        self.context.helpers.add(self.name, str(period), silence=2 * period + SILENCE)

    def handle(self, message: messages.SamplerEvent, now: float) -> list[ev.Event]:
        match message:
            case messages.Sample(mono, seconds, cpu, io) if message.root == self.context.tree.command:
                return [ev.TreeSampled(now, idle.TreeSample(mono, seconds, cpu, io, self.context.uses(now)))]
        return []

    def on_spawned(self) -> None:
        self.on_helpers_started()

    def follow(self, job: Job, now: float, awaits_cause: bool) -> None:
        if not self._runs:
            attempt: Attempt | None = getattr(job.phase, "attempt", None)
            if self.context.devices or (attempt is not None and (attempt.moved or attempt.first_beat is not None)):
                self._run()
            return
        if self._root is not None and self.context.tree.command not in (None, self._root):
            self.on_helpers_started()  # the rank that the sampler knows has ended before the others

    def on_helpers_started(self) -> None:
        if not self._runs:
            return
        self._root = self.context.tree.command
        if self._root is not None:
            self.send(messages.SampledTree(self._root, self.context.excluded))


class CheckpointWatcherClient(Client[messages.WatcherEvent]):
    """`rest_requested`: the helper has yet to report what was saved before the command ended."""

    name = "checkpoint_watcher"
    requests, events = messages.WATCHER_REQUESTS, messages.WATCHER_EVENTS

    def start(self) -> None:
        self.rest_requested = False
        self.context.helpers.add(self.name, *self._arguments(time.monotonic()))

    def _arguments(self, since: float) -> list[str]:
        return [f"{messages.SINCE}{since}", *(self.context.settings.progress or ())]

    def handle(self, message: messages.WatcherEvent, now: float) -> list[ev.Event]:
        if isinstance(message, messages.Saved | Ready):  # all before that is known, if it is started again
            self.context.helpers.pass_next(self.name, *self._arguments(now))
        match message:
            case messages.Saved(path, mono, renamed, written, older):
                return [ev.CheckpointSaved(now, path, mono, renamed, written, older)]
            case messages.AllSent():
                self.rest_requested = False
        return []

    def on_spawning(self) -> None:
        self.rest_requested = False

    def request_rest(self) -> None:
        self.rest_requested = self.context.helpers.is_running(self.name)
        self.send(messages.GetRest())
