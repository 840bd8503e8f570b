"""Automatic beats of unmodified programs, with the real torch on a CPU."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.beat_file import HOUSE, BeatDir

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="PyTorch is not installed: pip install 'ftrun[torch]'"
    ),
]
AUTO = HOUSE / "hooks" / "ftrun_hooks" / "auto"
# What a program writes, it writes for the test: all that ftrun knows of it is in the beat file.
HEAD = """
import io, json, os, sys, torch
from support import beat_file
from torch import nn
torch.set_num_threads(1)
def told(**what): os.write(1, (json.dumps(what) + '\\n').encode())
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
        command, env=environment(beats, *path), cwd=folder, capture_output=True, text=True, timeout=180
    )


def said(beats: BeatDir, folder: Path, code: str, *words: str) -> dict[str, Any]:
    """What all processes of the program told, and nothing on stderr that is not torch's own."""
    done = start(beats, folder, code, *words)
    assert done.returncode == 0, done.stderr
    assert not re.search("ftrun|Traceback|Exception", done.stderr), done.stderr
    return {name: what for line in done.stdout.splitlines() for name, what in json.loads(line).items()}


def claimed(beats: BeatDir) -> dict[int, int]:
    """The pid in each slot that has one."""
    return {rank: pid for rank in range(8) if (pid := beats.slot(rank)["pid"])}


def test_each_way_to_step_an_optimizer(beats: BeatDir, tmp_path: Path) -> None:
    code = """
A, S = torch.optim.Adam, torch.optim.SGD
model = nn.Linear(4, 1)
parameters = [*model.parameters()]
resumed = A(parameters)
state = {i: dict(step=torch.tensor(41.0), exp_avg=0 * p, exp_avg_sq=0 * p) for i, p in enumerate(parameters)}
resumed.load_state_dict({**resumed.state_dict(), 'state': state})
def resume(): learn(model, resumed); return step()
told(resumed=[resume(), resume()])
def steps(*optimizers, **how):
    learn(model, *optimizers)  # their first step belongs to the round of the others before them
    begin = step()
    for _ in range(3): learn(model, *optimizers, **how)
    return step() - begin
told(
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
told(lbfgs=step() - begin)

sgd, scaler = S(parameters, lr=0.1), torch.amp.GradScaler('cpu')
def scaled(factor):
    sgd.zero_grad(); scaler.scale(model(torch.full((2, 4), factor)).sum()).backward()
    scaler.step(sgd); scaler.update(); return step() - begin
begin = 0
scaled(1.0); begin = step(); told(scaler=[scaled(1.0), scaled(float('inf')), scaled(1.0)])
told(pid=os.getpid())
"""
    what = said(beats, tmp_path, code)
    assert what.pop("pid") == beats.slot()["pid"]
    assert claimed(beats).keys() == {0}
    each = ("accumulation", "gan", "foreach", "fused_adam", "fused_sgd", "rmsprop")
    assert what == {"resumed": [41, 42], **dict.fromkeys(each, 3), "lbfgs": 1, "scaler": [1, 1, 2]}
    assert beats.slot()["flags"] == 1


COMPILED = """
import torch._dynamo
from torch._dynamo.utils import counters
class Own(torch.optim.Optimizer):
    def __init__(self, parameters): super().__init__(parameters, {})
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for one in group['params']: one.add_(one.grad, alpha=-0.1)
def compiled(make, whole, method=False):
    torch._dynamo.reset(); counters.clear()
    parameters = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = make(parameters)
    if method: run = optimizer.step = torch.compile(optimizer.step, fullgraph=whole, backend='eager')
    else: run = torch.compile(lambda: optimizer.step(), fullgraph=whole, backend='eager')
    seen = []
    for _ in range(4):
        for one in parameters: one.grad = torch.ones(3)
        run(); seen.append(step())
    breaks = list(map(str, counters['graph_break'].items()))
    return [one - seen[0] for one in seen], dict(counters['stats']), breaks, len(counters['recompiles'])
told(
    own=compiled(Own, True), method=compiled(Own, True, True), loose=compiled(Own, False),
    adam=compiled(torch.optim.Adam, False), adam_method=compiled(torch.optim.Adam, False, True),
    sgd=compiled(lambda p: torch.optim.SGD(p, lr=0.1), False, True),
)
buffer, batches = io.BytesIO(), iter(torch.utils.data.DataLoader([1, 2, 3]))
@torch.compile(backend='eager')
def all_in_one(x):
    y = x.sin()
    torch.save({'y': y}, buffer)
    return y.cos() + next(batches)
all_in_one(torch.ones(3)); all_in_one(torch.ones(3))
"""


@pytest.mark.slow
def test_compiled_optimizers_beat_and_are_compiled_as_ever(beats: BeatDir, tmp_path: Path) -> None:
    done = start(beats, tmp_path, COMPILED)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert [seen for seen, *_ in shown.values()] == [[0, 1, 2, 3]] * 6
    bare = start(beats, tmp_path, COMPILED, auto=False)
    assert [what for _, *what in shown.values()] == [what for _, *what in json.loads(bare.stdout).values()]
    told, bare_told = (re.sub(r"\d+", "0", text).splitlines() for text in (done.stderr, bare.stderr))
    assert told == bare_told


DATA = """
from torch.utils.data import DataLoader, Dataset, IterableDataset
class Numbers(Dataset):
    def __len__(self): return 4
    def __getitem__(self, i):
        own_slot = sys.modules['ftrun_hooks._slot'].own_slot
        return i + 100 * (os.getpid() != MAIN) + 1000 * (own_slot.words is None and not own_slot.settled)
class Stream(IterableDataset):
    def __iter__(self): return iter(range(3))
MAIN = int(os.environ.setdefault('MAIN', str(os.getpid())))
if __name__ == '__main__':
    model = nn.Linear(4, 1); one = torch.optim.SGD(model.parameters(), lr=0.1)
    def moved(): return beat_file.slot()['moved_at']
    def epoch(loader):
        before, got = moved(), []
        for batch in loader:
            got.append((batch.tolist()[0], moved() > before)); before = moved()
        return got
    told(early=[epoch(DataLoader([1, 2])), names()])
    learn(model, one)
    told(here=epoch(DataLoader([1, 2])), after=names())
    kept = DataLoader(Numbers(), num_workers=2, persistent_workers=True, multiprocessing_context='fork')
    told(fork=epoch(kept), again=epoch(kept), after_fork=names()); del kept
    told(spawn=epoch(DataLoader(Numbers(), num_workers=1, multiprocessing_context='spawn')))
    told(stream=epoch(DataLoader(Stream())), nested=[epoch(DataLoader([i.item()])) for i in DataLoader([5, 6])])
    learn(model, one); first = names(); learn(model, one); told(steps=[first, names()], pid=os.getpid())
"""


def test_batches_and_the_end_of_the_data(beats: BeatDir, tmp_path: Path) -> None:
    what = said(beats, tmp_path, DATA)
    assert claimed(beats) == {0: what.pop("pid")}
    two = [[1, True], [2, True]]
    workers = [[1100 + i, True] for i in range(4)]
    assert what == {
        "early": [[[1, False], [2, False]], []],
        "here": two,
        "after": ["between epochs"],
        "fork": workers,
        "again": workers,
        "after_fork": ["between epochs"],
        "spawn": workers,
        "stream": [[0, True], [1, True], [2, True]],
        "nested": [[[5, True]], [[6, True]]],
        "steps": [["between epochs"], []],
    }


def test_saving_and_loading_are_sections(beats: BeatDir, tmp_path: Path) -> None:
    code = """
import torch.distributed as dist, torch.distributed.checkpoint as dcp
seen = {}
class Looks:
    def __reduce__(self): seen.setdefault('pickled', names()); return (list, ())
    def state_dict(self): seen['saved'] = names(); return {'x': torch.ones(2)}
    def load_state_dict(self, state): seen['loaded'] = names()
dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)
torch.save(Looks(), io.BytesIO()); told(early=seen.pop('pickled'))
model = nn.Linear(4, 1); learn(model, torch.optim.SGD(model.parameters(), lr=0.1))
torch.save(Looks(), io.BytesIO()); torch.save({'model': model.state_dict()}, 'file')
told(same=torch.equal(torch.load('file', weights_only=True)['model']['weight'], model.weight))
one = Looks()
dcp.save({'one': one}, checkpoint_id='here'); told(saved=seen['saved'])
dcp.load({'one': one}, checkpoint_id='here')
dcp.async_save({'one': one}, checkpoint_id='there').result()
told(**{'async' if name == 'saved' else name: what for name, what in seen.items()}, after=names())
dist.destroy_process_group()
"""
    dcp = "torch.distributed.checkpoint."
    assert said(beats, tmp_path, code) == {
        "early": [],
        "pickled": ["torch.save"],
        "same": True,
        "saved": [dcp + "save"],
        "loaded": [dcp + "load"],
        "async": [dcp + "async_save"],
        "after": [],
    }


GROUP = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.distributed.fsdp import fully_shard
def work(rank):
    model = DistributedDataParallel(nn.Linear(4, 1)); one = torch.optim.AdamW(model.parameters())
    for _ in range(3): learn(model, one)
    model = fully_shard(nn.Linear(4, 4)); one = torch.optim.Adam(model.parameters())
    for _ in range(4): learn(model, one)  # the first of them belongs to the round of the one before
    told(**{str(rank): os.getpid()})
    dist.destroy_process_group()
"""
LAUNCHED = """
if __name__ == '__main__':
    dist.init_process_group('gloo'); work(dist.get_rank())
"""
SPAWNED = """
def begin(rank):
    dist.init_process_group('gloo', init_method='file://' + os.path.abspath('meet'), rank=rank, world_size=2)
    work(rank)
if __name__ == '__main__':
    torch.save(1, io.BytesIO())
    torch.multiprocessing.spawn(begin, nprocs=2)
"""


@pytest.mark.parametrize(
    ("code", "words"),
    [(LAUNCHED, ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")), (SPAWNED, ())],
    ids=["launched", "spawned"],
)
def test_each_rank_beats_in_its_own_slot_and_what_starts_them_in_none(
    beats: BeatDir, tmp_path: Path, code: str, words: tuple[str, ...]
) -> None:
    workers = said(beats, tmp_path, GROUP + code, *words)
    assert claimed(beats) == {int(rank): pid for rank, pid in workers.items()}
    assert [(beats.slot(rank)["step"], beats.slot(rank)["flags"]) for rank in (0, 1)] == [(6, 1)] * 2
