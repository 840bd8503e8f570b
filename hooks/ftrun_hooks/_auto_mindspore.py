"""Automatic heartbeats of MindSpore 2: each step of `Model.train`, each call of an optimizer, each run of a compiled
function in a process that has an optimizer; and the files of its checkpoints.

Only calls from Python to Python are replaced, none that MindSpore compiles: its compiler reads the source of functions.
"""

from __future__ import annotations

from typing import Any, Callable

from ._auto import claim_as, training, was_saved
from ._files import known
from ._importlib_bootstrap import after, noting


class Model:
    """`steps`: calls of optimizers, which a step of `Model.train` contains unless it is compiled."""

    steps = 0
    seen = 0

    def optimizer_stepped(self, optimizer: Any) -> None:
        claim()
        self.steps += 1
        training.optimizer_stepped(optimizer)

    def stepped(self, callbacks: Any) -> None:
        claim()
        if self.steps == self.seen:
            training.optimizer_stepped(self)
        self.seen = self.steps


def _compiled_function_ran(executor: Any) -> None:
    """Its steps are not counted: nothing says which of these functions contain one."""
    claim()
    training.graph_ran()


def claim() -> None:
    """With the number that `msrun` or `mpirun` gave, unless the environment names a RANK."""
    if training.optimizes:
        claim_as("MindSpore", "RANK_ID", "OMPI_COMM_WORLD_RANK")


def _optimizer(module: Any) -> None:
    kind = module.Optimizer
    kind.__init__ = after(kind.__init__, training.made_optimizer)
    kind.__call__ = after(kind.__call__, model.optimizer_stepped)


def _callbacks(module: Any) -> None:
    """Before the program's own callbacks, which may save."""
    kind = getattr(module, "CallbackManager", None) or module._CallbackManager
    kind.on_train_step_end = after(kind.on_train_step_end, model.stepped, before=True)


def _compiled(module: Any) -> None:
    """Of these two modules one defines the class, and the other may only pass it on."""
    for name in ("_JitExecutor", "_CellGraphExecutor"):
        kind = getattr(module, name)
        if kind.__module__ == module.__name__:
            kind.__call__ = after(kind.__call__, _compiled_function_ran)


def _serialization(module: Any) -> None:
    """`_exec_save` writes the file, also where that is done in a thread."""
    file = (0, ("ckpt_file_name",))
    module._exec_save = noting(module._exec_save, was_saved, file, "mindspore.save_checkpoint")
    module.load_checkpoint = noting(module.load_checkpoint, known.was_loaded, file, "")


model = Model()
AFTER: dict[str, Callable[[Any], None]] = {
    "mindspore.nn.optim.optimizer": _optimizer,
    "mindspore.experimental.optim.optimizer": _optimizer,
    "mindspore.train.callback._callback": _callbacks,
    "mindspore.common.api": _compiled,
    "mindspore.graph.api": _compiled,
    "mindspore.train.serialization": _serialization,
}
