"""Two hosts with recoverable ranks, mostly two each with docs/examples/recover.py: what a rank, a messenger or a
container suffers is recovered on both without a restart, and the values are those of a run without it."""

import os
import signal
import sys
import zipfile
from collections.abc import Callable, Sequence

import pytest

from support.hosts import Container, Hosts
from support.runs import HOUSE, status, wait_for

Make = Callable[[int], Hosts]
LONG = 400.0  # s; PyTorch is imported by five or six processes, on a machine that has other work
STEPS = 12
EXAMPLE = HOUSE / "docs" / "examples" / "recover.py"
pytestmark = pytest.mark.timeout(2 * LONG)
# Ranks in plain Python that meet in a folder; rank 1 stands still in the first round, and both before their last step
# until `out/end` exists: a command that has ended belongs to no recovery.
PLAIN = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import ftrun_hooks as ft
out, last = os.environ["OUT"], int(os.environ["STEPS"])
@ft.recoverable
def train(run):
    step = run.restore()
    while step < last:
        while step == last - 1 and not os.path.exists(f"{out}/end"):
            time.sleep(0.01)
        while run.rank == 1 and run.round == 1 and step == 6:
            time.sleep(0.01)
        open(f"{out}/at-{run.round}-{step}-{run.rank}", "w").close()
        while not all(os.path.exists(f"{out}/at-{run.round}-{step}-{rank}") for rank in range(run.world_size)):
            time.sleep(0.01)
        step += 1
        run.keep(step)
        ft.beat(step)
        with open(f"{out}/rank-{run.rank}.log", "a") as log:
            print(run.round, step, os.getpid(), step, file=log, flush=True)
train()
"""
TORCH, SLOW = pytest.mark.torch, pytest.mark.slow
Lines = list[tuple[int, int, int, str]]  # round, step, pid, loss


class Job:
    """The containers of both hosts, from the folder `out` that they share."""

    def __init__(
        self,
        hosts: Hosts,
        fault: str,
        *options: str,
        steps: int = STEPS,
        each: int = 2,
        program: Sequence[str] = (str(EXAMPLE),),
    ) -> None:
        self.steps, self.each, self.program = steps, each, program
        self.hosts, self.fault, self.options, self.out = hosts, fault, options, hosts.folder / "out"
        self.out.mkdir()
        for member in (1, 0):
            self.start(member)

    def start(self, member: int) -> Container:
        ranks = ["--nproc-per-node", str(self.each)]
        words = [*self.hosts.group(member, 2, wait="4m"), *ranks, *self.options, "--", sys.executable]
        environment = {"OUT": str(self.out), "STEPS": str(self.steps), "FAULT": self.fault}
        return self.hosts.start(member, *words, *self.program, environment=environment)

    def member(self, number: int) -> Container:
        return next(one for one in self.hosts.last if one.rank == number)

    def log(self, rank: int) -> Lines:
        try:
            lines = [line.split() for line in (self.out / f"rank-{rank}.log").read_text().splitlines()]
        except FileNotFoundError:
            return []
        return [(int(number), int(step), int(pid), loss) for number, step, pid, loss in lines]

    def until_step(self, step: int) -> None:
        def reached() -> bool:
            assert not any(one.ended for one in self.hosts.last), self.hosts.log()
            return all(len(self.log(rank)) >= step for rank in range(2 * self.each))

        wait_for(reached, f"step {step} of all ranks", LONG)

    def until_done(self) -> None:
        """The exit of the processes does not count: PyTorch may abort one whose gloo threads outlive Python."""
        wait_for(
            lambda: all(self.steps in {step for _, step, _, _ in self.log(r)} for r in range(2 * self.each)),
            "the last step",
            LONG,
        )
        for one in self.hosts.last:
            one.until("recovered")

    def must_end(self, new: tuple[int, ...], redone: int = 1) -> None:
        """All steps are done after one recovery; the ranks in `new`, and no others, have new processes."""
        self.until_done()
        for one in self.hosts.last:
            assert len(one.named("spawned")) == 1, "a restart of all ranks"
            assert one.named("recovered")[-1]["round"] == 2
            begun = next(i for i, r in enumerate(one.records) if r["event"] == "recovering")
            assert begun < next(i for i, r in enumerate(one.records) if r["event"] == "recovered")
        for rank in range(4):
            lines = self.log(rank)
            assert sorted({step for _, step, _, _ in lines}) == [*range(1, self.steps + 1)]
            assert len(lines) <= self.steps + redone
            assert len({(step, loss) for _, step, _, loss in lines}) == self.steps, "a step that was done again differs"
            before = {pid for number, _, pid, _ in lines if number == 1}
            after = {pid for number, _, pid, _ in lines if number == 2}
            assert (before == after) == (rank not in new), f"rank {rank}: {before}, {after}"

    @property
    def weights(self) -> dict[str, bytes]:
        """Rank 0 writes them after the last step has been logged."""
        file = self.out / "weights.pt"
        wait_for(file.exists, "the weights", LONG)
        with zipfile.ZipFile(file) as archive:
            return {name: archive.read(name) for name in archive.namelist() if "/data/" in name}


def processes(container: Container) -> list[int]:
    """Of the ranks, as seen from here, by local rank."""
    inside = container.named("spawned")[-1]["pids"]
    found = {}
    for entry in os.listdir("/proc"):
        numbers = status(int(entry)).get("NSpid", "").split() if entry.isdigit() else []
        parent = status(int(entry)).get("PPid") if numbers else None
        if len(numbers) > 1 and parent == str(container.pid):
            found[int(numbers[-1])] = int(entry)
    return [found[pid] for pid in inside]


def plain_weights(hosts: Make) -> dict[str, bytes]:
    job = Job(hosts(2), "-1:0:", steps=100)
    wait_for(lambda: all(one.ended for one in job.hosts.last), "the end of both members", LONG)
    return job.weights


@TORCH
@SLOW
@pytest.mark.parametrize("size", ["1:2", "2"])
def test_the_death_of_rank_0_leaves_three_processes_on_two_hosts_alone(hosts: Make, size: str) -> None:
    job = Job(hosts(2), "0:6:kill", "--group-size", size)
    job.must_end((0,))


def test_a_container_that_comes_back_joins_ranks_that_kept_their_processes(hosts: Make) -> None:
    job = Job(hosts(2), "", each=1, program=("-c", PLAIN, str(HOUSE / "hooks")))
    job.until_step(6)
    job.member(1).kill()
    job.start(1)
    # Nobody has a checkpoint, and the new container no snapshots: both begin with step 0, one in the same process.
    for one in job.hosts.last:
        one.until("recovered")
    (job.out / "end").touch()
    job.until_done()
    (recovered,) = job.member(0).named("recovered")
    assert (recovered["ranks"], recovered["step"]) == ([1], None)
    assert len(job.member(0).named("spawned")) == 1
    assert len({pid for _, _, pid, _ in job.log(0)}) == 1
    assert len({(step, loss) for _, step, _, loss in job.log(0)}) == STEPS


@TORCH
@SLOW
@pytest.mark.parametrize("fault", ["3:50:kill", "2:50:retry", "1:50:exit"])
def test_the_weights_are_those_of_a_run_without_the_fault(fault: str, hosts: Make) -> None:
    job = Job(hosts(2), fault, steps=100)
    rank, _, kind = fault.split(":")
    job.must_end(() if kind == "retry" else (int(rank),))
    assert job.weights == plain_weights(hosts)


@TORCH
@SLOW
def test_a_stopped_rank_is_replaced_and_its_host_names_it(hosts: Make) -> None:
    job = Job(hosts(2), "2:6:hang", "--hang-timeout", "20s", "--start-timeout", "5m")
    job.until_step(6)
    os.kill(processes(job.member(1))[1], signal.SIGSTOP)
    job.must_end((3,))


@TORCH
@SLOW
@pytest.mark.parametrize("member", [0, 1])
def test_a_messenger_that_dies_during_the_recovery_delays_it_only(member: int, hosts: Make) -> None:
    job = Job(hosts(2), "2:6:hang")
    job.until_step(6)
    os.kill(job.member(member).messenger, signal.SIGKILL)
    os.kill(processes(job.member(1))[1], signal.SIGKILL)
    job.must_end((3,))
