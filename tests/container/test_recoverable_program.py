"""Ranks that use `@ft.recoverable`, under ftrun: each fault on the finest rung, with the result of a run without it."""

import sys
from pathlib import Path

import pytest

from support.containers import Starter
from support.runs import wait_for

STEPS = 12
RANKS = 3

PROGRAM = """
import os, sys, threading, time
from pathlib import Path
import ftrun_hooks as ft

FOLDER, FAULT = Path(sys.argv[1]), sys.argv[2]

def everybody(run, step):
    "The collective: wait for each rank, in a loop that swallows what it can."
    (FOLDER / f"at-{run.round}-{step}-{run.rank}").touch()
    while not all((FOLDER / f"at-{run.round}-{step}-{rank}").exists() for rank in range(run.world_size)):
        try:
            time.sleep(0.005)
        except Exception:
            pass

@ft.recoverable
def train(run):
    step = run.restore()
    total = int.from_bytes(run.kept.get("total", b""), "big")
    while step < %d:
        if run.rank == 1 and step == 5 and run.round == 1:
            exec(FAULT)
        everybody(run, step)
        total = total * 3 + step + run.rank
        step += 1
        run.keep(step, total=total.to_bytes(40, "big"))
        ft.beat(step)
        with open(FOLDER / f"log-{run.rank}", "a") as log:
            print(run.round, step, os.getpid(), file=log, flush=True)
    return total

total = train()
(FOLDER / f"total-{os.environ['RANK']}").write_text(str(total))
""".replace("%d", str(STEPS))

FAULTS = {
    "killed": ("os.kill(os.getpid(), 9)", "rank"),
    "exit": ("os._exit(3)", "rank"),
    "exception": ("raise ValueError('a fault')", "rank"),
    "retry": ("raise ft.Retry('a passing fault')", "retry"),
    "killed in keep": (
        """
import ftrun_hooks._snapshot as snapshot
snapshot.Bytes.write = lambda self, memory: (memory.__setitem__(0, 1), os.kill(os.getpid(), 9))
""",
        "rank",
    ),
}


def expected(rank: int) -> int:
    total = 0
    for step in range(STEPS):
        total = total * 3 + step + rank
    return total


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_at_most_one_step_and_only_the_process_that_failed(
    fault: str, start: Starter, tmp_path: Path
) -> None:
    code, rung = FAULTS[fault]
    folder = tmp_path / "work"
    folder.mkdir()
    (tmp_path / "train.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "train.py"), str(folder), code]
    run = start(*command, mode="subreaper", options=["--nproc-per-node", str(RANKS), "--grace", "1s"])
    status, _, err = run.finish()
    assert status == 0, err
    (begun,) = run.named("recovering")
    (ended,) = run.named("recovered")
    assert (begun["rung"], ended["rung"], ended["ranks"]) == (rung, rung, [1] if rung == "rank" else [])
    assert not run.named("restart")
    for rank in range(RANKS):
        assert (folder / f"total-{rank}").read_text() == str(expected(rank))
        lines = [tuple(map(int, line.split())) for line in (folder / f"log-{rank}").read_text().splitlines()]
        steps = [step for _, step, _ in lines]
        assert sorted(set(steps)) == list(range(1, STEPS + 1))
        assert len(steps) <= STEPS + 1, "more than one step was done again"
        assert len({pid for _, _, pid in lines}) == (2 if rank == 1 and rung == "rank" else 1)
    wait_for(lambda: not start.living(), "the end of all processes")
