"""Groups whose members share a folder: another member takes the place of a lost coordinator, on hosts of their own."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from ftrun.core.group import lease
from ftrun.helpers.messenger.group_link import QUIET
from ftrun.messages import group_view
from net.test_group_fewer import QUICK, members, until_spare
from support.group_runs import Group
from support.hosts import PORT, Hosts
from support.runs import children, wait_for

Make = Callable[[int], Hosts]
LENGTH = lease.length(5.0, 1.0 + 5.0)  # of --peer-timeout and --grace 1s


def sharing(here: Hosts, disk: Path | None = None) -> tuple[str, ...]:
    state = here.folder / "state"
    if disk is None:
        state.mkdir()
    else:
        state.symlink_to(disk)
    return ("--peer-timeout", "5s", "--state-dir", str(state))


class FrozenDisk:
    """A real file system that can stall: a loop device with ext4, frozen by the kernel.  Whatever asks it then waits
    uninterruptibly, so a program of its own thaws and unmounts it when we are gone."""

    GUARD = 'read line; fsfreeze --unfreeze "$1" 2>/dev/null; umount --lazy "$1"'

    def __init__(self, folder: Path) -> None:
        self.view, image = folder / "disk", folder / "image"
        self.view.mkdir()
        with image.open("wb") as file:
            file.truncate(16 << 20)
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True, timeout=60)
        made = subprocess.run(["mount", "-o", "loop", str(image), str(self.view)], capture_output=True, timeout=60)
        if made.returncode:
            pytest.skip(f"no loop device here: {made.stderr.decode(errors='replace')}")
        words = ["sh", "-c", self.GUARD, "sh", str(self.view)]
        self._guard = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Nothing that has asked it for something can be killed meanwhile."""
        subprocess.run(["fsfreeze", "--freeze", str(self.view)], check=True, timeout=60)
        try:
            yield
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", str(self.view)], check=True, timeout=60)

    def end(self) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait(60)


@pytest.fixture
def frozen_disk(tmp_path: Path) -> Iterator[FrozenDisk]:
    if os.geteuid() or not (shutil.which("fsfreeze") and shutil.which("mkfs.ext4")):
        pytest.skip("not root, or no fsfreeze and mkfs.ext4")
    made = FrozenDisk(tmp_path)
    yield made
    made.end()


def until_witnesses(group: Group, number: int) -> None:
    """Until the lease names so many witnesses."""
    (folder,) = wait_for(lambda: list((group.hosts.folder / "state").glob("lease-*")), "the folder of the lease")

    def witnesses() -> int:
        newest = max(int(one.name) for one in folder.iterdir() if one.name.isdigit())
        return len(json.loads((folder / str(newest)).read_text())["witnesses"])

    wait_for(lambda: witnesses() == number, "the witnesses of the lease")


def at_work(hosts: Make, wait: str = "600s", shape: str = "2:3") -> Group:
    """A group of three at work, whose other two members have shown that they share the folder."""
    here = hosts(3)
    group = Group(here, *QUICK, wait=wait, shape=shape, options=sharing(here))
    group.begin()
    group.until_started(1)
    until_witnesses(group, 2)
    return group


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["dead", "cut off"])
@pytest.mark.parametrize("shape", ["spare", "fewer"])
def test_all_train_again_within_one_lease_after_the_loss_of_member_0(hosts: Make, shape: str, lost: str) -> None:
    """Its machine answers nothing any more.  One that is only cut off, and can still write to the folder, gives up its
    lease by itself, since it hears nobody."""
    here = hosts(4)
    options = (*sharing(here), *(("--spares", "1") if shape == "spare" else ()))
    group = Group(here, *QUICK, wait="600s", shape="" if shape == "spare" else "2:4", options=options)
    group.begin()
    group.until_started(1, nodes=3 if shape == "spare" else 4)
    until_witnesses(group, 3)
    began = time.monotonic()
    here.hosts[0].cut(silent=True)
    if lost == "dead":
        group.rank(0).kill()
    group.gone.add(0)
    told = (
        r"member 0 \(host-0\) is missing: no contact for .*; its lease in the shared folder ends at \S+ UTC, .* more,"
    )
    for rank in (1, 2, 3):
        status = partial(group.rank(rank).ftctl, "status")
        wait_for(lambda ask=status: re.search(told, ask().stdout), f"the status of {rank}")  # type: ignore[misc]
    group.until_started(2, nodes=3, timeout=LENGTH + 60)
    took = time.monotonic() - began
    print(f"loss of member 0 ({lost}), {shape}: {took:.1f} s with a lease of {LENGTH:.0f} s")
    assert took < 2 * LENGTH + (0.0 if lost == "dead" else QUIET)
    assert set(members(group, 2).values()) == {1, 2, 3}
    for rank in (1, 2, 3):
        assert "never seen" not in group.rank(rank).ftctl("status", "--all").stdout
    for rank in (1, 2, 3):
        assert "its lease in the shared folder ends in" in group.rank(rank).stderr
        assert next(one["then"] for one in group.rank(rank).named("lost") if one["member"] == 0) == "replace"
    if lost == "cut off":
        assert group.rank(0).named("exited")
        here.hosts[0].restore()
        until_spare(group, 0)
    group.must_succeed(epochs=[1, 2])


@pytest.mark.slow
def test_a_holder_that_nobody_hears_is_taken_in_again_with_one_restart(hosts: Make) -> None:
    """It hears the others, and sees who has taken its lease before the next epoch begins."""
    group = at_work(hosts)
    group.hosts.hosts[0].network.ip(f"rule add pref 10 ipproto tcp sport {PORT} blackhole")
    group.until_started(2, timeout=2 * LENGTH + 60)
    group.finish()
    group.must_end(0, epochs=[1, 2])


@pytest.mark.slow
def test_a_folder_that_stalls_disturbs_nobody_and_nobody_takes_over_in_it(frozen_disk: FrozenDisk, hosts: Make) -> None:
    here = hosts(3)
    group = Group(here, *QUICK, wait="600s", shape="2:3", options=sharing(here, frozen_disk.view))
    group.begin()
    group.until_started(1)
    until_witnesses(group, 2)
    with frozen_disk.frozen():
        began, step = time.monotonic(), group.book.step
        wait_for(lambda: time.monotonic() > began + LENGTH + 5, "the end of a lease that is not renewed", LENGTH + 60)
        assert group.book.epochs == [1]
        assert group.book.step > step
        here.hosts[0].cut(silent=True)
        os.kill(group.rank(0).pid, signal.SIGKILL)
        group.gone.add(0)
        lost = time.monotonic()
        wait_for(lambda: time.monotonic() > lost + LENGTH + 5, "the time of a takeover", LENGTH + 60)
        assert group.book.epochs == [1]
    began = time.monotonic()
    group.until_started(2, nodes=2, timeout=LENGTH + 60)
    print(f"training again {time.monotonic() - began:.1f} s after the end of the stall")
    assert set(members(group, 2).values()) == {1, 2}
    group.must_succeed(epochs=[1, 2])


@pytest.mark.slow
def test_a_holder_that_was_suspended_comes_back_as_a_member(hosts: Make) -> None:
    group = at_work(hosts)
    stopped = [group.rank(0).pid, *children_of(group.rank(0).pid)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    group.gone.add(0)
    group.until_started(2, nodes=2, timeout=LENGTH + 60)
    for pid in reversed(stopped):
        os.kill(pid, signal.SIGCONT)
    resumed = time.monotonic()
    group.rank(0).until("exited")
    until_spare(group, 0)
    (exited,) = group.rank(0).named("exited")
    assert exited["mono"] < resumed + 60.0
    group.finish()  # of what was suspended the book says that it overlaps, although it could do nothing
    assert [group.rank(rank).wait() for rank in range(3)] == [0, 0, 0]
    assert group.book.epochs == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_member_that_was_suspended_until_the_others_had_ended_ends_as_they_did(hosts: Make, victim: int) -> None:
    group = at_work(hosts, wait="20s")
    if victim:  # who else is in its group it knows as soon as it has seen the lease that names it
        view = group.rank(victim).run_dir / group_view.FILE
        wait_for(lambda: json.loads(view.read_bytes())["takeover"], "the end of the lease in its view")
    stopped = [group.rank(victim).pid, *children_of(group.rank(victim).pid)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    group.until_started(2, nodes=2, timeout=3 * LENGTH + 60)
    group.finish()
    others = [group.rank(rank) for rank in range(3) if rank != victim]
    assert [one.wait() for one in others] == [0, 0]
    for pid in reversed(stopped):
        os.kill(pid, signal.SIGCONT)
    assert group.rank(victim).wait() == 0
    assert group.rank(victim).verdict["verdict"] == "succeeded"


@pytest.mark.slow
def test_a_job_that_was_suspended_as_a_whole_goes_on(hosts: Make) -> None:
    """For longer than the lease, of which nobody has taken the next place meanwhile."""
    group = at_work(hosts)
    stopped = [pid for rank in range(3) for pid in (group.rank(rank).pid, *children_of(group.rank(rank).pid))]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    wait_for(lambda: time.monotonic() > began + LENGTH + 5, "the end of the lease", LENGTH + 60)
    for pid in reversed(stopped):
        os.kill(pid, signal.SIGCONT)
    resumed, step = time.monotonic(), group.book.step
    wait_for(lambda: time.monotonic() > resumed + LENGTH + 5, "the end of a lease after that", LENGTH + 60)
    assert group.book.epochs == [1]
    assert group.book.step > step
    group.must_succeed(epochs=[1])


@pytest.mark.slow
def test_members_that_wait_for_a_lost_one_less_than_its_lease_lasts_wait_for_its_end(hosts: Make) -> None:
    """Else all would have ended with 195 before one of them could take over."""
    group = at_work(hosts, wait="8s", shape="1:3")
    group.hosts.hosts[0].cut(silent=True)
    group.rank(0).kill()
    group.gone.add(0)
    group.until_started(2, nodes=2, timeout=LENGTH + 60)
    group.must_succeed(epochs=[1, 2])


def children_of(pid: int) -> list[int]:
    found = children(pid)
    return [*found, *(one for child in found for one in children_of(child))]
