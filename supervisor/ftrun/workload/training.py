"""The training of `fthang`: a line fitted by gradient descent, its settings, and its checkpoints, which are written
atomically.  Also functions that several kinds use."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

import ftrun_hooks as ft
from ftrun.core.named_tuple import NamedTuple

POINTS = [(x / 16, 3 * x / 16 - 1 + 0.1 * (-1) ** x) for x in range(-16, 17)]
RATE = 0.1
KEPT = 3  # checkpoints


class RequirementMissing(Exception):
    """The machine lacks something that the kind needs; the message is one line."""


class Setting(NamedTuple):
    """The parameters of the training in which the chosen kind (kinds.py) happens.  `value` is the kind's
    argument; durations are in seconds."""

    value: float
    folder: Path  # of the checkpoints; it exists
    steps: int
    after: int
    step_time: float
    save_every: int
    hooks: bool
    torch: bool  # the optimizer is a real one
    workers: int = 0  # of the loader
    in_worker: bool = False  # the kind happens in one of them
    ranks: frozenset[int] = frozenset()  # at which the kinds of a recoverable training happen

    def section(self, name: str) -> AbstractContextManager[None]:
        return ft.section(name) if self.hooks else nullcontext()

    def beat(self, step: int | None = None) -> None:
        if self.hooks:
            ft.beat(step)


def say(line: str) -> None:
    """In one write, so that the lines of several ranks do not mix."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def paced(seconds: float, pause: float) -> Iterator[None]:
    """Yield repeatedly, with a pause after each, for this many seconds."""
    over = time.monotonic() + seconds
    while time.monotonic() < over:
        yield
        time.sleep(pause)


def compute(seconds: float) -> None:
    """Keep this thread busy with arithmetic."""
    over, x = time.monotonic() + seconds, 1.0
    while time.monotonic() < over:
        for _ in range(1000):
            x = x * 1.000001 % 7


class Checkpoint(NamedTuple):
    """Everything that a training needs to resume exactly where it stopped."""

    step: int
    weights: tuple[float, float]
    loss: float


BEGINNING = Checkpoint(0, (0.0, 0.0), 0.0)


def save(folder: Path, state: Checkpoint) -> Path:
    """Return its path; the checkpoint then survives a crash of the machine.  The newest KEPT are kept."""
    path = folder / f"checkpoint-{state.step:08d}.json"
    fresh = path.with_suffix(f".{os.urandom(4).hex()}.tmp")  # other ranks may save the same step, also on other nodes
    try:
        with fresh.open("x", encoding="utf-8") as file:
            json.dump(state._asdict(), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)  # else the new name may be lost
    finally:
        os.close(directory)
    for old in newest_first(folder)[KEPT:]:
        old.unlink(missing_ok=True)
    return path


def newest(folder: Path) -> Checkpoint | None:
    """The newest intact checkpoint; torn and foreign files are skipped."""
    return next(filter(None, map(load, newest_first(folder))), None)


def newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-*.json"), reverse=True)


def load(path: Path) -> Checkpoint | None:
    try:
        kept = json.loads(path.read_bytes())
        slope, offset = kept["weights"]
        return Checkpoint(int(kept["step"]), (float(slope), float(offset)), float(kept["loss"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


class TrainingLoop(Protocol):
    """Begins with a checkpoint; its steps depend on nothing else."""

    leads: bool  # this process saves the checkpoints

    def disturb(self, begin: Callable[[], None]) -> None:
        """Between two steps: call `begin`, if the kind happens in this process."""

    def epoch(self, steps: range) -> Iterator[Checkpoint]:
        """Each of these steps, once it is done."""


class Plain:
    """In plain Python."""

    leads = True

    def __init__(self, begun: Checkpoint) -> None:
        self.weights = begun.weights

    def disturb(self, begin: Callable[[], None]) -> None:
        begin()

    def epoch(self, steps: range) -> Iterator[Checkpoint]:
        slope, offset = self.weights
        for step in steps:
            errors = [(slope * x + offset - y, x) for x, y in POINTS]
            slope -= RATE * sum(error * x for error, x in errors) / len(errors)
            offset -= RATE * sum(error for error, _ in errors) / len(errors)
            self.weights = slope, offset
            yield Checkpoint(step, self.weights, sum(error * error for error, _ in errors) / len(errors))
