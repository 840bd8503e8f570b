"""Writes the file of this ftrun in the folder `runs` of the state dir (views/schedules.py)."""

import os
import time
from typing import Final

from ftrun.helpers.lines import Lines
from ftrun.helpers.state_store.shared_folder import Folder
from ftrun.messages import state_store as messages
from ftrun.views import history, schedules
from ftrun.views.rundir import NoRunDir
from ftrun.views.schedules import SCHEMA, Life

KEPT: Final = 512  # files; the oldest are removed
EVERY: Final = 60.0  # s between two writes without a new attempt


class LifeFile:
    """A disk that cannot be written is one problem; the records in the run dir are what counts."""

    def __init__(self, folder: Folder, run_dir: str, given: str, lines: Lines) -> None:
        self._path, self._run_dir, self._given, self._lines = folder.path, run_dir, given, lines
        self._written: tuple[int, bool] | None = None
        self._at = 0.0
        self._life: Life | None = None

    def follow(self, request: messages.Keep) -> None:
        """Write the file if there is a new attempt or the end, or if it is old."""
        schedule, state = request.schedule, (request.attempt, request.ended)
        if schedule is None or (state == self._written and time.monotonic() < self._at + EVERY):
            return
        first, self._written, self._at = self._written is None, state, time.monotonic()
        life = Life(
            SCHEMA,
            schedule.key,
            schedule.count,
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
            found = history.read(self._run_dir, most=schedules.TAIL)
            life = self._life = schedules.with_history(life, found, self._life)
            # A folder of its own without the lock: the key is in the name, so that only this process writes the file.
            folder = Folder(f"{self._path}/{schedules.FOLDER}", self._lines.problem)
            os.makedirs(folder.path, 0o755, exist_ok=True)
            folder.write(schedules.file_name(schedule.key), schedules.dump(life))
            if first:
                self._remove_oldest(folder.path)
        except NoRunDir:
            pass  # no record was written yet
        except OSError as error:
            self._lines.problem(f"{self._path}/{schedules.FOLDER} cannot be written ({error.strerror})")

    def _remove_oldest(self, folder: str) -> None:
        for name in schedules.names(self._path)[KEPT:]:
            try:
                os.unlink(f"{folder}/{name}")
            except OSError:
                pass  # another state store has removed it
