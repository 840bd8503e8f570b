"""Phases: several commands in sequence, each supervised as if it were alone, the next only if the earlier succeeded.

What is done and what is under way is kept in `phases.json`, so that a container that is started again goes on where it
was.  Each task of a job has a note of its own, if the platform numbers them: they may share the folder.  Cerebras'
multi-phase configurations are the model: each phase has its own counts and its own run dir.
"""

import json
import os
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ftrun.config.derived import job_name, state_dir
from ftrun.config.group_config import Group
from ftrun.config.option_table import Phase, Settings, Value
from ftrun.core.rules import exit_codes
from ftrun.host import procfs, safe_files, work_dir
from ftrun.host.console import Console, of
from ftrun.host.journal import RunDirError
from ftrun.host.signals import Signals
from ftrun.host.start_count import Starts
from ftrun.pid1.bootstrap import fresh, named, schedule_cnt
from ftrun.pid1.loop import Part, supervise
from ftrun.platforms.table import TASKS

FILE: Final = "phases{}.json"
SCHEMA: Final = 1


class Stage(NamedTuple):
    """How far a phase is.  `run_dir` is a name in the folder, empty before it began."""

    name: str
    run_dir: str = ""
    succeeded: bool = False


def run(phases: Sequence[tuple[Phase, Settings]], group: Group | None = None) -> int:
    """The exit code of the first that does not succeed, else 0."""
    try:
        caught = Signals()
        note = Note(_folder(phases[0][1]), [phase.name for phase, _ in phases], of(phases[0][1]), caught)
    except (OSError, RunDirError) as error:
        _say(f"ftrun: {error.filename}: {error.strerror}" if isinstance(error, OSError) else f"ftrun: {error}")
        given = state_dir(phases[0][1]) or phases[0][1]["run-dir"].value
        return exit_codes.USAGE.code if given else exit_codes.INTERNAL.code
    starts = Starts(schedule_cnt(phases[0][1]), job_name(phases[0][1]))  # of all phases in this pod
    for index, (phase, settings) in enumerate(phases):
        if note.stages[index].succeeded:
            continue
        run_dir = note.begin(index)
        own = settings | {"run-dir": Value(run_dir, run_dir, "phase")}
        code = supervise(phase.command, own, caught, Part(phase.name, index == len(phases) - 1, group, starts))
        if code != 0:
            return code
        note.succeeded(index)
    note.end()
    return 0


class Note:
    """How far the phases are, on disk.  A disk that takes no note stops no phase.  OSError, RunDirError: it cannot even
    be read."""

    def __init__(self, folder: str, names: Sequence[str], console: Console, caught: Signals) -> None:
        self._console = console
        task = next((text for name in TASKS if (text := os.environ.get(name, "")).isalnum()), "")
        self._folder, self._file = folder, FILE.format(f"-{task}" if task else "")
        self._kept = work_dir.PersistentFile(f"{folder}/{self._file}", caught)
        if self._kept.unread and not self._kept.stopped:
            aside = os.path.basename(self._kept.aside)
            why = f"{self._kept.unread}; the phases go on as this node knows them, and it is kept as {aside}"
            self._console.say(f"{folder}/{self._file} is not read: {why}")
        self.stages = self._read(names)

    def begin(self, index: int) -> str:
        """Its run dir."""
        name = self.stages[index].run_dir
        path = f"{self._folder}/{name}" if name else self._fresh()
        self._now(index, run_dir=os.path.basename(path))
        return path

    def succeeded(self, index: int) -> None:
        self._now(index, succeeded=True)

    def end(self) -> None:
        """Whoever starts the job once more wants it once more."""
        try:
            os.unlink(self._kept.path)
            self._save()
        except OSError as error:
            self._lost(str(error.strerror))

    def _fresh(self) -> str:
        try:
            return self._kept.fresh(named(self._folder)) if self._kept.remote else fresh(self._folder)
        except (OSError, RunDirError):
            return named(self._folder)  # who opens it says why it cannot

    def _read(self, names: Sequence[str]) -> list[Stage]:
        """Where an earlier container left it, if it ran these phases."""
        content = procfs.read(self._kept.path)
        try:
            found: Any = None if content is None else json.loads(content)
            stages = [Stage(str(o["name"]), _name(o["run_dir"]), o["succeeded"] is True) for o in found["phases"]]
        except (ValueError, TypeError, KeyError, RecursionError):
            stages = []
        if [stage.name for stage in stages] == list(names):
            return stages
        if content is not None:
            aside = self._kept.set_aside("other")
            self._console.say(f"{self._folder}/{self._file} is not of these phases; kept as {aside}, they begin anew")
        return [Stage(name) for name in names]

    def _now(self, index: int, **changed: Any) -> None:
        if self._kept.stopped:
            return  # what nobody has read is right
        self.stages[index] = self.stages[index]._replace(**changed)
        content = {"schema": SCHEMA, "phases": [stage._asdict() for stage in self.stages]}
        path = self._kept.path
        try:
            with open(safe_files.create(f"{path}.new", 0o644), "w", encoding="ascii") as stream:
                stream.write(json.dumps(content) + "\n")
                stream.flush()
                os.fsync(stream.fileno())
            os.rename(f"{path}.new", path)
            self._save()
        except OSError as error:
            self._lost(str(error.strerror))

    def _save(self) -> None:
        try:
            if not self._kept.saved():
                self._lost("the disk does not answer")
        except RunDirError as error:
            self._lost(str(error))

    def _lost(self, why: str) -> None:
        self._console.say(f"{self._folder}/{self._file}: {why}; it may be done again in the next container")


def _folder(settings: Settings) -> str:
    given = state_dir(settings) or settings["run-dir"].value
    return os.path.abspath(given) if given else work_dir.default_run_dir()


def _name(run_dir: object) -> str:
    """Of a run dir in the folder; none for any other."""
    return run_dir if isinstance(run_dir, str) and re.fullmatch(r"\d{8}_\d{6}_restartable", run_dir, re.ASCII) else ""


def _say(text: str) -> None:
    os.write(2, f"{text}\n".encode("utf-8", "backslashreplace"))
