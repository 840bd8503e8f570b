"""Progress by the files that an unmodified PyTorch program saves and resumes from, with nothing else reported."""

import sys
from pathlib import Path

import pytest

from support.runs import Runs

pytestmark = [pytest.mark.torch, pytest.mark.slow]
PLAIN = """
import torch
torch.set_num_threads(1)
def load(path):
    return torch.load(path, weights_only=True)["epoch"]
def save(path, model, epoch):
    torch.save({"model": model.state_dict(), "epoch": epoch}, path)
"""
# As the DiskSaver of Ignite: into an open file with a name by chance, which is then moved to its own.
MOVED = """
import tempfile, torch
torch.set_num_threads(1)
def load(path):
    return torch.load(path, weights_only=True)["epoch"]
def save(path, model, epoch):
    with tempfile.NamedTemporaryFile(delete=False, dir=os.path.dirname(path)) as file:
        torch.save({"model": model.state_dict(), "epoch": epoch}, file.file)
    os.replace(file.name, path)
"""
SAFETENSORS = """
from safetensors.torch import load_file, save_file
import torch
torch.set_num_threads(1)
def load(path):
    return int(load_file(path)["epoch"])
def save(path, model, epoch):
    save_file({"epoch": torch.tensor(epoch), **model.state_dict()}, path)
"""
DISTRIBUTED = """
import torch, torch.distributed.checkpoint as dcp
torch.set_num_threads(1)
def load(path):
    state = {"epoch": torch.tensor(0)}
    dcp.load(state, checkpoint_id=path)
    return int(state["epoch"])
def save(path, model, epoch):
    dcp.save({"epoch": torch.tensor(epoch), **model.state_dict()}, checkpoint_id=path)
"""
# As in PyTorch's own guide: with a state of the optimizer, which is made by a step before it is loaded.
DISTRIBUTED_STATE = """
import torch, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
torch.set_num_threads(1)
def state(epoch):
    weights, optimized = get_state_dict(model, optimizer)
    return {"epoch": torch.tensor(epoch), "model": weights, "optimizer": optimized}
def load(path):
    found = state(0)
    dcp.load(found, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
    return int(found["epoch"])
def save(path, model, epoch):
    dcp.save(state(epoch), checkpoint_id=path)
"""
FABRIC = """
import torch
from lightning.fabric import Fabric
torch.set_num_threads(1)
def load(path):
    return Fabric(accelerator="cpu").load(path)["epoch"]
def save(path, model, epoch):
    Fabric(accelerator="cpu").save(path, {"model": model.state_dict(), "epoch": epoch})
"""
# The weights alone, which `from_pretrained` reads by `safe_open`.
PRETRAINED = """
import torch
from transformers import PretrainedConfig, PreTrainedModel
torch.set_num_threads(1)
class Own(PreTrainedModel):
    config_class = PretrainedConfig
    def __init__(self, config):
        super().__init__(config)
        self.linear = torch.nn.Linear(2, 1)
        self.post_init()
def load(path):
    Own.from_pretrained(path)
    return int(path.rpartition("_")[2])
def save(path, model, epoch):
    Own(PretrainedConfig()).save_pretrained(path)
"""
# Plain SGD, whose step count begins anew with each start.  `END`: how an attempt ends after two epochs.
OTHER = """
import os, sys, threading
def die():
    os._exit(5)
def hang():
    lock = threading.Lock()
    with lock, lock: pass
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
folder, begin = sys.argv[1], 0
for epoch in reversed(range(100)):
    path = f"{folder}/epoch_{epoch}"
    if os.path.exists(path):
        begin = load(path) + 1
        break
for epoch in range(begin, 6):
    for batch in torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=2):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    save(f"{folder}/epoch_{epoch}", model, epoch)
    if epoch % 2 and epoch < 5:
        END()
"""
# multigpu_torchrun.py of PyTorch's ddp-tutorial-series: rank 0 saves, all load, all gradients are averaged.
TORCHRUN = """
import os, sys, torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group, which it would keep: rank_programs/ending.py
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo")
path, begin = sys.argv[1] + "/snapshot.pt", 0
model = torch.nn.Linear(2, 1)
if os.path.exists(path):
    snapshot = torch.load(path, weights_only=True)
    model.load_state_dict(snapshot["model"])
    begin = snapshot["epoch"] + 1
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(begin, 6):
    for batch in torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=2):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save({"model": model.module.state_dict(), "epoch": epoch}, path)
    dist.barrier()
    if epoch % 2 and epoch < 5 and dist.get_rank() == 1:
        os._exit(5)
del model, optimizer
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("torch", PLAIN),
        ("torch", MOVED),
        ("safetensors.torch", SAFETENSORS),
        ("torch.distributed", DISTRIBUTED),
        ("torch.distributed", DISTRIBUTED_STATE),
        ("lightning.fabric", FABRIC),
        ("transformers", PRETRAINED),
    ],
    ids=[
        "torch.save",
        "moved",
        "safetensors",
        "distributed",
        "distributed with an optimizer",
        "fabric",
        "from_pretrained",
    ],
)
@pytest.mark.parametrize("end", ["die", "hang"])
def test_resumed_program_that_saves_newer_state_makes_progress(
    runs: Runs, tmp_path: Path, name: str, form: str, end: str
) -> None:
    pytest.importorskip(name)
    words = [sys.executable, "-c", form + OTHER.replace("END", end), str(tmp_path)]
    options = ["--restart-on", "hang,failure", "--max-restarts", "1", "--backoff", "off", "--grace", "1s"]
    run = runs.start(*options, *(["--hang-timeout", "15s"] if end == "hang" else []), *words)
    assert run.wait(280) == 0, run.log()
    reason = "hang" if end == "hang" else "failure"
    assert [(record["reason"], record["consecutive"]) for record in run.named("restart")] == [(reason, 1)] * 2
    assert [record["by"] for record in run.named("progress")] == ["step", "save", "save"]


def test_resumed_program_under_torchrun_makes_progress(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TORCHRUN)
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    options = ["--restart-on", "failure", "--max-restarts", "1", "--backoff", "off"]
    run = runs.start(*options, sys.executable, *torchrun, str(tmp_path / "train.py"), str(tmp_path))
    assert run.wait(240) == 0, run.log()
    assert [record["consecutive"] for record in run.named("restart")] == [1, 1]
    assert [record["by"] for record in run.named("progress")] == ["step", "save", "save"]
