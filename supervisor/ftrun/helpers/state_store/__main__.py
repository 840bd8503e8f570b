"""Keeps what outlives the pod: `python -m ftrun.helpers.state_store FOLDER`, started by PID 1.

In the folder, which several state stores may share and which may be on a network disk: `history.json`, `verdict.json`,
and `history.lock`.  What it is asked and says is in messages/state_store.py. `History` comes at the start, and for each
`KeepRunning`:
faults of the last 2 days or of this boot, at most 256; 64 schedules. A fault is kept once; a schedule is joined with
the one of the same `key` (best_* the maximum; progressed and faulted once true stay so; the rest as it is new). What
was answered is on disk, unless a `problem` said that it cannot be: then it is in memory, and on disk as soon as that
works again.  A file that is not ours is set aside as `NAME.corrupt-<n>`, one that cannot be read is left alone. When
stdin ends it finishes what it was asked and ends with 0; with 1 after a problem that it did not expect.  It may block
on a dead disk: nobody waits for it.
"""

import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from ftrun.helpers.lines import Lines, run
from ftrun.helpers.state_store import history, verdict
from ftrun.helpers.state_store.history import ForeignHistory, History
from ftrun.helpers.state_store.shared_folder import Folder
from ftrun.host import procfs
from ftrun.messages import state_store as messages

HISTORY: Final = "history.json"
VERDICT: Final = "verdict.json"
LIMIT: Final = 8 << 20  # bytes; what we write has at most half of it


def main(argv: Sequence[str]) -> int:
    return run(partial(_run, argv), messages.EVENTS, messages.REQUESTS)


def _run(argv: Sequence[str], lines: Lines) -> None:
    os.umask(0o022)  # the outer scheduler reads the verdict, as whoever it is (Slurm's epilog)
    state_store = StateStore(os.path.abspath(argv[0]), lines)
    lines.say(state_store.keep((), None))
    while not lines.ended:
        for request in lines.requests():
            state_store.answer(request)


class StateStore:
    def __init__(self, path: str, lines: Lines) -> None:
        self._folder, self._lines = Folder(path, lines.problem), lines
        self._known = History()
        self._unsaved = History()
        self._boot = procfs.boot_id()

    def answer(self, request: messages.Request) -> None:
        match request:
            case messages.Keep(faults, schedule):
                self._lines.say(self.keep(faults, schedule))
            case messages.TellVerdict(mine, since):
                if verdict.whole(mine._asdict()):
                    self._lines.say(messages.Told(self.tell(mine, since)))
                else:
                    self._lines.problem(f"malformed request: not a whole verdict: {mine}")
            case messages.GetVerdict(schedule_cnt, since):
                self._lines.say(messages.Shared(self.shared(schedule_cnt, since)))

    # --- the history ------------------------------------------------------------------------------------------------

    def keep(self, faults: Sequence[messages.Fault], schedule: messages.Schedule | None) -> messages.History:
        """All that is known, with these."""
        good = [one._asdict() for one in faults if self._right(one._asdict(), history.FAULT)]
        schedules = [] if schedule is None else [schedule._asdict()]
        fine = [one for one in schedules if self._right(one, history.SCHEDULE)]
        self._unsaved = history.merge(self._unsaved, good, fine)
        try:
            with self._folder.locked():
                before = self._read_history()
                self._known = self._with_unsaved()
                content = history.dump(self._known)
                if content != before and (before is not None or self._known != History()):
                    self._folder.write(HISTORY, content)
            self._unsaved = History()
        except OSError as error:
            self._lost(HISTORY, error)
            self._known = self._with_unsaved()
        return history.described(self._known, time.time(), self._boot)

    def _right(self, entry: object, shape: history.Shape) -> bool:
        if (reason := history.wrong(entry, shape)) is not None:
            self._lines.problem(f"malformed request: {reason}")
        return reason is None

    def _with_unsaved(self) -> History:
        return history.merge(self._known, self._unsaved.faults, self._unsaved.schedules)

    def _read_history(self) -> bytes | None:
        """What the file holds is known from now on; where there is none, what was known before still is."""
        try:
            content = self._folder.read(HISTORY, LIMIT)
            if content is not None:
                self._known, dropped = history.parse(content)
                self._lines.dropped(f"{self._folder.path}/{HISTORY}", dropped)
            return content
        except (ForeignHistory, RecursionError) as reason:
            self._folder.set_aside(HISTORY, reason)
            return None

    # --- the verdict ------------------------------------------------------------------------------------------------

    def tell(self, mine: messages.Verdict, since: float) -> messages.Verdict:
        """The verdict that stands: the first."""
        try:
            with self._folder.locked():
                first = self._read_verdict(aside=True)
                if first is not None and verdict.holds(first, mine.schedule_cnt, since):
                    return first
                self._folder.write(VERDICT, verdict.dump(mine))
        except OSError as error:
            self._lost(VERDICT, error)
        return mine

    def shared(self, schedule_cnt: int, since: float) -> messages.Verdict | None:
        try:
            found = self._read_verdict(aside=False)
        except OSError as error:
            self._lines.problem(f"{self._folder.path}/{VERDICT} cannot be read ({error.strerror})")
            return None
        return found if found is not None and verdict.holds(found, schedule_cnt, since) else None

    def _read_verdict(self, aside: bool) -> messages.Verdict | None:
        try:
            content = self._folder.read(VERDICT, verdict.LIMIT)
            if content is None:
                return None
            found = verdict.parse(content)
            if found is None:
                raise ForeignHistory("it is no whole verdict")
            return found
        except ForeignHistory as reason:
            if aside:
                self._folder.set_aside(VERDICT, reason)
            return None

    def _lost(self, name: str, error: OSError) -> None:
        what = f"{self._folder.path}/{name} cannot be written ({error.strerror}); what has to outlive this pod does not"
        self._lines.problem(what)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
