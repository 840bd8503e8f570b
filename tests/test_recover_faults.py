"""Four ranks with DDP and gloo, and each kind of fault in the middle of 100 steps: the losses of every step and the
final weights are those of a run without a fault, and only who failed has a new process.
tests/rank_faults.tsv has the list.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from support.runs import HOUSE, Run, Runs
from support.runs import runs as runs

RANKS, STEPS = 4, 100
LONG = 400.0  # s; PyTorch is imported by five processes, on a machine that has other work
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(3 * LONG)]
PROGRAM = HOUSE / "tests" / "support" / "rank_programs" / "with_faults.py"
HANGS = ("--hang-timeout", "10s", "--start-timeout", "5m")


class Case(NamedTuple):
    """`faults`: RANK:MOMENT:STEP:KIND.  `replaced`: the ranks that have new processes; none: a retry."""

    faults: tuple[str, ...]
    replaced: frozenset[int]
    options: tuple[str, ...] = ()


def case(faults: str, *replaced: int, options: tuple[str, ...] = ()) -> Case:
    return Case(tuple(faults.split()), frozenset(replaced), options)


CASES = {
    **{f"killed {rank}": case(f"{rank}:step:50:kill", rank) for rank in range(RANKS)},
    "stopped": case("2:step:50:stop", 2, options=HANGS),
    "stopped 0": case("0:step:50:stop", 0, options=HANGS),
    "gil": case("1:step:50:gil", 1, options=HANGS),
    "lock": case("3:step:50:lock", 3, options=HANGS),
    "exception": case("1:step:50:raise", 1),
    "exit": case("2:step:50:exit", 2),
    "daemon": case("3:step:50:daemon", 3),
    "retry": case("1:step:50:retry"),
    "two at once": case("1:step:50:kill 3:step:50:kill", 1, 3),
    "two at once, with 0": case("0:step:50:kill 2:step:50:kill", 0, 2),
    "in keep": case("2:keep:50:kill", 2),
    "during the fence": case("0:step:50:retry 2:leave:0:kill", 2),
    "never leaves": case("0:step:50:retry 2:leave:0:ignore", 2, options=("--recover-timeout", "10s")),
    "in restore": case("3:step:50:retry 1:restore:0:kill", 1),
    "during the go": case("3:step:50:retry 0:go:0:kill", 0),
}


def train(runs: Runs, *faults: str, options: tuple[str, ...] = ()) -> Run:
    # One process imports PyTorch for all four; that of a rank that is replaced starts cold.
    ours = ("--nproc-per-node", str(RANKS), "--preload", "torch", "--grace", "1s", "--probe", "off", *options)
    run = runs.start(*ours, "--", sys.executable, str(PROGRAM), str(STEPS), *faults, OMP_NUM_THREADS="1")
    assert run.wait(LONG) == 0, run.log()
    return run


class Steps(NamedTuple):
    """What each rank has written: round, step, pid, loss."""

    of: dict[int, list[tuple[int, int, int, str]]]
    weights: set[str]

    def losses(self, rank: int) -> dict[int, set[str]]:
        return {step: {loss for _, at, _, loss in self.of[rank] if at == step} for _, step, _, _ in self.of[rank]}

    def pids(self, rank: int) -> set[int]:
        return {pid for _, _, pid, _ in self.of[rank]}


def written(folder: Path) -> Steps:
    found: dict[int, list[tuple[int, int, int, str]]] = {}
    for rank in range(RANKS):
        lines = [line.split() for line in (folder / f"log-{rank}").read_text().splitlines()]
        found[rank] = [(int(number), int(step), int(pid), loss) for _, number, step, pid, loss in lines]
    return Steps(found, {(folder / f"weights-{rank}").read_text() for rank in range(RANKS)})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Steps]:
    """Without a fault."""
    runs = Runs(Path(tmp_path_factory.mktemp("whole")))
    run = train(runs)
    assert not run.named("recovering")
    yield written(runs.folder)
    runs.end()


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_recovered_on_its_rung(name: str, runs: Runs, whole: Steps) -> None:
    """The fixture `runs` also asserts that no process and no file in /dev/shm is left."""
    faults, replaced, options = CASES[name]
    run = train(runs, *faults, options=options)
    done = written(runs.folder)
    assert len(list(runs.folder.glob("fault-*"))) == len(faults), "a fault did not happen"
    assert not run.named("restart"), run.log()
    last = run.named("recovered")[-1]
    assert (last["rung"], last["ranks"]) == ("rank" if replaced else "retry", sorted(replaced))
    for rank in range(RANKS):
        assert len(done.pids(rank)) == (2 if rank in replaced else 1), f"rank {rank}"
        assert done.losses(rank) == whole.losses(rank)
        assert len(done.of[rank]) <= STEPS + 1, "more than one step was done again"
    assert done.weights == whole.weights
