"""Heartbeats, sections and checkpoints from MindSpore: `Model.train(..., callbacks=[saving, FtrunCallback()])`.

Without it ftrun sees the steps and the files all the same (`_auto_mindspore.py`); with it the steps have the numbers of
the model, an evaluation is a section, and what a `ModelCheckpoint` before it in the list has saved is reported as a
checkpoint of its step.
"""

from __future__ import annotations

import os
from typing import Any

from mindspore.train import Callback, ModelCheckpoint

from ._beat import beat, checkpoint
from ._section import TrainerStage


class FtrunCallback(Callback):  # type: ignore[misc]
    """A heartbeat with each step; the section `validation`; each checkpoint as progress.

    `eval_timeout` is for one evaluation (seconds, or like `20m`); without it the supervisor's own applies, anew for
    each batch.  ValueError if it is not a duration.  `first_step`: the number of steps before this training, where the
    program resumes from a checkpoint: MindSpore counts from 0 in each `train`.

    What is saved asynchronously is not reported, because there is no event when it is complete.
    """

    def __init__(self, eval_timeout: float | str | None = None, first_step: int = 0) -> None:
        super().__init__()
        self._stage = TrainerStage(eval_timeout, None)
        self._first_step = first_step
        self._reported: dict[int, str] = {}

    def on_train_begin(self, run_context: Any) -> None:
        self._stage.leave()

    def on_train_step_end(self, run_context: Any) -> None:
        seen = run_context.original_args()
        step = self._first_step + seen.cur_step_num - 1
        beat(step)
        self._report_saved(seen, step)

    def on_train_end(self, run_context: Any) -> None:
        seen = run_context.original_args()
        self._report_saved(seen, self._first_step + seen.cur_step_num - 1)

    def on_eval_begin(self, run_context: Any) -> None:
        self._stage.enter("validation")

    on_eval_step_end = on_eval_begin

    def on_eval_end(self, run_context: Any) -> None:
        self._stage.leave()

    def _report_saved(self, seen: Any, step: int) -> None:
        callbacks = getattr(seen.list_callback, "_callbacks", ())
        for callback in callbacks:
            if isinstance(callback, ModelCheckpoint) and not callback._config.async_save:
                path = callback.latest_ckpt_file_name
                if path and self._reported.get(id(callback)) != path:
                    self._reported[id(callback)] = path
                    checkpoint(step, os.path.abspath(path))
