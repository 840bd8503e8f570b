"""Says what MindCluster wants: `python -m ftrun.helpers.platform PATH PERIOD [TABLE]`, started by PID 1.

PATH is `reset.json` (reset.py), looked at every PERIOD seconds; TABLE a site's file of fault codes
(core/rules/fault_codes.py).
What it says is in messages/platform.py: `Platform` at first, and each time anything of it changes; `Ready` after the
first
look; `Problem`, each at most once.  The faults are one for each code of each rank of this container (ranks.py; of all
ranks, where nothing says which are), with the status `fault`, `unrecovered` or `failed`.  `fault` without a code has
the code "reset.json"; so have the other states, where no rank of this container has a code.  The platform wants the
training to end on any of them, whatever the severity.  At the start all is clear; without a file it stays so, which is
said as late as that one vanished.  A file that is torn, or cannot be read, changes nothing, and is a problem once it
stays so for PATIENCE seconds; one that vanishes for so long is clear.  It ends with 0 when stdin ends or nobody reads
any more, with 1 after a problem that it did not expect.
"""

import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from ftrun.core.rules import fault_codes
from ftrun.helpers.lines import Lines, run
from ftrun.helpers.platform import reset
from ftrun.helpers.platform.ranks import local_ranks
from ftrun.helpers.probe import tables
from ftrun.host import bounded_read
from ftrun.messages import platform as messages
from ftrun.messages.helpers import Ready
from ftrun.messages.platform import EVENTS

LIMIT: Final = 1 << 20  # bytes of a ConfigMap
PATIENCE: Final = 3.0  # s


def main(argv: Sequence[str]) -> int:
    return run(partial(_run, argv), EVENTS)


def _run(argv: Sequence[str], lines: Lines) -> None:
    path, period, *site = argv
    platform = Platform(path, _table(site, lines), lines)
    platform.look()
    lines.send(Ready())
    while not lines.ended:
        lines.pause(float(period))
        platform.look()


class Platform:
    def __init__(self, path: str, table: fault_codes.Table, lines: Lines) -> None:
        self._path, self._table, self._lines = path, table, lines
        self._local = local_ranks(os.environ)
        self._known: messages.Platform | None = None  # said; what an earlier life of ours said may be over
        self._since: float | None = None  # it has not been there, or not been whole

    def look(self) -> None:
        found, trouble = self._read()
        if found is None or trouble is not None:
            now = time.monotonic()
            self._since = now if self._since is None else self._since
            if now < self._since + PATIENCE:
                return
        else:
            self._since = None
        if trouble is not None:
            self._lines.problem(f"{self._path} is not understood ({trouble}); what it said before holds")
            return
        found = found or messages.Platform()
        if found != self._known:
            self._known = found
            self._lines.send(found)

    def _read(self) -> tuple[messages.Platform | None, Exception | None]:
        """What it says, None where it is not there; why it cannot be told."""
        try:
            content = read(self._path)
            found, dropped = reset.parse(content, self._local, self._severity)
        except (FileNotFoundError, NotADirectoryError):
            return None, None
        except (OSError, ValueError, RecursionError) as error:
            return None, error
        self._lines.report_dropped(self._path, dropped)
        return found, None

    def _severity(self, code: str) -> str:
        return fault_codes.look_up(self._table, code).severity


def _table(paths: Sequence[str], lines: Lines) -> fault_codes.Table:
    """Ours, and the one of a site, which wins; one that is wrong is a problem and is left out."""
    table = tables.ours("ascend")
    for path in paths:
        try:
            table |= tables.site(path)
        except (OSError, ValueError) as error:
            lines.problem(f"{path}: {error}; its codes are not known")
    return table


def read(path: str) -> bytes:
    """All of a regular file, or of what a link leads to.  ValueError where it is none, or has more than LIMIT bytes."""
    return bounded_read.read(os.open(path, bounded_read.FLAGS), LIMIT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
