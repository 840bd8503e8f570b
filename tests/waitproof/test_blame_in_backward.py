"""A backward pass waits for all ranks like a collective: the rank in none is blamed, on one node and in a group."""

from __future__ import annotations

from itertools import permutations

import pytest

from ftrun.core.group import waits
from ftrun.helpers.evidence.other_members import as_message
from waitproof import calls, proof, recognized
from waitproof.proof import Facts
from waitproof.stacks import Frame, Stack, Thread
from waitproof.waits import empty
from waitproof.world import Descriptor, Interrupts, Socket, WaitingProcess, WaitingThread, World

TABLE = {call.name: call for call in calls.table("x86_64").values()}
OWN = Frame("<module>", "/home/me/train.py", 34)
BACKWARD = (Frame("_engine_run_backward", "/x/site-packages/torch/autograd/graph.py", 979), OWN)
REDUCE = (Frame("all_reduce", "/x/site-packages/torch/distributed/distributed_c10d.py", 3252), OWN)
LOCK = (Frame("stuck", "/home/me/train.py", 12), OWN)
HOOK = (Frame("stuck", "/home/me/train.py", 12), *BACKWARD)
PIDS = (20, 21, 22)


def hung(stacks: tuple[tuple[Frame, ...], ...], here: tuple[int, ...]) -> tuple[World, dict[int, Stack]]:
    """Ranks that are connected, each with each, of which those `here` are seen.  Each waits for a lock in its main
    thread, and for the others in another one."""
    seen, found = empty(frozenset()), {}
    for rank in here:
        pid, others = PIDS[rank], [n for n in range(len(PIDS)) if n != rank]
        fds = {3 + n: Descriptor("socket", f"socket:{rank}{n}") for n in others}
        for n in others:
            key = f"socket:{rank}{n}"
            seen.sockets[key] = Socket("tcp", f"h{rank}:{n}", f"h{n}:{rank}", "ESTABLISHED", moved=7)
            seen.holders[key] = {pid: "rw"}
        main = WaitingThread(pid, TABLE["futex"], state="S", runs=1, start=pid)
        watched = tuple((3 + n, "r") for n in others)
        side = WaitingThread(pid + 100, TABLE["epoll_wait"], fds=watched, state="S", runs=1, start=pid)
        seen.processes[pid] = WaitingProcess(
            fds, threads=(main, side), rank=rank, size=3, parent=1, start=pid, interrupts=Interrupts()
        )
        python = Thread(pid, "MainThread", False, False, stacks[rank])
        found[pid] = Stack((python,), python)
    return seen, found


@pytest.mark.parametrize("there", [BACKWARD, REDUCE], ids=["in a backward pass", "in a collective"])
@pytest.mark.parametrize("culprit", range(3))
@pytest.mark.parametrize("where", [LOCK, HOOK], ids=["before it", "in a hook of it"])
def test_on_one_node(where: tuple[Frame, ...], culprit: int, there: tuple[Frame, ...]) -> None:
    stacks = tuple(where if rank == culprit else there for rank in range(3))
    seen, found = hung(stacks, (0, 1, 2))
    for still in permutations(PIDS):
        proved = proof.prove(seen, seen, found, Facts(1, {pid: n for n, pid in enumerate(PIDS)}, still))
        assert proved.open_reason is None
        assert (proved.rank, proved.pid) == (culprit, PIDS[culprit])
        assert f"rank {culprit} (process {PIDS[culprit]}, main thread) waits for a lock at train.py" in proved.mechanism


@pytest.mark.parametrize("there", [BACKWARD, REDUCE], ids=["in a backward pass", "in a collective"])
@pytest.mark.parametrize("culprit", range(3))
@pytest.mark.parametrize("where", [LOCK, HOOK], ids=["before it", "in a hook of it"])
def test_over_three_nodes(where: tuple[Frame, ...], culprit: int, there: tuple[Frame, ...]) -> None:
    stacks = tuple(where if rank == culprit else there for rank in range(3))
    members = {}
    for rank, pid in enumerate(PIDS):
        seen, found = hung(stacks, (rank,))
        told = proof.prove(seen, seen, found, Facts(1, {pid: rank}, (pid,)), in_group=True).group
        assert told is not None
        members[rank] = as_message(told, rank)
    proved = waits.deadlock(members, {})
    assert proved is not None
    assert (proved.member, proved.rank, proved.pid) == (culprit, culprit, PIDS[culprit])


def test_ranks_in_a_backward_pass_and_in_a_collective_are_a_mismatch() -> None:
    seen, found = hung((BACKWARD, REDUCE, BACKWARD), (0, 1, 2))
    proved = proof.prove(seen, seen, found, Facts(1, {pid: n for n, pid in enumerate(PIDS)}, PIDS))
    assert proved.mechanism == (
        "collective mismatch: rank 0 waits in a backward pass at train.py:34, rank 1 in all_reduce at train.py:34"
    )


def test_a_hook_that_waits_in_a_backward_pass_is_not_the_pass() -> None:
    assert recognized.common_call(BACKWARD) == "a backward pass"
    assert recognized.common_call(HOOK) == ""
    assert recognized.common_call((REDUCE[0], *BACKWARD)) == "all_reduce"
