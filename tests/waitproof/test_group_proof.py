"""What a member tells the others about its waits: the same in each look, whatever it was that the look read first."""

from __future__ import annotations

import pytest

from waitproof import calls, proof
from waitproof.group_waits import GroupWaits
from waitproof.proof import Facts
from waitproof.stacks import Frame, Stack, Thread
from waitproof.waits import empty
from waitproof.world import Descriptor, Interrupts, Socket, WaitingProcess, WaitingThread, World

RECEIVE = next(call for call in calls.table("x86_64").values() if call.name == "recvfrom")
ROOT = 10


def waiting(pid: int, parent: int = ROOT, rank: int | None = None, size: int | None = None) -> WaitingProcess:
    """A process that waits for data from another member."""
    thread = WaitingThread(pid, RECEIVE, fds=((3, "r"),), state="S", runs=1, line=f"recv {pid}", start=pid)
    fds = {3: Descriptor("socket", f"socket:{pid}")}
    return WaitingProcess(
        fds, threads=(thread,), rank=rank, size=size, parent=parent, start=pid, interrupts=Interrupts()
    )


def world(*processes: tuple[int, WaitingProcess]) -> World:
    seen = empty(frozenset())
    for pid, process in processes:
        seen.processes[pid] = process
        # The later a process was started, the lower is its address.
        seen.sockets[f"socket:{pid}"] = Socket("tcp", f"a:{900 - pid}", "b:1", "ESTABLISHED", moved=7)
        seen.holders[f"socket:{pid}"] = {pid: "rw"}
    return seen


def told(seen: World, *ranks: int) -> GroupWaits:
    found = proof.prove(seen, seen, {}, Facts(ROOT, {pid: n for n, pid in enumerate(ranks)}, ranks), in_group=True)
    assert found.group is not None
    return found.group


def test_the_same_waits_are_told_in_the_same_words_whatever_was_read_first() -> None:
    """A look reads the processes as they descend from the command; an investigation, the suspect first."""
    tree = [(ROOT, waiting(ROOT, 1)), *((pid, waiting(pid, rank=pid - 20, size=3)) for pid in (20, 21, 22))]
    expected = told(world(*tree), 20, 21, 22)
    assert len(expected.processes) == len(expected.links) == 4
    for first in range(4):
        assert told(world(tree[first], *tree[:first], *tree[first + 1 :]), 20, 21, 22) == expected


def test_a_process_that_only_has_the_environment_of_a_rank_is_told_as_none() -> None:
    """A scheduler gives RANK, which is that of the node, to the command; a rank gives its own to its workers."""
    launcher = (ROOT, waiting(ROOT, 1, rank=1, size=2))
    workers = [(pid, waiting(pid, pid - 10, pid - 28, 4)) for pid in (30, 31)]
    ranks = [(pid, waiting(pid, rank=pid - 18, size=4)) for pid in (20, 21)]
    seen = world(launcher, *ranks, *workers)
    found = proof.prove(seen, seen, {}, Facts(ROOT, {20: 2, 21: 3}, (20, 21)), in_group=True).group
    assert found is not None
    assert {process.pid: process.rank for process in found.processes} == {ROOT: None, 20: 2, 21: 3, 30: None, 31: None}
    assert found.size == 4


def test_a_wait_that_only_another_member_ends_is_said_without_a_waker() -> None:
    seen = world((ROOT, waiting(ROOT, 1)), (20, waiting(20, rank=0, size=2)))
    found = proof.prove(seen, seen, {}, Facts(ROOT, {20: 0}, (20,)), in_group=True)
    assert found.in_group
    assert found.mechanism == "rank 0 waits for a reply from b:1, which is outside the job"
    assert found.open_reason == f"{found.mechanism}, for other members of the group"


@pytest.mark.parametrize("ranks", [{}, {20: 2}], ids=["without heartbeats", "one without"])
def test_ranks_without_heartbeats_are_told_by_their_environment(ranks: dict[int, int]) -> None:
    processes = [(pid, waiting(pid, rank=pid - 18, size=4)) for pid in (20, 21)]
    seen = world((ROOT, waiting(ROOT, 1)), *processes, (31, waiting(31, 21, 3, 4)))
    found = proof.prove(seen, seen, {}, Facts(ROOT, ranks, (20,)), in_group=True).group
    assert found is not None
    assert {process.pid: process.rank for process in found.processes} == {ROOT: None, 20: 2, 21: 3, 31: None}
    assert found.size == 4


def test_what_torchrun_says_to_its_like_does_not_change_the_fingerprint_and_what_a_rank_hears_does() -> None:
    frames = (Frame("_invoke_run", "/x/torch/distributed/elastic/agent/server/api.py", 923),)
    main = Thread(ROOT, "MainThread", False, False, frames)
    stacks = {ROOT: Stack((main,), main)}

    def looked(torchrun: int, rank: int) -> GroupWaits:
        seen = world((ROOT, waiting(ROOT, 1)), (20, waiting(20, rank=0, size=2)))
        for pid, moved in ((ROOT, torchrun), (20, rank)):
            seen.sockets[f"socket:{pid}"] = seen.sockets[f"socket:{pid}"]._replace(moved=moved)
        found = proof.prove(seen, seen, stacks, Facts(ROOT, {20: 0}, (20,)), in_group=True).group
        assert found is not None
        return found

    first = looked(7, 7)
    assert sorted(link.launchers for link in first.links) == [False, True]
    assert looked(9, 7).fingerprint == first.fingerprint
    assert looked(7, 9).fingerprint != first.fingerprint
