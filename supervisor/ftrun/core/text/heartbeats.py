"""Sentences on where the heartbeats of a run come from, and what would add them."""

from collections.abc import Iterable
from typing import Final

from ftrun.core.machine.values import TOUCH, Attempt, Rank
from ftrun.core.rules.liveness import Limits

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
    if imported := [framework for framework in frameworks if framework not in (*UNSEEN, "Orbax")]:
        return f"no step of {' or '.join(imported)} has been seen: call {CALL} in a loop that uses no optimizer"
    return (
        "PyTorch, MindSpore, PaddlePaddle and Keras give heartbeats by themselves, except with --no-auto-beat, under "
        f"python -I and in frozen programs; others by {CALL} or by touching $FTRUN_BEAT_DIR/touch"
    )


def seen_in(attempt: Attempt, limits: Limits) -> str:
    """Which heartbeats there are in this attempt; without any, which hangs are found nevertheless."""
    moved = [rank for rank in attempt.ranks if rank.moved_at is not None]
    if moved:
        return f"from {', '.join(dict.fromkeys(map(_origin, moved)))}"
    found = ["deadlocks"] if limits.auto and not attempt.look.failed else []
    if limits.idle is not None and (limits.idle_given or attempt.idle.accelerator):
        found.append("idleness")
    if limits.start is not None:
        found.append("a first heartbeat that does not come")
    what = f"only {' and '.join(found)} can be found" if found else "no hang can be found"
    return f"none so far: {what}; {remedy(attempt.frameworks)}"


def _origin(rank: Rank) -> str:
    if rank.rank == TOUCH:
        return "the touch file"
    return rank.source or "the program itself (ftrun_hooks)"
