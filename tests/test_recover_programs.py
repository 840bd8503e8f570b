"""Programs with gloo that make a recovery difficult: each recovers on the finest rung, with the right weights.

All train the same model on the same data, so that the weights are those of the plain program without a fault.
"""

import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.runs import Run, Runs
from support.runs import runs as runs

pytestmark = pytest.mark.torch

PROGRAM = """
import hashlib, os, sys, threading, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import ftrun_hooks as ft

WAY, FAULT, STEPS, SIZE = sys.argv[1], sys.argv[2], 10, 1 << 19 if "full" in sys.argv[1] else 64
torch.set_num_threads(1)

def batch(step, rank):
    return torch.rand(8, 16, generator=torch.Generator().manual_seed(100 * step + rank))

class Batches(torch.utils.data.Dataset):
    def __init__(self, rank, begin):
        self.rank, self.begin = rank, begin
    def __len__(self):
        return STEPS - self.begin
    def __getitem__(self, index):
        return batch(self.begin + index, self.rank)

def wait_in_a_collective(group, rank):
    "A side thread: the other rank comes at the end of the training only."
    try:
        if WAY.endswith(str(rank)):
            dist.barrier(group=group)
    except RuntimeError:
        pass

@ft.recoverable
def train(run):
    dist.init_process_group("gloo")
    if WAY.startswith("side thread"):
        side = dist.new_group()
        waits = threading.Thread(target=wait_in_a_collective, args=(side, run.rank), daemon=True)
        waits.start()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    parallel, optimizer = DistributedDataParallel(model), torch.optim.AdamW(model.parameters())

    def checkpoint():
        if not os.path.exists("checkpoint"):
            return 0
        found = torch.load("checkpoint")
        model.load_state_dict(found["model"]); optimizer.load_state_dict(found["optimizer"])
        return found["step"]

    step = run.restore(checkpoint, model=model, optimizer=optimizer)
    print(f"rank {run.rank}, pid {os.getpid()}: round {run.round} ({run.reason}) from step {step}", flush=True)
    batches = None
    if WAY == "workers":
        loader = torch.utils.data.DataLoader(Batches(run.rank, step), batch_size=None, num_workers=2)
        batches = iter(loader)
    while step < STEPS:
        try:
            data = batch(step, run.rank) if batches is None else next(batches)
            loss = parallel(data).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
        except Exception:
            if WAY != "swallows":
                raise
            time.sleep(0.01)
            continue
        if (run.round, run.rank, step) == (1, 1, 5) and FAULT != "none":
            if FAULT == "kill":
                os.kill(os.getpid(), 9)
            raise ft.Retry("a passing fault")
        optimizer.step()
        step += 1
        run.keep(step, model=model, optimizer=optimizer, ballast=torch.zeros(SIZE))
        if WAY == "full" and run.rank == 0:
            torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, "new")
            os.rename("new", "checkpoint")
        ft.beat(step)
    dist.barrier()
    if WAY.startswith("side thread"):  # one that came back while Python ends would abort the process
        if not WAY.endswith(str(run.rank)):
            dist.barrier(group=side)
        waits.join()
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    print(f"rank {run.rank}: weights {digest}", flush=True)
    dist.destroy_process_group()

train()
"""
BEGUN = re.compile(r"rank (\d+), pid (\d+): round (\d+) \((\w+)\) from step (\d+)")
WEIGHTS = re.compile(r"rank \d+: weights ([0-9a-f]{64})")  # two ranks may share a line
SMALL = 'mount -t tmpfs -o size="${SHM:-64m}" shm /dev/shm'


def play(runs: Runs, way: str, fault: str, size: str = "64m") -> Run:
    (runs.folder / "train.py").write_text(PROGRAM)
    options = ("--nproc-per-node", "2", "--grace", "1s", "--probe", "off", "--restart-on", "hang,failure")
    command = (*options, sys.executable, str(runs.folder / "train.py"), way, fault)
    run = runs.start(*command, prefix=runs.mounted(SMALL), SHM=size)
    assert run.wait(280) == 0, run.log()
    return run


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    runs = Runs(Path(tmp_path_factory.mktemp("uninterrupted")))
    run = play(runs, "plain", "none")
    (weights,) = set(WEIGHTS.findall(run.stdout))
    assert not run.named("recovering")
    assert len(weights) == len(hashlib.sha256().hexdigest())
    yield weights
    runs.end()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("way", "fault"),
    [
        *(("workers", "kill"), ("workers", "retry"), ("swallows", "kill"), ("swallows", "retry")),
        *(("side thread 0", "kill"), ("side thread 0", "retry"), ("side thread 1", "retry")),
        *(("full", "kill"), ("full", "retry")),
    ],
)
def test_a_difficult_program_recovers_with_the_same_weights(way: str, fault: str, runs: Runs, expected: str) -> None:
    """DataLoader with workers; `except Exception` around the step; a side thread that waits in a collective, of
    the rank that goes on or of the one that asks for the retry; a `/dev/shm` that is too small for snapshots."""
    run = play(runs, way, fault, "3m" if way == "full" else "64m")
    assert set(WEIGHTS.findall(run.stdout)) == {expected}
    (recovered,) = run.named("recovered")
    assert (recovered["rung"], recovered["ranks"]) == (("rank", [1]) if fault == "kill" else ("retry", []))
    assert not run.named("restart"), run.log()
    begun = {(int(number), int(rank)): (pid, int(step)) for rank, pid, number, _, step in BEGUN.findall(run.stdout)}
    (step,) = {step for (number, _), (_, step) in begun.items() if number == 2}
    assert step in ((5, 6) if way == "full" else (5,)), "rank 0 may have saved the step of the fault"
    assert begun[1, 0][0] == begun[2, 0][0], "rank 0 keeps its process"
    assert (begun[1, 1][0] == begun[2, 1][0]) == (fault == "retry")
    assert ("keeps no snapshots from now on" in run.stderr) == (way == "full")
