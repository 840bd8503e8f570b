"""Common to the clients whose helpers read the records while they are written."""

import os
from typing import Any, Final

from ftrun.host.signals import writing
from ftrun.messages.codec import EXACT
from ftrun.pid1.clients.base import SETTLED, Client, Message

WRITING: Final = 5.0  # s at the very end in which the helper may pass on the last records


class RecordFollower(Client[Message]):
    """The helper follows the records from where they end when it is started: those of earlier ftruns in this run dir
    are passed over."""

    prints_problems = True

    def follow_records(self, configuration: tuple[Any, ...], failed: str) -> None:
        """Start the helper.  Its configuration may contain secrets, so it gets that through a memory file, which no
        other user can read.  `failed`: what does not happen if the helper cannot be started, as a clause."""
        folder = self.context.work_dir.path
        try:
            records = f"{folder}/events.jsonl"
            began = os.path.getsize(records) if os.path.exists(records) else 0
            passed = os.memfd_create(self.name, os.MFD_CLOEXEC)
            with writing():
                os.write(passed, EXACT.dump(configuration).encode())
        except OSError as error:
            self.problem(f"{failed}: {error.strerror}")
            return
        self.context.helpers.add(self.name, folder, str(began), passed=(passed,), lasting=True, delay=SETTLED)

    def finish(self) -> str | None:
        """A destination that does not answer in time is left alone: the helper ends by itself, or with the
        container."""
        self.context.helpers.finish(self.name, WRITING)
        return None
