"""Phases: several commands in sequence, each supervised as if it were alone, the next only if the earlier succeeded.

The progress is kept in `phases.json`, so that a restarted container continues with the phase that was running.  If the
platform numbers the tasks of a job, each task has a file of its own, because tasks may share the folder.  The model are
the multi-phase configurations of Cerebras: each phase has its own counts and its own run dir.
"""

import json
import os
import re
from collections.abc import Sequence
from typing import Any, Final

from ftrun.config.derived import job_name, state_dir
from ftrun.config.group_config import Group
from ftrun.config.option_table import CommandPhase, Settings
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules import exit_codes
from ftrun.host import procfs, safe_files, work_dir
from ftrun.host.console import Console, create, print_error
from ftrun.host.journal import RunDirError
from ftrun.host.signals import Signals
from ftrun.host.start_count import Starts
from ftrun.pid1.bootstrap import PhaseContext, fresh, named, schedule_cnt
from ftrun.pid1.loop import supervise
from ftrun.platforms import TASKS

FILE: Final = "phases{}.json"
SCHEMA: Final = 1


class PhaseProgress(NamedTuple):
    """Progress of a phase.  `run_dir` is a name in the folder, empty before the phase began."""

    name: str
    run_dir: str = ""
    succeeded: bool = False


def run(phases: Sequence[tuple[CommandPhase, Settings]], group: Group | None = None) -> int:
    """The exit code of the first phase that does not succeed, or else 0."""
    try:
        caught = Signals()
        names, console = [phase.name for phase, _ in phases], create(phases[0][1])
        progress = ProgressFile(_folder(phases[0][1]), names, console, caught)
    except (OSError, RunDirError) as error:
        text = str(error)
        if isinstance(error, OSError):
            text = f"{error.filename or 'the working directory'}: {error.strerror}"
        print_error(text)
        given = state_dir(phases[0][1]) or phases[0][1].run_dir
        return exit_codes.USAGE.code if given else exit_codes.INTERNAL.code
    starts = Starts(schedule_cnt(phases[0][1]), job_name(phases[0][1]))  # shared by all phases in this pod
    for index, (phase, settings) in enumerate(phases):
        if progress.stages[index].succeeded:
            continue
        run_dir = progress.begin(index)
        own = settings.with_run_dir(run_dir)
        code = supervise(phase.command, own, caught, PhaseContext(phase.name, index == len(phases) - 1, group, starts))
        if code != 0:
            return code
        progress.succeeded(index)
    progress.end()
    return 0


class ProgressFile:
    """The file with the progress of the phases.  A failed write stops no phase.  OSError or RunDirError if the file
    cannot be read."""

    def __init__(self, folder: str, names: Sequence[str], console: Console, caught: Signals) -> None:
        self._console = console
        task = next((text for name in TASKS if (text := os.environ.get(name, "")).isalnum()), "")
        self._folder, self._file = folder, FILE.format(f"-{task}" if task else "")
        self._kept = work_dir.PersistentFile(f"{folder}/{self._file}", caught)
        if self._kept.unread and not self._kept.stopped:
            aside = os.path.basename(self._kept.aside)
            why = (
                f"{self._kept.unread}; the phases continue from the copy on this node, and the file is kept as {aside}"
            )
            self._console.print(f"{folder}/{self._file} cannot be used: {why}")
        self.stages = self._read(names)

    def begin(self, index: int) -> str:
        """Mark the phase as begun; returns its run dir."""
        name = self.stages[index].run_dir
        path = f"{self._folder}/{name}" if name else self._fresh()
        self._update(index, run_dir=os.path.basename(path))
        return path

    def succeeded(self, index: int) -> None:
        self._update(index, succeeded=True)

    def end(self) -> None:
        """All phases succeeded: remove the file, so that another start of the job runs all of them again."""
        try:
            os.unlink(self._kept.path)
            self._save()
        except OSError as error:
            self._warn(str(error.strerror))

    def _fresh(self) -> str:
        try:
            return self._kept.fresh(named(self._folder)) if self._kept.remote else fresh(self._folder)
        except (OSError, RunDirError):
            return named(self._folder)  # opening it later reports the reason

    def _read(self, names: Sequence[str]) -> list[PhaseProgress]:
        """The progress that an earlier container saved, if it ran the same phases."""
        content = procfs.read(self._kept.path)
        try:
            found: Any = None if content is None else json.loads(content)
            stages = [
                PhaseProgress(str(o["name"]), _name(o["run_dir"]), o["succeeded"] is True) for o in found["phases"]
            ]
        except (ValueError, TypeError, KeyError, RecursionError):
            stages = []
        if [stage.name for stage in stages] == list(names):
            return stages
        if content is not None:
            aside = self._kept.set_aside("other")
            self._console.print(
                f"{self._folder}/{self._file} is of other phases; it is kept as {aside}, and all phases run again"
            )
        return [PhaseProgress(name) for name in names]

    def _update(self, index: int, **changed: Any) -> None:
        if self._kept.stopped:
            return  # do not overwrite a file that could not be read
        self.stages[index] = self.stages[index]._replace(**changed)
        content = {"schema": SCHEMA, "phases": [stage._asdict() for stage in self.stages]}
        try:
            safe_files.replace(self._kept.path, json.dumps(content).encode("ascii") + b"\n", 0o644)
            self._save()
        except OSError as error:
            self._warn(str(error.strerror))

    def _save(self) -> None:
        try:
            if not self._kept.saved():
                self._warn("the disk does not answer")
        except RunDirError as error:
            self._warn(str(error))

    def _warn(self, why: str) -> None:
        self._console.print(f"{self._folder}/{self._file}: {why}; the next container may repeat a phase")


def _folder(settings: Settings) -> str:
    given = state_dir(settings) or settings.run_dir
    return os.path.abspath(given) if given else work_dir.default_run_dir()


def _name(run_dir: object) -> str:
    """The name, if a run dir in the folder has it; else empty."""
    return run_dir if isinstance(run_dir, str) and re.fullmatch(r"\d{8}_\d{6}_restartable", run_dir, re.ASCII) else ""
