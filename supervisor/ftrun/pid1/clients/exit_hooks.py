"""Client of the helper that does the work at the end of the container (`--on-exit`, `--unmount`)."""

from ftrun.core.machine import events as ev
from ftrun.core.text import redaction
from ftrun.messages import exit_hooks as messages
from ftrun.messages.codec import EXACT
from ftrun.pid1.clients.base import Client


class ExitHooksClient(Client[messages.ExitHooksEvent]):
    name = "exit_hooks"
    events = messages.EVENTS

    def begin(self, work: messages.Work) -> None:
        self.context.helpers.add(self.name, EXACT.dump(work), once=True)
        self.awaited.add("exit hooks")

    def handle(self, message: messages.ExitHooksEvent, now: float) -> list[ev.Event]:
        match message:
            case messages.HooksFinished(late, failed):
                self.awaited.clear()
                for one in failed:
                    self.problem(f"{redaction.redact(one.what)}: {one.why}")
                for what in late:
                    self.problem(
                        f"{redaction.redact(what)}: not completed in time; it continues after the end of ftrun"
                    )
        return []

    def on_end(self, now: float) -> list[ev.Event]:
        self.awaited.clear()
        return []
