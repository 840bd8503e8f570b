"""Automatic heartbeats of Keras 3, with any backend: each batch of `fit`, `evaluate` and `predict` through its list of
callbacks; and the files that it saves."""

from __future__ import annotations

from typing import Any, Callable

from ._auto import claim_as, training, was_saved
from ._files import known
from ._importlib_bootstrap import after, noting

FILE = (1, ("filepath",))


def _trained(callbacks: Any) -> None:
    claim_as("Keras")
    training.optimizer_stepped(callbacks.model)


def _evaluated(callbacks: Any) -> None:
    """A heartbeat of an evaluation, but only where the process also trains."""
    training.batch_arrived()


def _callbacks(module: Any) -> None:
    """Before the program's own callbacks, which may save."""
    kind = module.CallbackList
    kind.on_train_batch_end = after(kind.on_train_batch_end, _trained, before=True)
    kind.on_test_batch_end = after(kind.on_test_batch_end, _evaluated)
    kind.on_predict_batch_end = after(kind.on_predict_batch_end, _evaluated)


def _files(module: Any) -> None:
    module.save_model = noting(module.save_model, was_saved, FILE, "keras.save_model")
    module.save_weights_only = noting(module.save_weights_only, was_saved, FILE, "keras.save_weights")
    module.load_model = noting(module.load_model, known.was_loaded, (0, ("filepath",)), "")
    module.load_weights_only = noting(module.load_weights_only, known.was_loaded, FILE, "")


AFTER: dict[str, Callable[[Any], None]] = {
    "keras.src.callbacks.callback_list": _callbacks,
    "keras.src.saving.saving_lib": _files,
}
