"""Heartbeats, sections and checkpoints from the `Trainer` of Lightning, `lightning` or `pytorch_lightning`.

Where ftrun is installed, every trainer gets the callback automatically.  To give it timeouts, add it by hand:

    Trainer(..., callbacks=[FtrunCallback(eval_timeout="2h")])
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any, Callable

from ._beat import beat, checkpoint, own_slot
from ._section import TrainerStage, section

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _base() -> Any:
    """The `Callback` of what the program has imported, because importing takes seconds.  A trainer of the other package
    takes it as well: it calls methods by name."""
    for name in sorted(PACKAGES, key=lambda name: name not in sys.modules):
        try:
            return import_module(name).Callback
        except ImportError:
            pass
    raise ImportError("neither lightning nor pytorch_lightning is installed")


class FtrunCallback(_base()):  # type: ignore[misc]
    """A heartbeat with each batch; the sections `sanity check`, `validation`, `test`, `prediction` and `checkpoint`;
    each checkpoint as progress.

    `eval_timeout` is for one validation, test or prediction, `save_timeout` for one checkpoint (seconds, or like
    `20m`); without them the supervisor's own applies, anew for each batch.  ValueError if it is not a duration.

    While a trainer runs, its `save_checkpoint` is wrapped, because its events come before the file is written.  What
    AsyncCheckpointIO writes is not reported, because there is no event when it is safe on disk.
    """

    def __init__(self, eval_timeout: float | str | None = None, save_timeout: float | str | None = None) -> None:
        self._stage = TrainerStage(eval_timeout, save_timeout)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        first = next(callback for callback in trainer.callbacks if isinstance(callback, FtrunCallback))
        if first is not self:  # the installed one beside the user's own
            trainer.callbacks = [callback for callback in trainer.callbacks if callback is not self]
        elif not isinstance(trainer.save_checkpoint, Saving):  # after an exception there was no teardown
            trainer.save_checkpoint = Saving(trainer, self._stage.timeout("checkpoint"))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._stage.leave()
        saving = vars(trainer).get("save_checkpoint")
        if isinstance(saving, Saving):
            saving.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._stage.leave(exception)

    def on_train_batch_end(self, trainer: Any, *more: Any) -> None:
        own_slot.claim(trainer.global_rank)  # not every launcher sets RANK
        beat(trainer.global_step)

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        self._enter(trainer, "sanity check")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._enter(trainer, "sanity check" if trainer.sanity_checking else "validation")

    def on_validation_batch_end(self, trainer: Any, *more: Any) -> None:
        self.on_validation_start(trainer, None)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._stage.leave()

    on_sanity_check_end = on_validation_end  # without a batch there is no end of the validation

    def on_test_start(self, trainer: Any, *more: Any) -> None:
        self._enter(trainer, "test")

    on_test_batch_end = on_test_start

    def on_predict_start(self, trainer: Any, *more: Any) -> None:
        self._enter(trainer, "prediction")

    on_predict_batch_end = on_predict_start

    def _enter(self, trainer: Any, name: str) -> None:
        own_slot.claim(trainer.global_rank)
        self._stage.enter(name)


class Saving:
    """The trainer's `save_checkpoint`, in a section; the checkpoint is reported when it is written."""

    def __init__(self, trainer: Any, timeout: float | str | None) -> None:
        self._trainer, self._timeout = trainer, timeout
        self._own = vars(trainer).get("save_checkpoint")  # by which the program has replaced the method, if it has
        self._save: Callable[..., Any] = trainer.save_checkpoint

    def end(self) -> None:
        if self._own is None:
            del self._trainer.save_checkpoint
        else:
            self._trainer.save_checkpoint = self._own

    def __call__(self, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        with section("checkpoint", self._timeout):
            result = self._save(filepath, *args, **kwargs)
        try:
            self._report(os.fspath(filepath))
        except Exception:  # a path that only a plugin of the program understands, or a strategy without a plugin
            pass
        return result

    def _report(self, name: str) -> None:
        # A hidden file belongs to the tuner, which removes it again.
        if not os.path.basename(name).startswith(".") and not _asynchronous(self._trainer.strategy.checkpoint_io):
            checkpoint(self._trainer.global_step, name if "://" in name else os.path.abspath(name))


def _asynchronous(io: Any) -> bool:
    """Whether the file is written in the background, by this plugin or by one that it wraps."""
    while io is not None and not any(base.__name__ == "AsyncCheckpointIO" for base in type(io).__mro__):
        io = getattr(io, "checkpoint_io", None)
    return io is not None


def callbacks() -> list[Any]:
    """The callbacks that the entry points give each new trainer: none outside ftrun."""
    return [FtrunCallback()] if os.environ.get("FTRUN_BEAT_DIR") else []
