"""Groups that go on with fewer members, have spares, or wait for a replaced one: containers on hosts of their own."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from net.test_group_view import rows
from support.group_runs import Group
from support.hosts import Hosts
from support.runs import HOUSE, wait_for
from support.short import quick

Make = Callable[[int], Hosts]
CRITICAL = "80E18402"  # a code of a device that cannot heal
OF_THE_USER = "80C98002"  # of an operator or its input
QUICK = ("--steps", "100000", "--step-time", "0.02")


def members(group: Group, epoch: int) -> dict[int, int]:
    """Which member had each place in that epoch."""
    return {line["rank"]: line["member"] for line in group.book.named("start", epoch=epoch)}


def sizes(group: Group, epoch: int) -> set[int]:
    """NNODES, as each command saw it."""
    return {line["size"] for line in group.book.named("start", epoch=epoch)}


def test_a_spare_takes_the_place_of_a_lost_member_and_nothing_restarts_twice(hosts: Make) -> None:
    group = Group(hosts(4), *QUICK, wait="60s", options=("--spares", "1"))
    group.begin()
    group.until_started(1, nodes=3)
    assert members(group, 1) == {0: 0, 1: 1, 2: 2}
    until_spare(group, 3)
    assert not group.rank(3).named("spawned")
    until_shown_as_spare(group, 3)
    group.rank(1).kill()
    group.gone.add(1)
    group.until_started(2, nodes=3)
    assert (members(group, 2), sizes(group, 2)) == ({0: 0, 1: 3, 2: 2}, {3})
    assert "its ftrun has died" in str(group.rank(0).named("group"))
    group.start(1)  # it is a spare now, and what happens to it is nobody's concern
    until_spare(group, 1)
    group.rank(1).kill()
    group.start(1)
    until_spare(group, 1)
    group.gone.discard(1)
    group.must_succeed(epochs=[1, 2])


# Its ranks need not agree on anything.
RANKS = """
import json, os, sys, time
from email.message import EmailMessage
sys.path.insert(0, sys.argv[1])
import ftrun_hooks as ft
names = "WORLD_SIZE", "GROUP_RANK", "MA_PROC_START_CNT"
path = f"{sys.argv[2]}/{os.environ['FTRUN_EPOCH']}-{os.environ['RANK']}"
with open(f"{path}.new", "w") as file:
    file.write(json.dumps({name: os.environ[name] for name in names}))
os.rename(f"{path}.new", path)
for step in range(1_000_000):
    ft.beat(step)
    time.sleep(0.02)
"""


@pytest.mark.slow
def test_the_standbys_of_a_spare_are_forked_and_get_the_numbers_of_the_lost_ranks(hosts: Make) -> None:
    here = hosts(3)
    program = here.folder / "ranks.py"
    program.write_text(RANKS)
    options = ("--spares", "1", "--nproc-per-node", "2", "--standby", "2", "--grace", "1s")
    command = (*options, "--", sys.executable, str(program), str(HOUSE / "hooks"), str(here.folder))
    members = [here.start(rank, *here.group(rank, 3, wait="60s"), *command) for rank in range(3)]
    ready = members[2].until("standby", what="ready")
    assert (ready["ready"], ready["of"], ready["forked"]) == (2, 2, 2)
    wait_for(lambda: all((here.folder / f"1-{rank}").exists() for rank in range(4)), "all ranks of epoch 1")
    members[1].kill()
    started = members[2].until("standby", what="start")
    assert (started["warm"], started["of"], started["forked"], started.get("why")) == (2, 2, 2, None)
    seen = [json.loads(wait_for((here.folder / f"2-{rank}").read_text, f"rank {rank} of epoch 2")) for rank in range(4)]
    assert [(one["GROUP_RANK"], one["MA_PROC_START_CNT"]) for one in seen] == [*[("0", "2")] * 2, *[("1", "1")] * 2]
    assert {one["WORLD_SIZE"] for one in seen} == {"4"}


def test_fewer_go_on_and_the_lost_one_is_taken_in_at_the_next_restart(hosts: Make) -> None:
    failure = ("--failure", "crash:1:100000")
    group = Group(hosts(3), *QUICK, *failure, wait="5s", shape="2:3", options=("--peer-timeout", "5s"))
    group.begin()
    group.until_started(1)
    group.rank(1).kill()
    group.until_started(2, nodes=2)
    assert (members(group, 2), sizes(group, 2)) == ({0: 0, 1: 2}, {2})
    group.start(1)
    until_spare(group, 1)
    restart(group, 0)
    group.until_started(3)
    assert (members(group, 3), sizes(group, 3)) == ({0: 0, 1: 2, 2: 1}, {3})
    group.must_succeed(epochs=[1, 2, 3])


@pytest.mark.parametrize("files", quick([False, True], ids=lambda files: "files" if files else "hooks"))
def test_a_member_that_is_back_is_taken_in_at_the_next_checkpoint(hosts: Make, files: bool) -> None:
    made = hosts(3)
    progress = ("--progress", str(made.folder / "shared" / "kept*")) if files else ()
    options = ("--peer-timeout", "5s", "--scale-out", "checkpoint", *progress)
    group = Group(made, *QUICK, wait="5s", shape="2:3", options=options)
    group.begin()
    group.until_started(1)
    group.rank(2).kill()
    group.until_started(2, nodes=2)
    group.start(2)
    group.until_started(3)
    assert "a checkpoint is saved, and member 2 (host-2) can work again: 3 members go on" in group.rank(0).stderr
    group.must_succeed(epochs=[1, 2, 3])


def test_below_the_least_number_of_members_the_job_ends_with_195(hosts: Make) -> None:
    group = Group(hosts(3), *QUICK, wait="4s", shape="2:3", options=("--peer-timeout", "5s"))
    group.begin()
    group.until_started(1)
    group.rank(1).kill()
    group.until_started(2, nodes=2)
    group.rank(2).kill()
    group.gone |= {1, 2}
    group.must_end(195, epochs=[1, 2])
    assert "1 member left, and the group needs 2" in str(group.rank(0).verdict["message"])


@pytest.mark.parametrize("rank", quick([1, 0]))
def test_a_replaced_member_does_not_end_the_others(hosts: Make, rank: int) -> None:
    """As with a device fault: it ends alone, says `isolate`, and the others start with the new container."""
    group = Group(hosts(3), *QUICK, wait="60s", options=("--replace-members",))
    state = group.folder / "reset.json"
    report_fault(state, rank)
    for member in range(3):
        group.start(member, options=("--reset-file", str(state)) if member == rank else ())
    group.until_started(1)
    report_fault(state, rank, CRITICAL)
    assert group.rank(rank).wait() == 197
    assert group.rank(rank).verdict["isolate"] is True
    others = {0, 1, 2} - {rank}
    for other in others:
        group.rank(other).until("exited")
        assert not group.rank(other).ended
    group.start(rank, MA_SCHEDULE_CNT="2")
    group.until_started(2)
    starts = {line["member"]: line["starts"] for line in group.book.named("start", epoch=2)}
    assert starts == dict.fromkeys(others, 2) | {rank: 1}
    group.must_succeed(epochs=[1, 2])


@pytest.mark.slow
def test_a_fault_of_the_user_ends_all_members_although_one_could_be_replaced(hosts: Make) -> None:
    """The third in a row concerns the whole job: no member waits for a new one, and all have the same verdict."""
    made = hosts(3)
    kept = made.folder / "state"
    group = Group(made, *QUICK, wait="60s", options=("--replace-members", "--state-dir", str(kept)))
    state = group.folder / "reset.json"
    report_fault(state, 1)
    for member in range(3):
        group.start(member, options=("--reset-file", str(state)) if member == 1 else ())
    for epoch in (1, 2, 3):
        group.until_started(epoch)
        report_fault(state, 1, OF_THE_USER)
        if epoch < 3:
            group.rank(1).until("healing", epoch)
            report_fault(state, 1)
    group.must_end(196, epochs=[1, 2, 3])
    for rank in range(3):
        assert group.rank(rank).verdict["verdict"] == "user-fault-limit"
        assert group.rank(rank).verdict["isolate"] is False
    assert json.loads((kept / "verdict.json").read_bytes())["exit_code"] == 196


def until_spare(group: Group, rank: int) -> None:
    member = group.rank(rank)
    wait_for(lambda: any(record["what"] == "spare" for record in member.named("group")), "a spare")


def until_shown_as_spare(group: Group, rank: int) -> None:
    """By `ftctl status` of any member, which says of the others that they work."""

    def shown() -> bool:
        found = rows(group.rank(0))
        words = {number: row["state"] for number, row in found.items()}
        return words.get(rank) == "spare" and "spare" not in [words[other] for other in words if other != rank]

    wait_for(shown, "a row of a spare")
    alone = group.rank(rank).ftctl("status", "--exit-code")
    assert (alone.returncode, alone.stdout.split()[0]) == (0, "spare"), alone
    assert "held ready to take the place of a lost member" in alone.stdout


def report_fault(path: Path, rank: int, code: str = "") -> None:
    """As MindCluster reports a device, here one that is well, or has a fault."""
    state = {"Status": "unrecovered" if code else "recovered", "Policy": "hotReset"}
    device = {"RankId": rank, "LogicId": 0, **state, "ErrorCode": [], "ErrorCodeHex": code}
    flags = {"FaultFlushing": False, "GracefulExit": 0, "RestartFaultProcess": False}
    content = {"RankList": [device], "UpdateTime": int(time.time()) + bool(code), "RetryTime": 0, **flags}
    path.with_suffix(".new").write_text(json.dumps(content))
    path.with_suffix(".new").rename(path)


def restart(group: Group, rank: int) -> None:
    """The command of this member fails, which restarts all."""
    wait_for(lambda: group.book.step > 3, "some steps")
    os.kill(group.rank(rank).command, signal.SIGKILL)
