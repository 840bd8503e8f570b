"""Containers on hosts of their own, each with an ftrun: what meets one of them is met by all, in one epoch."""

from collections.abc import Callable

from support.group_runs import Group
from support.hosts import Hosts
from support.runs import wait_for

Make = Callable[[int], Hosts]
QUICK = ("--steps", "100000", "--step-time", "0.02")


def starts(group: Group, epoch: int) -> dict[int, int]:
    """By rank: its MA_PROC_START_CNT in that epoch."""
    return {line["rank"]: line["starts"] for line in group.book.named("start", epoch=epoch)}


def reasons(group: Group, epoch: int) -> dict[int, str]:
    return {line["rank"]: line["reason"] for line in group.book.named("start", epoch=epoch)}


def test_trouble_of_one_starts_all_again_and_what_no_restart_can_cure_ends_all(hosts: Make) -> None:
    kinds = ("crash:1:10", "kill:2:20", "hang:1:30", "fail:1:40")
    troubles = [word for text in kinds for word in ("--failure", text)]
    group = Group(hosts(3), *QUICK, *troubles, options=("--hang-timeout", "2s"))
    early = [group.start(rank) for rank in (2, 1)]
    wait_for(lambda: all("waiting for the other members" in one.stderr for one in early), "that they wait")
    assert not group.book.lines  # rank 0 is late, and nobody starts before all are there
    group.start(0)
    group.must_end(94, epochs=[1, 2, 3, 4])
    for epoch in range(1, 5):
        assert starts(group, epoch) == dict.fromkeys(range(3), epoch)
    assert reasons(group, 1) == {0: "first", 1: "first", 2: "first"}
    assert reasons(group, 2) == {0: "peer", 1: "failure", 2: "peer"}
    assert reasons(group, 3) == {0: "peer", 1: "peer", 2: "failure"}
    # Of a hang all are witnesses, since all wait for the one: who says it first is the one that restarts of it.
    assert {"hang"} <= set(reasons(group, 4).values()) <= {"hang", "peer"}
    for rank in range(3):
        # The `stop` before it has the cause, too, where another witness turned out to have seen the hang earlier.
        (run,) = (told for told in group.rank(rank).named("group") if told["what"] == "run" and told["epoch"] == 4)
        assert (run["cause"], run["step"]) == ("hang", 29)
        assert group.rank(rank).verdict["verdict"] == "non-recoverable"
        assert "host-1" in str(group.rank(rank).verdict)


def test_a_lost_container_that_comes_back(hosts: Make) -> None:
    """The others end their command, keep their container, and start when it is there."""
    group = Group(hosts(3), *QUICK)
    group.begin()
    group.until_step(5)
    group.rank(1).kill()
    for other in (0, 2):
        group.rank(other).until("exited")
    assert group.book.epochs == [1]
    group.start(1, MA_SCHEDULE_CNT="2")
    group.until_started(2)
    assert starts(group, 2) == {0: 2, 1: 1, 2: 2}
    group.rank(0).kill()
    group.start(0, MA_SCHEDULE_CNT="2")  # before any of the others had to know that it was gone
    group.until_started(3)
    assert starts(group, 3) == {0: 1, 1: 2, 2: 3}
    group.finish()
    group.must_end(0, epochs=[1, 2, 3])


def test_a_lost_container_that_does_not_come_back(hosts: Make) -> None:
    """All others end with the verdict for the job, and say who it was."""
    group = Group(hosts(3), *QUICK, wait="1s")
    group.begin()
    group.until_started(1)
    group.rank(2).kill()
    group.gone.add(2)
    group.must_end(195, epochs=[1])
    for rank in (0, 1):
        assert group.rank(rank).verdict["verdict"] == "hang-limit"
        assert "member 2 (host-2) is lost and was not back within 1s" in group.rank(rank).verdict["message"]


def test_restarts_in_a_row_are_those_of_the_job(hosts: Make) -> None:
    """Once rank 1 fails and once rank 0: that is two, not one each."""
    troubles = ("--failure", "crash:1:10", "--failure", "crash:0:9:always")
    group = Group(hosts(2), *QUICK, *troubles, "--every", "1000", options=("--max-restarts", "1"))
    group.begin()
    group.must_end(93, epochs=[1, 2])
