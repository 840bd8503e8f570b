"""Ftruns of one group on loopback that share a state dir: what the lease of their coordinator in it must not do."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.test_group_orders import Pair
from ftrun.core.group import lease
from support.runs import Run, Runs, alive, descendants, wait_for, words


def mounting(what: str, folder: Path) -> tuple[str, ...]:
    """The words before a program that sees this folder through a mount of its own."""
    if subprocess.run(["unshare", "-m", "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("no mount namespaces here")
    return "unshare", "-m", "sh", "-ec", f'mount {what}; exec "$@"', str(folder)


class Sharing(Pair):
    """Members that share a state dir.  `shape`: as for --group-size."""

    def __init__(self, runs: Runs, shape: str) -> None:
        super().__init__(runs)
        self.state, self.shape = self.folder / "state", shape
        self.state.mkdir()

    def start(self, rank: int, *options: str, **more: Any) -> Run:
        sharing = ("--group-size", self.shape, "--peer-timeout", "5s", "--state-dir", str(self.state))
        return super().start(rank, *sharing, *options, **more)

    def schedule(self, *options: str, size: int = 2, prefix: Sequence[str] = ()) -> list[Run]:
        """New containers."""
        self.anew()
        found = [self.start(rank, *options, prefix=prefix) for rank in range(size)]
        for run in found:
            run.until("first_beat")
        return found

    def anew(self) -> None:
        """The next containers have disks of their own."""
        self.folder = self.runs.folder / f"schedule-{time.monotonic_ns()}"
        self.folder.mkdir()
        (self.folder / "secret").write_text("x" * 32)

    @property
    def places(self) -> list[Path]:
        found = [one for folder in self.state.glob("lease-*") for one in folder.iterdir() if one.name.isdigit()]
        return sorted(found, key=lambda one: int(one.name))


@pytest.mark.parametrize("shape", [pytest.param("2", marks=pytest.mark.slow), "1:2"])
def test_the_next_schedule_starts_at_once_and_goes_on(runs: Runs, shape: str) -> None:
    pair = Sharing(runs, shape)
    for _ in range(2):
        first, second = pair.schedule()
        if shape != "2":
            wait_for(lambda: len(pair.places) > 1, "a lease that is renewed")
        os.kill(first.pid, signal.SIGTERM)
        assert {first.wait(), second.wait()} <= {143, 195}
        assert len(first.named("spawned")) == len(second.named("spawned")) == 1
        if shape != "2":
            assert json.loads(pair.places[-1].read_text())["over"], "a clean end ends the lease too"
    assert bool(pair.places) == (shape != "2")


def test_the_lease_of_a_killed_schedule_does_not_stop_the_next_one(runs: Runs) -> None:
    pair = Sharing(runs, "1:2")
    killed = pair.schedule()
    wait_for(lambda: pair.places and json.loads(pair.places[-1].read_text())["witnesses"], "a lease with a witness")
    for run in killed:
        run.kill_ftrun()
    newest = len(pair.places)
    first, second = pair.schedule()
    wait_for(lambda: len(pair.places) > newest + 1, "a lease that is renewed")
    assert len(first.named("spawned")) == len(second.named("spawned")) == 1
    assert alive(first.pid)


@pytest.mark.slow
def test_a_new_member_0_does_not_start_alone_in_an_empty_mount_point(runs: Runs) -> None:
    """The folder is not mounted there, and another member has the lease in it."""
    pair = Sharing(runs, "1:2")
    first, second = pair.schedule("--wait-peer", "1s")
    wait_for(lambda: json.loads(pair.places[-1].read_text())["witnesses"], "a lease with a witness")
    os.kill(first.pid, signal.SIGKILL)
    second.until("spawned", 2)
    pair.anew()
    new = pair.start(0, "--wait-peer", "1s", prefix=mounting('-t tmpfs none "$0"', pair.state))
    assert new.wait() == 195
    assert "nothing shows that the state dir here is the one that they share" in new.stderr, new.stderr
    assert not new.named("spawned")
    assert second.process.poll() is None
    assert len(second.named("spawned")) == 2


def test_a_helper_of_the_lease_that_dies_is_started_again(runs: Runs) -> None:
    pair = Sharing(runs, "1:2")
    first, _ = pair.schedule()
    wait_for(lambda: len(pair.places) > 1, "a lease that is renewed")
    (clerk,) = [pid for pid in descendants(first.pid) if "lease_clerk" in words(pid)]
    os.kill(clerk, signal.SIGKILL)
    wait_for(lambda: not alive(clerk), "the end of the helper")
    newest = len(pair.places)
    wait_for(lambda: len(pair.places) > newest + 2, "a lease that is renewed by the next one")
    shutil.rmtree(pair.places[-1].parent)
    wait_for(lambda: len(pair.places) > 2, "a lease that goes on in a new folder")
    assert len(first.named("spawned")) == 1


@pytest.mark.slow
def test_a_folder_that_becomes_read_only_and_lies_about_times_disturbs_nobody(runs: Runs) -> None:
    pair = Sharing(runs, "1:2")
    started = pair.schedule("--wait-peer", "1s", prefix=mounting('--bind "$0" "$0"', pair.state))

    def remount(how: str) -> None:
        for run in started:
            where = ["nsenter", "-m", "-t", str(run.pid), "mount", "-o", f"remount,bind,{how}", str(pair.state)]
            subprocess.run(where, check=True)

    wait_for(lambda: len(json.loads(pair.places[-1].read_text())["witnesses"]) == 1, "a lease with a witness")
    remount("ro")
    newest = len(pair.places)
    for place in pair.places:
        os.utime(place, (4e9, 4e9) if int(place.name) % 2 else (0, 0))
    # Nobody may take the lease over in the time of two leases; that nothing happens has no event to wait for.
    time.sleep(2 * lease.length(5.0, 6.0))
    assert len(pair.places) == newest
    remount("rw")
    wait_for(lambda: len(pair.places) > newest + 2, "a lease that is renewed")
    assert [len(run.named("spawned")) for run in started] == [1, 1]
    assert all(run.process.poll() is None for run in started)
