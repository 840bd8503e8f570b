"""Reports the requests of MindCluster: `reset_file PATH PERIOD [TABLE [RANKS [MEMBER]]]`.

PATH is `reset.json` (contents.py), which is read every PERIOD seconds; TABLE is a fault code table of the site
(core/rules/fault_codes.py); RANKS is the number of ranks that ftrun starts here, MEMBER that of this container in its
group.  The messages are in messages/healing.py: `Contents` at first and after each change; `Ready` after the first
read.  There is one fault for each code of each rank of this container, or of all ranks if the local ranks are unknown.
For each of these the platform requires the training to end, whatever the severity, unless it asks for less.  A file
that is incomplete or unreadable changes nothing, and is a problem once this lasts for PATIENCE seconds; one that is
missing for so long is clear.
"""

import os
import time
from typing import Final

from ftrun.accelerators.table import ASCEND
from ftrun.core.rules import fault_codes
from ftrun.helpers.lines import ProtocolLines, helper
from ftrun.helpers.probe.device import load_table
from ftrun.helpers.reset_file import contents
from ftrun.host import safe_files
from ftrun.messages.healing import RESET_EVENTS, Contents
from ftrun.messages.helpers import Ready

LIMIT: Final = 1 << 20  # bytes of a ConfigMap
PATIENCE: Final = 3.0  # s


@helper(RESET_EVENTS)
def main(argv: list[str], lines: ProtocolLines) -> None:
    path, period, site, ranks, member = (*argv, "", "", "")[:5]
    local = contents.local_ranks(os.environ, int(ranks) if ranks else None, int(member) if member else None)
    reader = ResetFile(path, load_table(ASCEND.name, site, lines.problem), local, lines)
    reader.report()
    lines.send(Ready())
    while not lines.ended:
        lines.pause(float(period))
        reader.report()


class ResetFile:
    def __init__(
        self, path: str, table: fault_codes.FaultTable, local_ranks: frozenset[int] | None, lines: ProtocolLines
    ) -> None:
        self._path, self._table, self._local_ranks, self._lines = path, table, local_ranks, lines
        # The last message; None at the start, since that of an earlier process of this helper may be outdated.
        self._sent: Contents | None = None
        self._unreadable_since: float | None = None  # since when the file is missing or invalid; None: it is valid

    def report(self) -> None:
        """Read the file, and send what has changed."""
        found, error = self._read()
        if found is None or error is not None:
            now = time.monotonic()
            self._unreadable_since = now if self._unreadable_since is None else self._unreadable_since
            if now < self._unreadable_since + PATIENCE:
                return
        else:
            self._unreadable_since = None
        if error is not None:
            self._lines.problem(f"{self._path} cannot be used ({error}); its earlier content remains in force")
            return
        found = found or Contents()
        if found != self._sent:
            self._sent = found
            self._lines.send(found)

    def _read(self) -> tuple[Contents | None, Exception | None]:
        """The state in the file, None if there is no file; and the error, if the file cannot be used."""
        try:
            content = safe_files.read_bounded(self._path, LIMIT)
            found, dropped = contents.parse(content, self._local_ranks, self._entry)
        except (FileNotFoundError, NotADirectoryError):
            return None, None
        except (OSError, ValueError, RecursionError) as error:
            return None, error
        self._lines.report_dropped(self._path, dropped)
        return found, None

    def _entry(self, code: str) -> fault_codes.FaultEntry:
        return fault_codes.look_up(self._table, code)
