"""Writes the file of this ftrun in the folder `runs` of the state dir, and copies of its reports in the folder
`reports` there (records/past/schedules.py): at each start of the command, 2 s later, at the end, and once a minute."""

import math
import os
import re
import shutil
import time
from typing import Final

from ftrun.core.rules.fault_history import Schedule
from ftrun.helpers.lines import ProtocolLines
from ftrun.helpers.shared_folder import Folder
from ftrun.messages import state_store as messages
from ftrun.records.files import reports, state
from ftrun.records.files.rundir import NoRunDir
from ftrun.records.past import schedules
from ftrun.records.past.history import HistoryReader
from ftrun.records.past.schedules import SCHEMA, RunLife

KEPT: Final = 512  # files; the oldest are removed
REPORTS: Final = 16  # copies of reports of one ftrun, the last ones
REPORT: Final = 256 << 10  # bytes of a copy; a longer report is cut
COPY: Final = re.compile(r"attempt-(\d+)\.md")  # the name of one
CUT: Final = "\n\n(This copy is cut: the whole report is in the run dir.)\n"
TAIL: Final = 8 << 20  # bytes of records and of steps from which a file is begun, the last ones
SAMPLES: Final = 4_000  # steps that are kept at least; a long run has one a minute
EVERY: Final = 60.0  # s between two writes without a new attempt
AGAIN: Final = 2.0  # s after a new attempt: its first records, or the last report, may not have been there before


class LifeFile:
    """A disk that cannot be written is one problem; the records in the run dir are what counts."""

    def __init__(self, folder: Folder, run_dir: str, given: str, lines: ProtocolLines) -> None:
        self._path, self._run_dir, self._given, self._lines = folder.path, run_dir, given, lines
        self._written: tuple[int, bool] | None = None
        self._at = 0.0
        self._history = HistoryReader(run_dir, TAIL, TAIL, schedules.MOST, SAMPLES)
        self._copied: set[int] = set()
        self._schedule: Schedule | None = None  # of the last request
        self._again = math.inf  # when the file of a new attempt is written once more

    @property
    def pause(self) -> float | None:
        """Seconds until `follow_again` is to be called."""
        return None if self._again == math.inf else max(0.0, self._again - time.monotonic())

    def follow(self, request: messages.Keep) -> None:
        """Write the file if there is a new attempt or the end, or if it is old."""
        reached, now = (request.attempt, request.ended), time.monotonic()
        if request.schedule is None or (reached == self._written and now < self._at + EVERY):
            return
        if reached != self._written and not request.ended:
            self._again = now + AGAIN
        first, self._written, self._at, self._schedule = self._written is None, reached, now, request.schedule
        self._write(request.schedule, first)

    def follow_again(self) -> None:
        """Write the file of a new attempt once more, if it is time."""
        if time.monotonic() >= self._again:
            self._again = math.inf
            if self._schedule is not None:
                self._write(self._schedule, False)

    def _write(self, schedule: Schedule, first: bool) -> None:
        life = RunLife(
            SCHEMA,
            schedule.key,
            schedule.number,
            schedule.member,
            schedule.node,
            schedule.phase,
            schedule.job,
            os.path.abspath(self._given),
            "",
            schedule.wall,
            last_step=schedule.last_step,
            last_checkpoint=schedule.last_checkpoint,
        )
        try:
            ended = self._written is not None and self._written[1]
            waiting = not ended and state.load(self._run_dir).rest.now.phase == "pending"
            life = schedules.with_history(life, self._history.read(), waiting)
            # A folder of its own without the lock: the key is in the name, so that only this process writes the file.
            folder = Folder(f"{self._path}/{schedules.FOLDER}", self._lines.problem)
            os.makedirs(folder.path, 0o755, exist_ok=True)
            folder.write(schedules.file_name(schedule.key), schedules.dump(life))
            self._copy_reports(life)
            if first:
                self._remove_oldest(folder.path)
        except NoRunDir:
            pass  # no record was written yet
        except OSError as error:
            self._lines.problem(f"{self._path}/{schedules.FOLDER} cannot be written ({error.strerror})")

    def _copy_reports(self, life: RunLife) -> None:
        """Copy the reports of attempts that are over and were not copied yet."""
        over = [one.number for one in life.attempts if one.cause in schedules.REPORTED and not one.open][-REPORTS:]
        self._copied.intersection_update(over)  # an attempt that is not among the last ones never is again
        for number in over:
            if number in self._copied or (text := reports.text(self._run_dir, number)) is None:
                continue
            self._copied.add(number)
            content = text.encode("utf-8", "replace")
            if len(content) > REPORT:
                content = content[: REPORT - len(CUT)] + CUT.encode()
            folder, name = os.path.split(schedules.report_copy(self._path, life.key, number))
            os.makedirs(folder, 0o755, exist_ok=True)
            Folder(folder, self._lines.problem).write(name, content)
            self._remove_copies(folder)

    def _remove_copies(self, folder: str) -> None:
        """Remove all copies but the last: a job that hangs again and again must not fill the disk that it shares."""
        found = [(int(match[1]), name) for name in os.listdir(folder) if (match := COPY.fullmatch(name))]
        for _, name in sorted(found)[:-REPORTS]:
            os.unlink(f"{folder}/{name}")

    def _remove_oldest(self, folder: str) -> None:
        for name in schedules.names(self._path)[KEPT:]:
            try:
                os.unlink(f"{folder}/{name}")
                shutil.rmtree(f"{self._path}/{schedules.REPORTS}/{name.removesuffix('.json')}", ignore_errors=True)
            except OSError:
                pass  # another state store has removed it
