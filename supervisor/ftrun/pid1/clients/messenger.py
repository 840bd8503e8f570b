"""Client of the messenger, the helper that uses pyzmq: commands of an operator, and the group."""

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.requests import request_event
from ftrun.messages import messenger as messages
from ftrun.pid1.clients.base import SETTLED, Client


class Messenger(Client[messages.Event]):
    """The messenger of an ftrun without a group; `GroupMessenger` is that of a group member."""

    name = "messenger"
    aloud = True
    requests, events = messages.REQUESTS, messages.EVENTS

    def start(self) -> None:
        context = self.context
        context.helpers.add(self.name, context.place.path, context.beat_dir, paired=True, delay=SETTLED)

    def handle(self, message: messages.Event, now: float) -> list[ev.Event]:
        match message:
            case messages.OperatorOrder(id, verb, by, lasting, until):
                return [request_event(verb, ev.OperatorRequest(id, by, until), lasting, now)]
        return []

    def spawning(self) -> None:
        self.send(messages.Attempt(self.context.attempt))

    def helpers_started(self) -> None:
        self.send(messages.Attempt(self.context.attempt))

    def answer(self, answer: do.Answer) -> None:
        self.send(messages.Answer(*answer))
