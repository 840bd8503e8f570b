"""Automatic beats of unmodified programs, with the real torch on a CPU."""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from ftrun.core.rules.crash_causes import first_cause
from ftrun.host import tracebacks
from support.beat_file import HOUSE, BeatDir

# In the gate tests/test_example.py has a program with PyTorch that gives heartbeats without a change.
pytestmark = [pytest.mark.torch, pytest.mark.slow]
AUTO = HOUSE / "hooks" / "ftrun_hooks" / "auto"
# What a program writes, it writes for the test: all that ftrun knows of it is in the beat file.
HEAD = """
import io, json, os, sys, torch
from support import beat_file
from torch import nn
torch.set_num_threads(1)
def report(**what): os.write(1, (json.dumps(what) + '\\n').encode())
def step(): return beat_file.slot()['step'] - 1
def names(rank=0): return [name for name, *_ in beat_file.sections(rank)]
def learn(model, *optimizers, batches=1):
    for optimizer in optimizers:
        optimizer.zero_grad()
        for _ in range(batches): model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
"""


def environment(beats: BeatDir, *path: object, **env: str) -> dict[str, str]:
    return beats.environment(PYTHONPATH=os.pathsep.join(map(str, [*path, HOUSE / "tests"])), OMP_NUM_THREADS="1", **env)


def start(beats: BeatDir, folder: Path, code: str, *words: str, auto: bool = True) -> subprocess.CompletedProcess[str]:
    script = folder / "program.py"
    script.write_text(HEAD + code)
    command = [sys.executable, *words, str(script)]
    path = [AUTO] if auto else []
    return subprocess.run(
        command, env=environment(beats, *path), cwd=folder, capture_output=True, text=True, timeout=600
    )


def reported(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What all processes of the program reported."""
    return {name: value for line in done.stdout.splitlines() for name, value in json.loads(line).items()}


def run(beats: BeatDir, folder: Path, code: str) -> dict[str, Any]:
    """What a program reported that ends well, and writes nothing to stderr but what torch does."""
    done = start(beats, folder, code)
    assert done.returncode == 0, done.stderr
    assert not re.search("ftrun|Traceback|Exception", done.stderr), done.stderr
    return reported(done)


def claimed(beats: BeatDir) -> dict[int, int]:
    """The pid in each slot that has one."""
    return {rank: pid for rank in range(8) if (pid := beats.slot(rank)["pid"])}


STEPS = """
A, S = torch.optim.Adam, torch.optim.SGD
model = nn.Linear(4, 1)
parameters = [*model.parameters()]
resumed = A(parameters)
state = {i: dict(step=torch.tensor(41.0), exp_avg=0 * p, exp_avg_sq=0 * p) for i, p in enumerate(parameters)}
resumed.load_state_dict({**resumed.state_dict(), 'state': state})
def resume(): learn(model, resumed); return step()
report(resumed=[resume(), resume()])
def steps(*optimizers, **how):
    learn(model, *optimizers)  # their first step belongs to the round of the others before them
    begin = step()
    for _ in range(3): learn(model, *optimizers, **how)
    return step() - begin
report(
    accumulation=steps(A(parameters), batches=4),
    gan=steps(A([parameters[0]]), A([parameters[1]])),
    foreach=steps(A(parameters, foreach=True)),
    fused_adam=steps(A(parameters, fused=True)),
    fused_sgd=steps(S(parameters, lr=0.1, momentum=0.9, fused=True)),
    rmsprop=steps(torch.optim.RMSprop(parameters)),
)
lbfgs = torch.optim.LBFGS(parameters)
def closure(): lbfgs.zero_grad(); loss = model(torch.ones(2, 4)).pow(2).sum(); loss.backward(); return loss
lbfgs.step(closure); begin = step(); lbfgs.step(closure)
report(lbfgs=step() - begin)

sgd, scaler = S(parameters, lr=0.1), torch.amp.GradScaler('cpu')
def scaled(factor):
    sgd.zero_grad(); scaler.scale(model(torch.full((2, 4), factor)).sum()).backward()
    scaler.step(sgd); scaler.update(); return step() - begin
begin = 0
scaled(1.0); begin = step(); report(scaler=[scaled(1.0), scaled(float('inf')), scaled(1.0)])
"""
DATASETS = """
from torch.utils.data import DataLoader, Dataset, IterableDataset
class Numbers(Dataset):
    def __len__(self): return 4
    def __getitem__(self, i):
        own_slot = sys.modules['ftrun_hooks._beat'].own_slot
        in_worker = os.environ['MAIN'] != str(os.getpid())
        return i + 100 * in_worker + 1000 * (own_slot.words is None and not own_slot.settled)
class Stream(IterableDataset):
    def __iter__(self): return iter(range(3))
"""
DATA = """
os.environ['MAIN'] = str(os.getpid())
model = nn.Linear(4, 1); one = torch.optim.SGD(model.parameters(), lr=0.1)
def moved(): return beat_file.slot()['moved_at']
def epoch(loader):
    before, got = moved(), []
    for batch in loader:
        got.append((batch.tolist()[0], moved() > before)); before = moved()
    return got
report(no_beats=[epoch(DataLoader([1, 2])), names()])
learn(model, one)
report(here=epoch(DataLoader([1, 2])), after_data=names())
kept = DataLoader(Numbers(), num_workers=2, persistent_workers=True, multiprocessing_context='fork')
report(fork=epoch(kept), again=epoch(kept), after_fork=names()); del kept
report(spawn=epoch(DataLoader(Numbers(), num_workers=1, multiprocessing_context='spawn')))
report(stream=epoch(DataLoader(Stream())), nested=[epoch(DataLoader([i.item()])) for i in DataLoader([5, 6])])
learn(model, one); first = names(); learn(model, one); report(steps=[first, names()])
"""
SAVING = """
import torch.distributed as dist, torch.distributed.checkpoint as dcp
seen = {}
class Looks:
    def __reduce__(self): seen.setdefault('pickled', names()); return (list, ())
    def state_dict(self): seen['saved'] = names(); return {'x': torch.ones(2)}
    def load_state_dict(self, state): seen['loaded'] = names()
dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)
torch.save(Looks(), io.BytesIO()); report(early=seen.pop('pickled'))
model = nn.Linear(4, 1); learn(model, torch.optim.SGD(model.parameters(), lr=0.1))
torch.save(Looks(), io.BytesIO()); torch.save({'model': model.state_dict()}, 'file')
report(same=torch.equal(torch.load('file', weights_only=True)['model']['weight'], model.weight))
one = Looks()
dcp.save({'one': one}, checkpoint_id='here'); report(saved=seen['saved'])
dcp.load({'one': one}, checkpoint_id='here')
dcp.async_save({'one': one}, checkpoint_id='there').result()
report(**{'async' if name == 'saved' else name: what for name, what in seen.items()}, after=names())
dist.destroy_process_group()
report(pid=os.getpid())
"""
PARTS = """
if __name__ == '__main__':
    for part in (steps, data, saving):  # each as if its program had just begun
        if os.fork() == 0:
            part()
            break
        assert os.wait()[1] == 0
"""


def test_a_program_reports_steps_and_batches_and_has_sections_without_a_change(beats: BeatDir, tmp_path: Path) -> None:
    parts = {"steps": STEPS, "data": DATA, "saving": SAVING}
    functions = [f"def {name}():\n{textwrap.indent(code, '    ')}" for name, code in parts.items()]
    found = run(beats, tmp_path, "\n".join([DATASETS, *functions, PARTS]))
    assert claimed(beats) == {0: found.pop("pid")}
    assert (beats.slot()["flags"], beats.slot()["source"]) == (1, 1)
    two = [[1, True], [2, True]]
    workers = [[1100 + i, True] for i in range(4)]
    dcp = "torch.distributed.checkpoint."
    assert found == {
        "resumed": [41, 42],
        **dict.fromkeys(("accumulation", "gan", "foreach", "fused_adam", "fused_sgd", "rmsprop"), 3),
        "lbfgs": 1,
        "scaler": [1, 1, 2],
        "no_beats": [[[1, False], [2, False]], []],
        "here": two,
        "after_data": ["between epochs"],
        "fork": workers,
        "again": workers,
        "after_fork": ["between epochs"],
        "spawn": workers,
        "stream": [[0, True], [1, True], [2, True]],
        "nested": [[[5, True]], [[6, True]]],
        "steps": [["between epochs"], []],
        "early": [],
        "pickled": ["torch.save"],
        "same": True,
        "saved": [dcp + "save"],
        "loaded": [dcp + "load"],
        "async": [dcp + "async_save"],
        "after": [],
    }


COMPILED = """
import torch._dynamo
from torch._dynamo.utils import counters
class Own(torch.optim.Optimizer):
    def __init__(self, parameters): super().__init__(parameters, {})
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for one in group['params']: one.add_(one.grad, alpha=-0.1)
def compiled(make, fullgraph, method=False):
    torch._dynamo.reset(); counters.clear()
    parameters = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = make(parameters)
    if method: run = optimizer.step = torch.compile(optimizer.step, fullgraph=fullgraph, backend='eager')
    else: run = torch.compile(lambda: optimizer.step(), fullgraph=fullgraph, backend='eager')
    seen = []
    for _ in range(4):
        for one in parameters: one.grad = torch.ones(3)
        run(); seen.append(step())
    breaks = list(map(str, counters['graph_break'].items()))
    return [one - seen[0] for one in seen], dict(counters['stats']), breaks, len(counters['recompiles'])
report(
    own=compiled(Own, True), method=compiled(Own, True, True), loose=compiled(Own, False),
    adam=compiled(torch.optim.Adam, False), adam_method=compiled(torch.optim.Adam, False, True),
    sgd=compiled(lambda p: torch.optim.SGD(p, lr=0.1), False, True),
)
torch._dynamo.reset(); counters.clear()
@torch.compile(backend='eager')
def backward(x): (x * x).sum().backward(); return x.sin()
for _ in range(3): backward(torch.ones(3, requires_grad=True))
report(backward=([0, 1, 2, 3], dict(counters['stats']), list(map(str, counters['graph_break'].items()))))
buffer, batches = io.BytesIO(), iter(torch.utils.data.DataLoader([1, 2, 3]))
@torch.compile(backend='eager')
def all_in_one(x):
    y = x.sin()
    torch.save({'y': y}, buffer)
    return y.cos() + next(batches)
all_in_one(torch.ones(3)); all_in_one(torch.ones(3))
"""


def test_compiled_optimizers_have_heartbeats_and_are_compiled_unchanged(beats: BeatDir, tmp_path: Path) -> None:
    done = start(beats, tmp_path, COMPILED)
    assert done.returncode == 0, done.stderr
    shown = reported(done)
    assert [seen for seen, *_ in shown.values()] == [[0, 1, 2, 3]] * 7
    bare = start(beats, tmp_path, COMPILED, auto=False)
    assert [what for _, *what in shown.values()] == [what for _, *what in reported(bare).values()]
    errors, bare_errors = (re.sub(r"\d+", "0", text).splitlines() for text in (done.stderr, bare.stderr))
    assert errors == bare_errors


GROUP = """
import time, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
def work(rank):
    model = DistributedDataParallel(nn.Linear(4, 1)); one = torch.optim.AdamW(model.parameters())
    for _ in range(3): learn(model, one)
    report(**{str(rank): os.getpid()})
    dist.barrier()
    if rank: raise ImportError('no such kernel')
    time.sleep(600)
"""
LAUNCHED = """
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import fully_shard
@record
def main():
    dist.init_process_group('gloo')
    model = fully_shard(nn.Linear(4, 4)); one = torch.optim.Adam(model.parameters())
    for _ in range(4): learn(model, one)
    work(dist.get_rank())  # its first step belongs to the round of the last one
if __name__ == '__main__': main()
"""
SPAWNED = """
def begin(rank):
    dist.init_process_group('gloo', init_method='file://' + os.path.abspath('meet'), rank=rank, world_size=2)
    work(rank)
if __name__ == '__main__':
    torch.save(1, io.BytesIO())
    torch.multiprocessing.spawn(begin, nprocs=2)
"""
FORKED = SPAWNED.replace("spawn(begin, nprocs=2)", "start_processes(begin, nprocs=2, start_method='fork')")


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.parametrize(
    ("code", "words", "step", "error", "rank"),
    [
        pytest.param(FORKED, (), 3, "ProcessRaisedException", "", id="forked"),
        pytest.param(LAUNCHED, TORCHRUN, 6, "ChildFailedError", "rank 1: ", id="launched"),
        pytest.param(SPAWNED, (), 3, "ProcessRaisedException", "", id="spawned"),
    ],
)
def test_each_rank_has_a_slot_and_the_first_failure_is_the_cause(
    beats: BeatDir, tmp_path: Path, code: str, words: tuple[str, ...], step: int, error: str, rank: str
) -> None:
    """The process that starts the ranks has no slot."""
    done = start(beats, tmp_path, GROUP + code, *words)
    workers = reported(done)
    assert done.returncode == 1
    assert claimed(beats) == {int(rank): pid for rank, pid in workers.items()}
    assert [beats.slot(rank)["step"] for rank in (0, 1)] == [step] * 2
    found = tracebacks.read(str(beats.folder), 0.0)
    assert found[-1].thrown.kinds[0].endswith(f".{error}")
    cause = first_cause(found)
    assert cause is not None
    assert re.fullmatch(rank + r"ImportError: no such kernel \(program.py:\d+ in work\)", cause.description)
