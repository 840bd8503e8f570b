"""The settings with which a kind begins, and functions that several kinds use."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import ftrun_hooks as ft
from ftrun.host.spawn import PR_SET_PDEATHSIG, prctl


class Cannot(Exception):
    """The machine lacks something that the kind needs; the message is one line."""


class Setting(NamedTuple):
    """The training around the kind.  `value` is the kind's argument; durations are in seconds."""

    value: float
    folder: Path  # of the checkpoints; it exists
    steps: int
    after: int
    step_time: float
    save_every: int
    hooks: bool
    torch: bool  # the optimizer is a real one

    def section(self, name: str) -> AbstractContextManager[None]:
        return ft.section(name) if self.hooks else nullcontext()

    def beat(self, step: int | None = None) -> None:
        if self.hooks:
            ft.beat(step)


def say(line: str) -> None:
    print(line, flush=True)


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


def die_with(parent: int) -> None:
    """In a child of `parent`: get SIGKILL when the thread that forked this process ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the prctl
        os._exit(1)
