"""`fthang rank-...`: each failure of one rank is recovered below the tree, with the weights of a healthy run."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.workload import kinds
from support.runs import FTHANG, Run, Runs
from support.runs import runs as runs
from support.short import quick

RANKS = 3
TRAINING = ("--steps", "16", "--step-time", "2ms", "--after", "6", "--checkpoint-every", "100")
HANGS = ("rank-stop", "rank-gil", "rank-lock", "rank-ignore")
QUICK = ("rank-killed", "rank-retry")  # in the gate; tests below have more kinds
BROKEN = [kind.name for kind in kinds.RANKS if kind.name != "rank-none"]
BEGUN = re.compile(r"rank (\d+), pid (\d+): round (\d+)")


def train(runs: Runs, kind: str, *arguments: str, options: tuple[str, ...] = ()) -> Run:
    ftruns = "--nproc-per-node", str(RANKS), "--grace", "1s", *options
    return runs.run(*ftruns, *FTHANG, kind, *TRAINING, *arguments)


def finished(run: Run) -> dict[str, str]:
    """What each rank says at the end."""
    lines = [
        (line.split(": ", 1)[0], line.split(": ", 1)[1]) for line in run.stdout.splitlines() if ": finished at" in line
    ]
    return dict(lines)


def pids(run: Run, number: int) -> dict[int, int]:
    found = [tuple(map(int, match.groups())) for match in BEGUN.finditer(run.stdout)]
    return {rank: pid for rank, pid, round_ in found if round_ == number}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    runs = Runs(Path(tmp_path_factory.mktemp("uninterrupted")))
    run = train(runs, "rank-none")
    assert run.wait() == 0, run.log()
    assert not run.named("recovering")
    yield finished(run)
    runs.end()


def recovers(runs: Runs, kind: str, expected: dict[str, str], *arguments: str, options: tuple[str, ...] = ()) -> Run:
    run = train(runs, kind, *arguments, options=options)
    assert run.wait() == 0, run.log()
    assert len(expected) == RANKS
    assert finished(run) == expected
    assert not run.named("restart"), run.log()
    return run


@pytest.mark.parametrize("kind", quick([k for k in BROKEN if k not in HANGS], QUICK))
def test_a_failure_of_one_rank_changes_no_weight(kind: str, runs: Runs, expected: dict[str, str]) -> None:
    run = recovers(runs, kind, expected)
    last = run.named("recovered")[-1]
    assert (last["rung"], last["ranks"]) == (("retry", []) if kind == "rank-retry" else ("rank", [1]))
    before, after = pids(run, 1), pids(run, last["round"])
    assert {rank for rank in before if before[rank] != after[rank]} == set(last["ranks"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", HANGS)
def test_a_hang_of_one_rank_changes_no_weight(kind: str, runs: Runs, expected: dict[str, str]) -> None:
    run = recovers(runs, kind, expected, options=("--hang-timeout", "5s", "--recover-timeout", "10s"))
    assert run.named("recovered")[-1]["ranks"] == [1]


@pytest.mark.slow  # in the gate container/test_rank_recovery.py kills rank 0
def test_rank_0_may_fail_as_any_other(runs: Runs, expected: dict[str, str]) -> None:
    run = recovers(runs, "rank-killed", expected, "--rank", "0")
    assert run.named("recovered")[-1]["ranks"] == [0]


@pytest.mark.slow  # in the gate cli/test_rank_faults.py has ranks that die together
@pytest.mark.parametrize("kind", ["rank-killed", "rank-in-restore"])
def test_several_ranks_may_fail_at_once(kind: str, runs: Runs, expected: dict[str, str]) -> None:
    run = recovers(runs, kind, expected, "--rank", "0", "--rank", "2")
    last = run.named("recovered")[-1]
    assert (last["rung"], last["ranks"]) == ("rank", [0, 2])
    assert pids(run, 1)[1] == pids(run, last["round"])[1]


@pytest.mark.slow  # in the gate container/test_rank_recovery.py has one that dies again
def test_a_rank_that_fails_again_at_once_ends_with_the_tree(runs: Runs) -> None:
    run = train(runs, "rank-killed", "--times", "9", options=("--restart-on", "failure", "--max-restarts", "1"))
    assert run.wait() == 93, run.log()
    # On a busy machine its connections may be closed long before its death: then a retry comes first.
    rungs = [record["rung"] for record in run.named("recovering") if record["rung"] != "retry"]
    assert rungs[:2] == ["rank", "tree"]


def test_alone_it_is_a_plain_training(runs: Runs) -> None:
    run = runs.ends(0, *FTHANG, "rank-none", *TRAINING)
    assert "rank 0: finished at step 16" in run.stdout
