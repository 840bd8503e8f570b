"""Containers on hosts of their own, each with an ftrun: all members restart in one epoch and end with one verdict."""

import os
import signal
from collections.abc import Callable

import pytest

from support.group_runs import Group
from support.hosts import Hosts
from support.runs import wait_for

Make = Callable[[int], Hosts]
QUICK = ("--steps", "100000", "--step-time", "0.02")


def by_rank(group: Group, epoch: int, name: str) -> dict[int, object]:
    """`starts` (MA_PROC_START_CNT) or `reason` of each rank in that epoch."""
    return {line["rank"]: line[name] for line in group.book.named("start", epoch=epoch)}


def test_a_failure_of_one_member_restarts_all_and_a_final_failure_ends_all(hosts: Make) -> None:
    kinds = ("crash:1:10", "kill:2:20", "hang:1:30", "fail:1:40")
    failures = [argument for text in kinds for argument in ("--failure", text)]
    group = Group(hosts(3), *QUICK, *failures, options=("--hang-timeout", "2s"))
    early = [group.start(rank) for rank in (2, 1)]
    wait_for(lambda: all("waiting for the other members" in one.stderr for one in early), "two members that wait")
    assert not group.book.lines  # no member starts before rank 0 has joined
    group.start(0)
    group.must_end(94, epochs=[1, 2, 3, 4])
    for epoch in range(1, 5):
        assert by_rank(group, epoch, "starts") == dict.fromkeys(range(3), epoch)
    assert by_rank(group, 1, "reason") == {0: "first", 1: "first", 2: "first"}
    assert by_rank(group, 2, "reason") == {0: "peer", 1: "failure", 2: "peer"}
    assert by_rank(group, 3, "reason") == {0: "peer", 1: "peer", 2: "failure"}
    # All members detect a hang, since all wait for the one: the first to report it has it as the reason.
    assert {"hang"} <= set(by_rank(group, 4, "reason").values()) <= {"hang", "peer"}
    for rank in range(3):
        orders = group.rank(rank).named("group")
        (run,) = (order for order in orders if order["what"] == "run" and order["epoch"] == 4)
        assert (run["cause"], run["step"]) == ("hang", 29)
        assert group.rank(rank).verdict["verdict"] == "non-recoverable"
        assert "host-1" in str(group.rank(rank).verdict)


def test_a_lost_container_that_comes_back(hosts: Make) -> None:
    """The others end their command, keep their container, and start when it has joined."""
    group = Group(hosts(3), *QUICK)
    group.begin()
    group.until_step(5)
    group.rank(1).kill()
    for other in (0, 2):
        group.rank(other).until("exited")
    assert group.book.epochs == [1]
    group.start(1, MA_SCHEDULE_CNT="2")
    group.until_started(2)
    assert by_rank(group, 2, "starts") == {0: 2, 1: 1, 2: 2}
    group.rank(0).kill()
    group.start(0, MA_SCHEDULE_CNT="2")  # perhaps before the others have detected the loss
    group.until_started(3)
    assert by_rank(group, 3, "starts") == {0: 1, 1: 2, 2: 3}
    group.must_succeed(epochs=[1, 2, 3])


@pytest.mark.slow  # helpers/test_messenger_group.py has it with messengers alone
def test_two_that_are_lost_together_with_member_0_are_back_within_seconds(hosts: Make) -> None:
    """The container that is left knows who ran, and their machines show that these are dead: no lease is waited for."""
    group = Group(hosts(3), *QUICK, wait="10m")
    group.begin()
    group.until_step(40)  # some seconds after the start
    for rank in (0, 1):
        group.rank(rank).kill()
    os.kill(group.rank(2).command, signal.SIGKILL)
    group.rank(2).until("exited")
    for rank in (0, 1):
        group.start(rank)
    group.until_started(2)
    group.must_succeed(epochs=[1, 2])


def test_members_that_were_all_killed_start_again_at_once_in_their_run_dirs(hosts: Make) -> None:
    """Nobody is left who knows who ran; the lock of each run dir shows that the ftrun before is dead: no lease is
    waited for, although this group may go on with one member."""
    group = Group(hosts(2), *QUICK, wait="10m", shape="1:2")
    group.begin()
    group.until_step(5)
    for rank in (0, 1):
        group.rank(rank).kill()
    for rank in (0, 1):
        group.start(rank, again=True)
    group.until_started(2)
    group.must_succeed(epochs=[1, 2])


def test_a_lost_container_that_does_not_come_back(hosts: Make) -> None:
    """All others end with the verdict for the job, which names the lost member."""
    group = Group(hosts(3), *QUICK, wait="10s")
    group.begin()
    group.until_started(1)
    group.rank(2).kill()
    group.gone.add(2)
    group.must_end(195, epochs=[1])
    for rank in (0, 1):
        assert group.rank(rank).verdict["verdict"] == "hang-limit"
        assert "member 2 (host-2) is lost and was not back within 10s" in group.rank(rank).verdict["message"]
