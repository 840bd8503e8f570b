"""docs/examples/recover.py, the program of docs/howto/recover-a-rank.md: DDP goes on after the death of a rank."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.beat_file import HOUSE
from support.trained import tensors

# In the gate tests/container/test_rank_recovery.py has ranks without PyTorch that recover.
pytestmark = [pytest.mark.torch, pytest.mark.slow]
EXAMPLE = HOUSE / "docs" / "examples" / "recover.py"
Lines = list[tuple[int, int, int, str]]  # round, step, pid, loss


def train(folder: Path, ranks: int, steps: int, fault: str = "", *options: str) -> None:
    out = folder / "out"
    out.mkdir(parents=True)
    env = {**os.environ, "OUT": str(out), "STEPS": str(steps), "FAULT": fault or "-1:0:", "OMP_NUM_THREADS": "1"}
    words = ["--run-dir", str(folder / "run"), "--nproc-per-node", str(ranks), *options, "--", sys.executable]
    command = [sys.executable, str(HOUSE / "bin" / "ftrun"), *words, str(EXAMPLE)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr


def log(folder: Path, rank: int) -> Lines:
    lines = [line.split() for line in (folder / "out" / f"rank-{rank}.log").read_text().splitlines()]
    return [(int(number), int(step), int(pid), loss) for number, step, pid, loss in lines]


def checked(folder: Path, ranks: int, steps: int, replaced: int | None) -> None:
    for rank in range(ranks):
        lines = log(folder, rank)
        assert sorted({step for _, step, _, _ in lines}) == [*range(1, steps + 1)]
        assert len(lines) <= steps + 1, "more than one step was done again"
        assert len({pid for _, _, pid, _ in lines}) == (2 if rank == replaced else 1)
        assert len({(step, loss) for _, step, _, loss in lines}) == steps, "a step that was done again differs"


def test_the_death_of_rank_0_leaves_the_other_process_alone(tmp_path: Path) -> None:
    train(tmp_path, 2, 12, "0:6:kill")
    checked(tmp_path, 2, 12, replaced=0)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("fault", ["0:50:kill", "2:50:kill", "3:50:raise", "1:50:exit", "1:50:retry"])
def test_four_ranks_compute_what_they_would_have_without_the_fault(fault: str, tmp_path: Path) -> None:
    train(tmp_path / "whole", 4, 100)
    train(tmp_path / "faulty", 4, 100, fault)
    rank, _, kind = fault.split(":")
    checked(tmp_path / "faulty", 4, 100, replaced=None if kind == "retry" else int(rank))
    for number in range(4):
        whole = [(step, loss) for _, step, _, loss in log(tmp_path / "whole", number)]
        assert sorted({(step, loss) for _, step, _, loss in log(tmp_path / "faulty", number)}) == whole
    assert tensors(tmp_path / "whole" / "out" / "weights.pt") == tensors(tmp_path / "faulty" / "out" / "weights.pt")


SCRIPT = HOUSE / "docs" / "examples" / "recover_script.py"


def losses(folder: Path, fault: str = "") -> tuple[str, str]:
    """What docs/examples/recover_script.py prints: the losses of all steps, and the rest."""
    folder.mkdir()
    env = {**os.environ, "FAULT": fault or "-1:-1", "OMP_NUM_THREADS": "1"}
    words = ["--run-dir", str(folder / "run"), "--nproc-per-node", "2", "--", sys.executable, str(SCRIPT), str(folder)]
    command = [sys.executable, str(HOUSE / "bin" / "ftrun"), *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    return next(line for line in lines if line.startswith("losses")), done.stdout


def test_a_script_as_people_write_them_computes_the_same_after_a_death(tmp_path: Path) -> None:
    """In the middle of an epoch; what its ranks draw at random, and when it stops, included."""
    whole, _ = losses(tmp_path / "whole")
    after, printed = losses(tmp_path / "faulty", "1:14")
    assert "rank 0, round 2: from step 14" in printed
    assert "rank 1, round 2: from step 14" in printed
    assert after == whole
    assert len(whole.split()) == 1 + 40 + 2
