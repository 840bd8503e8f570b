"""A program in C under `mpirun`: its heartbeats, a rank that hangs, and one that ends."""

import shutil
import subprocess

import pytest

from support.runs import HOUSE, Run, Runs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("mpicc") is None, reason="Open MPI is not installed: openmpi-bin, libopenmpi-dev"),
]
RANKS = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", "./train")


def start(runs: Runs, how: str, *options: str) -> Run:
    source = HOUSE / "tests" / "support" / "mpi_train.c"
    subprocess.run(["mpicc", "-o", "train", source], cwd=runs.folder, check=True)
    return runs.start(*options, *RANKS, how)


def test_touches_of_the_ranks_are_heartbeats(runs: Runs) -> None:
    run = start(runs, "healthy")
    assert run.wait() == 0, run.log()
    assert run.named("first_beat")[0]["rank"] == -1


def test_a_rank_that_ends_is_a_failure_of_the_command(runs: Runs) -> None:
    run = start(runs, "crash", "--restart-on", "failure", "--backoff", "1ms")
    assert run.wait() == 0, run.log()
    assert run.named("exited")[0]["code"] == 5


def test_a_rank_that_hangs_is_found_with_a_timeout_and_all_processes_are_ended(runs: Runs) -> None:
    """The other one computes: it spins in the collective."""
    run = start(runs, "hang", "--hang-timeout", "5s")
    assert run.wait() == 0, run.log()
    (hang,) = run.named("hang")
    assert (hang["rule"], hang["rank"], hang["processes"]) == ("step", -1, 3)
    assert "mpirun" in str(hang["mechanism"])
