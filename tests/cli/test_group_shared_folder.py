"""Ftruns of one group on loopback that share a state dir: what the lease of their coordinator in it must not do."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from cli.test_group_orders import Pair
from support.runs import Run, Runs, wait_for
from support.runs import runs as runs


class Sharing(Pair):
    """Members that share a state dir.  `shape`: as for --group-size."""

    def __init__(self, runs: Runs, shape: str) -> None:
        super().__init__(runs)
        self.state, self.shape = self.folder / "state", shape
        self.state.mkdir()

    def start(self, rank: int, *options: str, **more: Any) -> Run:
        sharing = ("--group-size", self.shape, "--peer-timeout", "5s", "--state-dir", str(self.state))
        return super().start(rank, *sharing, *options, **more)

    def schedule(self) -> tuple[Run, Run]:
        """New containers."""
        self.folder = self.runs.folder / f"schedule-{time.monotonic_ns()}"
        self.folder.mkdir()
        (self.folder / "secret").write_text("x" * 32)
        return self.both()

    @property
    def places(self) -> list[Path]:
        found = [one for folder in self.state.glob("lease-*") for one in folder.iterdir() if one.name.isdigit()]
        return sorted(found, key=lambda one: int(one.name))


@pytest.mark.parametrize("shape", ["2"])
def test_the_next_schedule_starts_at_once_and_goes_on(runs: Runs, shape: str) -> None:
    pair = Sharing(runs, shape)
    for _ in range(2):
        first, second = pair.schedule()
        if shape != "2":
            wait_for(lambda: len(pair.places) > 1, "a lease that is renewed")
        os.kill(first.pid, signal.SIGTERM)
        assert {first.wait(), second.wait()} <= {143, 195}
        assert len(first.named("spawned")) == len(second.named("spawned")) == 1
    assert bool(pair.places) == (shape != "2")
