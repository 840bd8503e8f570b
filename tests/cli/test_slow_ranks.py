"""Real ranks that train with gloo in lockstep under ftrun: which of them becomes a record `straggler`.

Long, since only a rank that is slow for a minute is one: `pytest -m slow tests/cli/test_slow_ranks.py`.  Its short form
is tests/helpers/test_paces.py.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.records.present.run_snapshot import read_snapshot
from support.runs import FTCTL, Runs, wait_for

TRAIN = """
import os, sys, time
import torch
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, mode, last = dist.get_rank(), sys.argv[1], time.monotonic()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until: pass
while True:
    burn(0.03) if mode == "crowded" else time.sleep(0.4)
    if rank == 1 and mode in ("sleep", "burn"):
        (time.sleep if mode == "sleep" else burn)(0.12)  # 30 % longer
    if rank == 0 and mode == "save" and time.monotonic() > last + 30:
        time.sleep(6)
        torch.save(model.state_dict(), sys.argv[2])
        last = time.monotonic()
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
"""
LONG = 150.0  # s, in which a straggler would have become a record

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("mode", ["sleep", "burn"])
def test_the_rank_that_works_30_percent_longer_is_recorded_with_its_place(
    runs: Runs, tmp_path: Path, mode: str
) -> None:
    pytest.importorskip("torch")
    run = runs.start("--nproc-per-node", "4", "--", sys.executable, "-c", TRAIN, mode)
    record = wait_for(lambda: run.named("straggler"), "the record", timeout=400)[0]
    assert (record["rank"], record["node"]) == (1, os.uname().nodename)
    assert record["step_time"] >= record["work"] > record["usual"] + 0.06
    shown = subprocess.run(
        [*FTCTL, "status", "--run-dir", str(run.run_dir)], capture_output=True, text=True, check=True
    )
    assert f"straggler   rank 1 on {os.uname().nodename}: it works for " in shown.stdout
    assert [one["rank"] for one in run.named("straggler")] == [1]


@pytest.mark.parametrize("mode", ["equal", "save", "crowded"])
def test_equal_ranks_and_one_that_saves_now_and_then_are_no_stragglers(runs: Runs, tmp_path: Path, mode: str) -> None:
    pytest.importorskip("torch")
    run = runs.spawned("--nproc-per-node", "4", "--", sys.executable, "-c", TRAIN, mode, str(tmp_path / "saved"))

    def measured() -> bool:
        ranks = read_snapshot(str(run.run_dir)).ranks
        return len(ranks) == 4 and all(rank.work is not None for rank in ranks)

    wait_for(measured, "the work of each rank", timeout=400)
    wait_for(lambda: (read_snapshot(str(run.run_dir)).up or 0.0) > LONG, "a long time", timeout=400)
    assert measured()
    assert run.named("straggler") == []
