"""What a kind finds when it begins, and the few things that several kinds do."""

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
    """One line: what this machine lacks for the kind."""


class Setting(NamedTuple):
    """The training around it.  `value` is what the kind's argument says; durations are in seconds."""

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
    """Again and again, with a pause after each, until so many seconds have passed."""
    over = time.monotonic() + seconds
    while time.monotonic() < over:
        yield
        time.sleep(pause)


def compute(seconds: float) -> None:
    """Arithmetic of this thread, and nothing else."""
    over, x = time.monotonic() + seconds, 1.0
    while time.monotonic() < over:
        for _ in range(1000):
            x = x * 1.000001 % 7


def die_with(parent: int) -> None:
    """In a child of `parent`: be killed when the thread that made us ends, however it ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # too late to be told
        os._exit(1)
