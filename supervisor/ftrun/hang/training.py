"""The training itself: a line, fitted by gradient descent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ftrun.hang.checkpoint import Checkpoint

POINTS = [(x / 16, 3 * x / 16 - 1 + 0.1 * (-1) ** x) for x in range(-16, 17)]
RATE = 0.1


class Training(Protocol):
    """Begins with a checkpoint; the same one gives the same steps, wherever it was resumed."""

    leads: bool  # this process saves the checkpoints

    def epoch(self, steps: range) -> Iterator[Checkpoint]:
        """Each of these steps, once it is done."""


class Plain:
    """In Python alone."""

    leads = True

    def __init__(self, begun: Checkpoint) -> None:
        self.weights = begun.weights

    def epoch(self, steps: range) -> Iterator[Checkpoint]:
        slope, offset = self.weights
        for step in steps:
            errors = [(slope * x + offset - y, x) for x, y in POINTS]
            slope -= RATE * sum(error * x for error, x in errors) / len(errors)
            offset -= RATE * sum(error for error, _ in errors) / len(errors)
            self.weights = slope, offset
            yield Checkpoint(step, self.weights, sum(error * error for error, _ in errors) / len(errors))
