"""A rank begins with the snapshot of another one of its shard, which meanwhile goes on and keeps newer ones.

No collective holds the two ranks together.  Rank 1 has kept one step when it dies.  Its new process loads the snapshot
of rank 0 slowly: it does not read on before rank 0 has kept ten more, each in one of its two files."""

import sys
from pathlib import Path

from support.containers import Starter
from support.runs import HOUSE

PROGRAM = """
import os, sys, time
import ftrun_hooks as ft
from ftrun_hooks import _snapshot

FOLDER, MORE = sys.argv[1], 10

def at(name, value=None):
    path = f"{FOLDER}/{name}"
    if value is not None:
        with open(path + ".new", "w") as file:
            file.write(str(value))
        os.rename(path + ".new", path)
    return int(open(path).read()) if os.path.exists(path) else -1

def until(condition):
    while not condition():
        time.sleep(0.002)

@ft.recoverable
def train(run):
    if run.rank == 1 and run.round == 2:
        value = _snapshot._value
        def slowly(described, memory):
            until(lambda: 0 <= at("begun") <= at("kept") - MORE)
            return value(described, memory)
        _snapshot._value = slowly
    step = run.restore(a=bytearray(1000), b=bytearray(1000))
    at(f"step-{run.rank}-{run.round}", step)
    while run.round == 1 or run.rank == 0:
        if run.rank == 1 and step == 1:
            until(lambda: at("kept") >= 5)
            os.kill(os.getpid(), 9)
        step += 1
        if run.rank == 0 and run.round == 2 and at("begun") < 0:
            at("begun", step)
        run.keep(step, shard="all", a=bytes([step % 251]) * 1000, b=bytes([step % 251]) * 1000)
        ft.beat(step)
        if run.rank == 0:
            at("kept", step)
            steps = [kept for kept, _ in run._snapshots.held()]
            if at("step-1-2") >= 0 and steps == [step - 1, step]:
                return at("newest-two", steps[0])
    until(lambda: at("newest-two") >= 0)  # its end would say as well that it needs the snapshot no more
    ft.beat(step + 1)

train()
"""


def test_a_snapshot_that_another_rank_loads_stays_as_it_is(start: Starter, tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(HOUSE / "hooks")}
    options = ["--nproc-per-node", "2", "--grace", "1s"]
    run = start(sys.executable, "-c", PROGRAM, str(tmp_path), mode="subreaper", options=options, env=environment)
    code, _, err = run.finish()
    assert code == 0, err
    (recovering,), (recovered,) = run.named("recovering"), run.named("recovered")
    assert (recovering["rung"], recovering["ranks"]) == ("rank", [1])
    steps = {rank: int((tmp_path / f"step-{rank}-2").read_text()) for rank in range(2)}
    assert steps[0] == steps[1] == recovered["step"] >= 5
    assert (tmp_path / "newest-two").exists(), "its newest two, after the release"
