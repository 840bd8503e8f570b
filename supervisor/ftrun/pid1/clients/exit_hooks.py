"""Client of the helper that does the work at the end of the container (`--on-exit`, `--unmount`)."""

from ftrun.core import events as ev
from ftrun.core import masking
from ftrun.pid1.clients.base import Client
from ftrun.wire import exit_hooks as messages
from ftrun.wire.codec import EXACT


class ExitHooks(Client[messages.Event]):
    name = "farewell"
    events = messages.EVENTS

    def begin(self, work: messages.Work) -> None:
        self.context.helpers.want(self.name, EXACT.dump(work), once=True)
        self.awaited.add("parted")

    def handle(self, message: messages.Event, now: float) -> list[ev.Event]:
        match message:
            case messages.Parted(late, failed):
                self.awaited.clear()
                for one in failed:
                    self.problem(f"{masking.text(one.what)}: {one.why}")
                for what in late:
                    self.problem(f"{masking.text(what)}: not done in time; it goes on without us")
        return []

    def ended(self, now: float) -> list[ev.Event]:
        self.awaited.clear()
        return []
