"""Client of the helper that copies the run dir to a network disk."""

from typing import Final

from ftrun.messages import mirror as messages
from ftrun.pid1.clients.base import SETTLED, Client

COPYING: Final = 5.0  # s at the very end for copying to the network disk


class Mirror(Client[messages.Event]):
    name = "mirror"
    prints_problems = True
    events = messages.EVENTS

    def start(self) -> None:
        self.context.helpers.add(self.name, *self.context.work_dir.copied, prompt=True, delay=SETTLED)

    def finish(self) -> str | None:
        return None if self.context.helpers.finish(self.name, COPYING) else self.context.work_dir.left
