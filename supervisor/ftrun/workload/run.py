"""One start of the training, with the hang, crash or delay in it."""

import time
from collections.abc import Iterator
from functools import partial

import ftrun_hooks as ft
from ftrun.workload.kinds import FailureKind, When
from ftrun.workload.training import Checkpoint, Plain, Setting, TrainingLoop, compute, save, say


def train(kind: FailureKind, setting: Setting, begun: Checkpoint, disturbed: bool) -> Checkpoint:
    """Train from `begun` on and return the state at the end; if `disturbed`, the kind begins once."""
    pending, mute, state = disturbed, False, begun
    moment = When.START if setting.after == 0 and kind.when is When.STEP else kind.when
    # The step after which the kind begins, unless it begins at the start.
    begins = begun.step if moment is When.START else max(setting.after, begun.step + 1)
    training: TrainingLoop = Plain(begun)
    if setting.torch or kind.torch:
        from ftrun.workload import with_torch

        training = with_torch.training(
            kind.name, partial(kind.begin, setting), setting, begun, begins if disturbed else None
        )
    epoch_end = begins if disturbed and kind.when is When.EPOCH else setting.steps
    for when, state in _moments(training, begun, epoch_end, setting.steps):
        if when is When.STEP:
            if mute:
                compute(setting.value / (setting.steps - begins))
            else:
                time.sleep(setting.step_time)
                say(f"step {state.step} loss {state.loss:.6f}")
            setting.beat(state.step)
            due = state.step == setting.steps or (state.step % setting.save_every == 0 and not mute)
            # A start that will fail saves nothing beyond `after`, so that each such start ends where the first did.
            if due and training.leads and not (pending and state.step > setting.after):
                path = save(setting.folder, state)
                if setting.hooks:
                    ft.checkpoint(state.step, path)
        if pending and when is moment and (when is When.START or state.step >= begins):
            say(kind.text(setting.value))
            pending, mute = False, kind.mute
            training.disturb(partial(kind.begin, setting))
    return state


def _moments(
    training: TrainingLoop, begun: Checkpoint, epoch_end: int, steps: int
) -> Iterator[tuple[When, Checkpoint]]:
    """The start, then each step, and each end of an epoch: one epoch ends at `epoch_end`, one at the last step."""
    state = begun
    yield When.START, begun
    for end in sorted({min(epoch_end, steps), steps}):
        for done in training.epoch(range(state.step + 1, end + 1)):
            state = done
            yield When.STEP, state
        yield When.EPOCH, state
