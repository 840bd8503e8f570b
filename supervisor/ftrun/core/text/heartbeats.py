"""Sentences on where the heartbeats of a run come from, and what would add them."""

from collections.abc import Iterable
from typing import Final

from ftrun.core.machine.values import TOUCH, Attempt, Rank

# Libraries that train in compiled code, of which nothing outside sees a step.
UNSEEN: Final = ("JAX", "TensorFlow")
CALL: Final = "ftrun_hooks.beat(step)"


def needs_call(frameworks: Iterable[str]) -> str:
    """The library because of which the program has to report its steps itself; empty if there is none, or if it also
    uses a library that gives heartbeats."""
    found = [framework for framework in frameworks if framework != "Orbax"]  # it only saves
    return found[0] if found and all(framework in UNSEEN for framework in found) else ""


def remedy(frameworks: Iterable[str]) -> str:
    """What adds heartbeats."""
    if library := needs_call(frameworks):
        return f"nothing outside can see a step of {library}: call {CALL} in the training loop"
    return (
        "PyTorch, MindSpore, PaddlePaddle and Keras give heartbeats by themselves; other programs by "
        f"{CALL} or by touching $FTRUN_BEAT_DIR/touch"
    )


def seen_in(attempt: Attempt, proves: bool) -> str:
    """Which heartbeats there are in this attempt.  `proves`: deadlocks are found without them."""
    moved = [rank for rank in attempt.ranks if rank.moved_at is not None]
    if moved:
        return f"from {', '.join(dict.fromkeys(map(_origin, moved)))}"
    found = "deadlocks and idleness" if proves else "idleness"
    return f"none so far: only {found} can be found; {remedy(attempt.frameworks)}"


def _origin(rank: Rank) -> str:
    if rank.rank == TOUCH:
        return "the touch file"
    return rank.source or "the program itself (ftrun_hooks)"
