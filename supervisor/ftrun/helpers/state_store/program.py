"""Stores what outlives the pod: `state_store FOLDER [RUN_DIR GIVEN]`, started by PID 1.

The folder may be shared by several state stores, and may be on a network disk.  The messages are in
messages/state_store.py: `StoredImports`, if there are any, and a `StoredHistory` at the start, and one in reply to each
`Keep`.  Once a request is answered its data is on disk, unless a `problem` reports a write error: then it is in memory,
and is written as soon as writing works again.  A file with foreign content is set aside as `NAME.corrupt-<n>`; one that
cannot be read is left alone.  It may block on a dead disk: no process waits for it.

With RUN_DIR it also writes `runs/<key>.json` (life_file.py), from the records there; GIVEN is the path of the run dir
that the user knows.
"""

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ftrun.core.rules.fault_history import Occurrence, Schedule
from ftrun.helpers.lines import ProtocolLines, helper
from ftrun.helpers.shared_folder import Folder, ForeignContent
from ftrun.helpers.state_store import contents
from ftrun.helpers.state_store.contents import HistoryFile
from ftrun.host import procfs
from ftrun.messages import state_store as messages
from ftrun.messages.codec import EXACT

if TYPE_CHECKING:
    from ftrun.helpers.state_store.life_file import LifeFile as Life

HISTORY: Final = "history.json"
LOCK: Final = "history.lock"
VERDICT: Final = "verdict.json"
MEMBER_VERDICT: Final = "verdict-member-{}.json"
IMPORTS: Final = "imports.json"
IMPORTS_LIMIT: Final = 32768  # bytes


@helper(messages.EVENTS, messages.REQUESTS)
def main(argv: list[str], lines: ProtocolLines) -> None:
    os.umask(0o022)  # the outer scheduler reads the verdict, perhaps as another user (Slurm's epilog)
    state_store = StateStore(os.path.abspath(argv[0]), lines)
    life: Life | None = None
    if (imports := state_store.read_imports()) is not None:
        lines.send(messages.StoredImports(imports))
    lines.send(state_store.keep((), None))
    while not lines.ended:
        for request in lines.requests(None if life is None else life.pause):
            if len(argv) > 2 and isinstance(request, messages.Keep):
                if life is None:
                    # here, since the first start waits for the history, and these imports take longer than that
                    from ftrun.helpers.state_store.life_file import LifeFile

                    life = LifeFile(state_store.folder, argv[1], argv[2], lines)
                life.follow(request)
            state_store.answer(request)
        if life is not None:
            life.follow_again()


class StateStore:
    def __init__(self, path: str, lines: ProtocolLines) -> None:
        self.folder, self._lines = Folder(path, lines.problem), lines
        self._history = HistoryFile()
        self._unsaved = HistoryFile()
        self._boot = procfs.boot_id()

    def answer(self, request: messages.StoreRequest) -> None:
        match request:
            case messages.Keep(faults, schedule):
                self._lines.send(self.keep(faults, schedule))
            case messages.KeepImports(content):
                self.write_imports(content)
            case messages.StoreVerdict(verdict, since, member):
                self._lines.send(messages.VerdictStored(self.set_verdict(verdict, since, member)))
            case messages.GetVerdict(schedule_cnt, since):
                self._lines.send(messages.Shared(self.get_verdict(schedule_cnt, since)))

    # --- the history ------------------------------------------------------------------------------------------------

    def keep(self, faults: Sequence[Occurrence], schedule: Schedule | None) -> messages.StoredHistory:
        """Add these entries.  Returns the resulting history."""
        self._unsaved = contents.merge(self._unsaved, faults, () if schedule is None else (schedule,))
        try:
            with self.folder.locked(LOCK):
                before = self._read_history()
                self._history = self._with_unsaved()
                content = contents.dump(self._history)
                if content != before and (before is not None or self._history != HistoryFile()):
                    self.folder.write(HISTORY, content)
            self._unsaved = HistoryFile()
        except OSError as error:
            self._write_failed(HISTORY, error)
            self._history = self._with_unsaved()
        return contents.reply(self._history, time.time(), self._boot)

    def _with_unsaved(self) -> HistoryFile:
        return contents.merge(self._history, self._unsaved.faults, self._unsaved.schedules)

    def _read_history(self) -> bytes | None:
        """Read the file into memory.  If there is no file, the history in memory stays."""
        try:
            content = self.folder.read(HISTORY, contents.LIMIT)
            if content is not None:
                self._history, dropped = contents.parse(content)
                self._lines.report_dropped(f"{self.folder.path}/{HISTORY}", dropped)
            return content
        except ForeignContent as reason:
            self.folder.set_aside(HISTORY, reason)
            return None

    # --- the imports ------------------------------------------------------------------------------------------------

    def read_imports(self) -> str | None:
        try:
            content = self.folder.read(IMPORTS, IMPORTS_LIMIT)
            return None if content is None else content.decode()
        except (ForeignContent, OSError, ValueError):
            return None  # the next ones replace it

    def write_imports(self, content: str) -> None:
        try:
            if self.read_imports() != content:
                self.folder.write(IMPORTS, content.encode())
        except (OSError, ValueError) as error:
            self._lines.problem(f"{self.folder.path}/{IMPORTS} cannot be written ({error})")

    # --- the verdict ------------------------------------------------------------------------------------------------

    def set_verdict(
        self, verdict: messages.SharedVerdict, since: float, member: int | None = None
    ) -> messages.SharedVerdict:
        """Store this verdict unless there is one of the same schedule.  Returns the stored one: the first wins.  A
        verdict from before `since` (s since the epoch) is of an earlier job, and is replaced; so is in any case one
        about this `member` alone, which is no verdict on the job."""
        name = VERDICT if member is None else MEMBER_VERDICT.format(member)
        try:
            with self.folder.locked(LOCK):
                first = self._read_verdict(aside=True) if member is None else None
                if first is not None and contents.holds(first, verdict.schedule_cnt, since):
                    return first
                self.folder.write(name, EXACT.dump(verdict).encode("ascii") + b"\n")
        except OSError as error:
            self._write_failed(name, error)
        return verdict

    def get_verdict(self, schedule_cnt: int, since: float) -> messages.SharedVerdict | None:
        """The stored verdict of this schedule; one from before `since` is of an earlier job, and does not count."""
        try:
            found = self._read_verdict(aside=False)
        except OSError as error:
            self._lines.problem(f"{self.folder.path}/{VERDICT} cannot be read ({error.strerror})")
            return None
        return found if found is not None and contents.holds(found, schedule_cnt, since) else None

    def _read_verdict(self, aside: bool) -> messages.SharedVerdict | None:
        try:
            content = self.folder.read(VERDICT, contents.VERDICT_LIMIT)
            return None if content is None else contents.parse_verdict(content)
        except ForeignContent as reason:
            if aside:
                self.folder.set_aside(VERDICT, reason)
            return None

    def _write_failed(self, name: str, error: OSError) -> None:
        self._lines.problem(f"{self.folder.path}/{name} cannot be written ({error.strerror}); {messages.NOT_KEPT}")
