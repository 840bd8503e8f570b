"""Automatic heartbeats of PaddlePaddle 2.6 and 3: each step of an optimizer, each batch, each run of a static program;
and the files of `paddle.save`."""

from __future__ import annotations

import sys
from typing import Any, Callable

from ._auto import claim_as, training, was_saved
from ._files import known
from ._importlib_bootstrap import after, noting, with_beats


def _stepped(optimizer: Any) -> None:
    """Not where the program is only being built, which its Executor runs later."""
    training.made_optimizer(optimizer)
    if sys.modules["paddle"].in_dynamic_mode():
        claim_as("PaddlePaddle", "PADDLE_TRAINER_ID")
        training.optimizer_stepped(optimizer)


def _program_ran(executor: Any) -> None:
    if training.optimizes:
        claim_as("PaddlePaddle", "PADDLE_TRAINER_ID")
        training.graph_ran()


def _optimizer(name: str) -> Callable[[Any], None]:
    def replace(module: Any) -> None:
        kind = getattr(module, name)
        for method in ("step", "minimize"):
            if method in vars(kind):
                setattr(kind, method, after(vars(kind)[method], _stepped))

    return replace


def _executor(module: Any) -> None:
    module.Executor.run = after(module.Executor.run, _program_ran)


def _files(module: Any) -> None:
    module.save = noting(module.save, was_saved, (1, ("path",)), "paddle.save")
    module.load = noting(module.load, known.was_loaded, (0, ("path",)), "")


def _model(module: Any) -> None:
    """`paddle.Model` reads the files of a prefix itself, and in static mode it writes them itself."""
    kind, path = module.Model, (1, ("path",))
    kind.save = noting(kind.save, lambda prefix: was_saved(prefix + ".pdparams"), path, "paddle.Model.save")
    kind.load = noting(kind.load, lambda prefix: known.was_loaded(prefix + ".pdparams"), path, "")


def _loader(module: Any) -> None:
    for kind in (module._DataLoaderIterSingleProcess, module._DataLoaderIterMultiProcess):
        kind.__next__ = with_beats(kind.__next__, training)


AFTER: dict[str, Callable[[Any], None]] = {
    "paddle.optimizer.optimizer": _optimizer("Optimizer"),
    # These have a `step` of their own.
    "paddle.optimizer.adam": _optimizer("Adam"),
    "paddle.optimizer.adamw": _optimizer("AdamW"),
    "paddle.optimizer.lbfgs": _optimizer("LBFGS"),
    "paddle.base.executor": _executor,
    "paddle.io.dataloader.dataloader_iter": _loader,
    "paddle.framework.io": _files,
    "paddle.hapi.model": _model,
}
