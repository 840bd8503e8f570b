"""The standbys of a member that waits as a spare: processes of a command that has not run here, at a place in the group
that is not known yet.

What they import is what `--preload` names, what an earlier ftrun has left, or what the standbys of a member at work
have imported.  For that the messenger asks the others (`helpers/messenger/imports.py`).
"""

import os
from collections.abc import Sequence

from ftrun.core.rules import standby as rules
from ftrun.pid1 import preload
from ftrun.pid1.bootstrap import Setup
from ftrun.pid1.preload import Imports
from ftrun.pid1.standby_pool import Pool, Startable


class SpareStandbys:
    """`due`: when `execute` is to be called; None: there are enough, or something has to happen first.  `alone`: each
    rank imports by itself, since ranks that are forked could differ.  `wanting`: nobody has said yet what the command
    imports."""

    def __init__(
        self, setup: Setup, pool: Pool, starts: Sequence[Startable], command: Sequence[str], known: Imports | None
    ) -> None:
        self._setup, self._pool, self._starts, self._command, self._known = setup, pool, starts, command, known
        self.due: float | None = 0.0
        self.alone = self.wanting = False

    def receive_imports(self, imports: Imports) -> None:
        """A member at work has imported this."""
        if self._known is None:
            self._known, self.due, self.wanting = imports, 0.0, False

    def execute(self, mode: rules.Mode, folder: str, failures: dict[int, int], now: float) -> bool:
        """Execute those that are missing; whether there are any.  `failures`: in a row, by local rank.  Raises OSError,
        or ValueError with the reason why there can be none."""
        wanted = range(len(self._starts) if mode is None else rules.number(mode, len(self._starts)))
        waiting = self._pool.waiting
        missing = [one for one in wanted if one not in waiting and failures.get(one, 0) < rules.TRIES]
        self.due = None
        if not missing:
            return False
        os.makedirs(folder, 0o700, exist_ok=True)
        imports = preload.write(self._setup, folder, self._command, self._known)
        self.wanting = imports is None
        if imports is not None:
            next_ones = missing[:1] if self.alone else missing
            self._pool.execute_first({one: self._starts[one] for one in next_ones}, imports, now)
            self.due = now  # once these are ready
        return True
