"""Heartbeats, sections, checkpoints from transformers: `Trainer(..., callbacks=[FtrunCallback(eval_timeout="2h")])`."""

from __future__ import annotations

import os
import sys
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ._beat import beat, checkpoint
from ._section import TrainerStage


class FtrunCallback(TrainerCallback):  # type: ignore[misc]
    """A heartbeat with each step; the sections `validation`, `prediction`, `checkpoint`; each checkpoint as progress.

    `eval_timeout` is for one evaluation of one data set, or one prediction, `save_timeout` for one checkpoint (seconds,
    or like `20m`); without them the supervisor's own applies, anew for each batch.  ValueError if it is not
    a duration.

    The last callback of a trainer sees what the others decide: if a later callback requests a save, the checkpoint is
    reported, but there is no section around it.
    """

    def __init__(self, eval_timeout: float | str | None = None, save_timeout: float | str | None = None) -> None:
        self._stage = TrainerStage(eval_timeout, save_timeout)
        self._training = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._training = True
        self._stage.leave()

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._stage.leave()

    on_epoch_begin = on_predict = on_step_begin

    def on_substep_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        beat()

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        beat(state.global_step)
        self._enter_next(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._enter_next(control)

    def _enter_next(self, control: Any) -> None:
        """Enter the section of what the trainer does next, which has no event for its beginning."""
        if control.should_evaluate:
            self._stage.enter("validation")
        elif control.should_save:
            self._stage.enter("checkpoint")
        else:
            self._stage.leave()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._stage.enter(_section_name())

    def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        # Only after this event it is decided whether this is the best model, which is to be saved.
        if self._training and (control.should_save or args.save_strategy == "best"):
            self._stage.enter("checkpoint")
        else:
            self._stage.leave()

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._stage.leave()
        if args.should_save:  # the others do not wait for the rank that writes
            path = os.path.abspath(os.path.join(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"))
            checkpoint(state.global_step, path if os.path.isdir(path) else None)  # a search has a folder for each trial

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._training = False
        self._stage.leave()


def _section_name() -> str:
    """The section of this prediction step, by the trainer's method that runs: the event does not name it."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_name not in ("evaluate", "predict"):
        frame = frame.f_back
    return "prediction" if frame.f_code.co_name == "predict" else "validation"
