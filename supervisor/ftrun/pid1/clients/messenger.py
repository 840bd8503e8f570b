"""Client of the messenger (the helper `courier`), which does all that needs pyzmq: operators' orders, and the group."""

from ftrun.core import effects as do
from ftrun.core import events as ev
from ftrun.core.ordering import asked
from ftrun.pid1.clients.base import SETTLED, Client
from ftrun.wire import messenger as messages


class Messenger(Client[messages.Event]):
    """Of an ftrun that is alone.  `GroupMessenger` is that of a member of a group."""

    name = "courier"
    aloud = True
    requests, events = messages.REQUESTS, messages.EVENTS

    def start(self) -> None:
        context = self.context
        context.helpers.want(self.name, context.place.path, context.beat_dir, paired=True, delay=SETTLED)

    def handle(self, message: messages.Event, now: float) -> list[ev.Event]:
        match message:
            case messages.OperatorOrder(id, verb, by, lasting, until):
                return [asked(verb, ev.Order(id, by, until), lasting, now)]
        return []

    def spawning(self) -> None:
        self.tell(messages.Attempt(self.context.attempt))

    def helpers_started(self) -> None:
        self.tell(messages.Attempt(self.context.attempt))

    def answer(self, answer: do.Answer) -> None:
        self.tell(messages.Answer(*answer))
