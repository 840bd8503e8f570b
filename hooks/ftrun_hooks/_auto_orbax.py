"""Checkpoints of `orbax.checkpoint.CheckpointManager`, with which JAX programs save: each is progress, with its step,
when it is complete.

The steps themselves are compiled code, which nothing outside can see: `ftrun_hooks.beat(step)` reports them.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any, Callable

from ._auto import claim_as
from ._beat import checkpoint


def _manager(module: Any) -> None:
    """`_finalize` returns when all parts of a checkpoint are in place, after an asynchronous save too."""
    kind = module.CheckpointManager
    kind._finalize = reporting(kind._finalize)


def reporting(finalize: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(finalize)
    def within(manager: Any, step: Any, *args: Any, **kwargs: Any) -> Any:
        result = finalize(manager, step, *args, **kwargs)
        try:
            path = manager._get_save_directory(step, manager.directory)
            claim_as("Orbax")
            checkpoint(step, path if os.path.isdir(path) else None)
        except Exception:
            pass
        return result

    return within


AFTER: dict[str, Callable[[Any], None]] = {"orbax.checkpoint.checkpoint_manager": _manager}
