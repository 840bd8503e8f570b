"""What is collected between the two looks, and may never come."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from ftrun.helpers.evidence import files, flight_recorder, threads
from ftrun.helpers.evidence.report import Facts
from ftrun.helpers.evidence.request import Request
from ftrun.helpers.evidence.threads import Task

OUTPUTS: Final = 4  # files


class BackgroundWork:
    """Begins at once.  `pids`: the job's, those of interest first."""

    def __init__(self, request: Request, pids: Sequence[int]) -> None:
        self._commands: dict[int, str] = {}
        self._listed = Task(partial(threads.commands, pids, self._commands))
        self._files = Task(partial(files.look, request.suspect))
        self._output = {path: Task(partial(threads.tail, path)) for path in request.output[:OUTPUTS]}
        self._answers = Task(partial(flight_recorder.ask_all, pids, {rank.pid: rank.rank for rank in request.ranks}))

    @property
    def _named(self) -> dict[str, Task[None] | Task[files.Files] | Task[str] | Task[dict[int, flight_recorder.Answer]]]:
        return {
            "command lines": self._listed,
            "open files of the suspect": self._files,
            "flight recorder": self._answers,
            **{f"output in {path}": task for path, task in self._output.items()},
        }

    @property
    def running(self) -> bool:
        return any(task.running for task in self._named.values())

    def wait(self, until: float) -> None:
        for task in self._named.values():
            task.wait(until - time.monotonic())

    def added(self, facts: Facts) -> Facts:
        """With all that has come by now, and what has not."""
        absent = [(what, task.problem) for what, task in self._named.items() if task.problem is not None]
        late = [(what, "it did not come in time") for what, task in self._named.items() if task.running]
        return facts._replace(
            commands=dict(self._commands),
            files=self._files.value,
            answers=self._answers.value or {},
            output={path: task.value for path, task in self._output.items() if task.value},
            missing=[*facts.missing, *absent, *late],
        )
