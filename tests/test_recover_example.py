"""docs/examples/recover.py, the program of docs/howto/recover-a-rank.md: DDP goes on after the death of a rank."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support.beat_file import HOUSE

pytestmark = pytest.mark.torch
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


def weights(folder: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(folder / "out" / "weights.pt") as archive:
        return {name: archive.read(name) for name in archive.namelist() if "/data/" in name}


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


@pytest.mark.slow
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
    assert weights(tmp_path / "whole") == weights(tmp_path / "faulty")
