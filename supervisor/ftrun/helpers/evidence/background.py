"""Data that is collected between the two observations, and may never arrive."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from ftrun.helpers.evidence import files, flight_recorder, threads
from ftrun.helpers.evidence.report import Facts
from ftrun.helpers.evidence.threads import Task
from ftrun.messages.evidence import Request

OUTPUTS: Final = 4  # output files that are read


class BackgroundWork:
    """Starts at once.  `pids`: the job's processes, the most interesting ones first."""

    def __init__(self, request: Request, pids: Sequence[int]) -> None:
        self._commands: dict[int, str] = {}
        self._commands_task = Task(partial(threads.read_commands, pids, self._commands))
        self._files = Task(partial(files.describe, request.suspect))
        self._output = {path: Task(partial(threads.tail, path)) for path in request.output[:OUTPUTS]}
        self._answers = Task(partial(flight_recorder.ask_all, pids, {rank.pid: rank.rank for rank in request.ranks}))

    @property
    def _tasks(self) -> dict[str, Task[None] | Task[files.Files] | Task[str] | Task[dict[int, flight_recorder.Answer]]]:
        return {
            "command lines": self._commands_task,
            "open files of the suspect": self._files,
            "flight recorder": self._answers,
            **{f"output in {path}": task for path, task in self._output.items()},
        }

    @property
    def running(self) -> bool:
        return any(task.running for task in self._tasks.values())

    def wait(self, until: float) -> None:
        for task in self._tasks.values():
            task.wait(until - time.monotonic())

    def add_to(self, facts: Facts) -> Facts:
        """The facts with all that has arrived so far, and with the names of what has not."""
        failed = [(name, task.problem) for name, task in self._tasks.items() if task.problem is not None]
        late = [(name, "it did not arrive in time") for name, task in self._tasks.items() if task.running]
        return facts._replace(
            commands=dict(self._commands),
            files=self._files.value,
            answers=self._answers.value or {},
            output={path: task.value for path, task in self._output.items() if task.value},
            missing=[*facts.missing, *failed, *late],
        )
