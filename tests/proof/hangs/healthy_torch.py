"""Healthy programs with PyTorch that stand still for a while."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

from proof.hangs import actors
from proof.hangs.actors import Actor, nobody
from proof.hangs.rows import Row
from support.ports import free_port
from support.runs import FTHANG

TORCH = """
import http.client, os, sys, threading, time
import torch
torch.set_num_threads(1)
port, seconds, folder, moment = int(sys.argv[1]), float(sys.argv[3]), sys.argv[4], sys.argv[5]
first = {'before': 0, 'early': 5, 'learned': 130}[moment]
def ask(path, body=None):
    connection = http.client.HTTPConnection('127.0.0.1', port)
    connection.request('PUT', path, body)
    reply = connection.getresponse()
    reply.read()
    return reply.status
def waits():
    with open(folder + '/waiting', 'w') as file:
        file.write(str(os.getpid()))
    os.rename(folder + '/waiting', folder + '/waits')
def train(model, count, batches=None):
    optimizer = torch.optim.Adam(model.parameters())
    for _, batch in zip(range(count), batches or iter(lambda: torch.ones(8, 4), None)):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(0.01)
"""
# As CleanRL's ppo_continuous_action.py: a burst of quick steps, then a rollout in a remote simulator.
BURSTS = f"""{TORCH}
model = torch.nn.Linear(4, 1)
train(model, first)
for _ in range(2):
    assert ask('/wait/%f' % (seconds / 2)) == 200
    train(model, first)
assert ask('/wait/%f' % seconds) == 200
train(model, 20)
"""
# The batch after the first steps comes from storage that answers late.
LOADER = f"""{TORCH}
class Remote(torch.utils.data.Dataset):
    def __len__(self): return first + 20
    def __getitem__(self, n):
        if n == first:
            HOW
        return torch.ones(8, 4)
if __name__ == '__main__':
    loader = torch.utils.data.DataLoader(Remote(), batch_size=None, num_workers=2, persistent_workers=PERSISTENT)
    train(torch.nn.Linear(4, 1), first + 20, loader)
"""
# The workers wait while the main process, which has their last batch, asks a slow server between two epochs.
EPOCHS = f"""{TORCH}
if __name__ == '__main__':
    batches = [torch.ones(8, 4)] * (first + 20)
    loader = torch.utils.data.DataLoader(batches, batch_size=None, num_workers=2, persistent_workers=True)
    model = torch.nn.Linear(4, 1)
    train(model, first + 20, loader)
    assert ask('/stall/%f' % seconds) == 200
    train(model, first + 20, loader)
"""
# An accelerator that is none, so that DataLoader starts its thread that pins memory.
PINNING = """
from torch import accelerator
accelerator.is_available = lambda: True
accelerator.current_device_index = lambda: 0
accelerator.set_device_index = lambda index: None
torch.Tensor.pin_memory = lambda tensor, *device: tensor
"""
DDP = f"""{TORCH}
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
os.environ['GLOO_SOCKET_IFNAME'] = 'lo'
def main(rank=int(os.environ.get('RANK', 0))):
    dist.init_process_group('gloo', rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    train(model, first)
    if rank == WHO:
        WHAT
    COLLECTIVE
    train(model, 20)
    dist.destroy_process_group()
"""
SPAWN = """
if __name__ == '__main__':
    os.environ |= {'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': FREE_PORT}
    torch.multiprocessing.spawn(main, nprocs=2)
"""
LAUNCHED = "\nmain()\n"
ONE_OF_TWO = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
Words = Callable[[Path, list[str]], list[str]]


def program(text: str) -> Words:
    def words(folder: Path, arguments: list[str]) -> list[str]:
        (folder / "train.py").write_text(text.replace("FREE_PORT", repr(str(free_port()))))
        return [sys.executable, str(folder / "train.py"), *arguments]

    return words


def ddp(what: str, collective: str = "", who: int = 1) -> str:
    return DDP.replace("WHAT", what).replace("COLLECTIVE", collective).replace("WHO", str(who))


def loader(how: str, persistent: bool) -> Words:
    return program(LOADER.replace("HOW", how).replace("PERSISTENT", str(persistent)))


def pinning(how: str) -> Words:
    text = LOADER.replace("HOW", how).replace("PERSISTENT", "True, pin_memory=True")
    return program(text.replace(TORCH, TORCH + PINNING))


def torchrun(text: str) -> Words:
    def words(folder: Path, arguments: list[str]) -> list[str]:
        (folder / "train.py").write_text(text + LAUNCHED)
        return [*TORCHRUN, "--standalone", "--nproc-per-node", "2", str(folder / "train.py"), *arguments]

    return words


def two_nodes(folder: Path, arguments: list[str]) -> list[str]:
    """The second node has the same command; the rendezvous is at the first one."""
    (folder / "train.py").write_text(ddp("pass") + LAUNCHED)
    rendezvous = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "ft"]
    command = [*TORCHRUN, *rendezvous, "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    command += ["--local-addr", "127.0.0.1", str(folder / "train.py"), *arguments]
    (folder / "command").write_text("\n".join(command))
    (folder / "waits").write_text("0")
    return command


def two_hosts(late: str) -> Words:
    """Rank 0 runs under ftrun; rank 1, on another node as it were, comes late to `late`: the start, or a step."""

    def words(folder: Path, arguments: list[str]) -> list[str]:
        (folder / "train.py").write_text(ddp("time.sleep(seconds)" if late == "step" else "pass") + LAUNCHED)
        port = str(free_port())
        variables = [f"{name}={value}" for name, value in (ONE_OF_TWO | {"MASTER_PORT": port}).items()]
        own = [sys.executable, str(folder / "train.py"), *arguments]
        (folder / "command").write_text("\n".join(["env", *variables, "RANK=1", *own]))
        (folder / "waits").write_text("0")
        return ["env", *variables, "RANK=0", *own]

    return words


def fthang(*kind: str) -> Words:
    def words(folder: Path, arguments: list[str]) -> list[str]:
        after = {"before": "0", "early": "5", "learned": "130"}[arguments[4]]
        steps = ["--after", after, "--steps", "150", "--step-time", "10ms", "--checkpoint-dir", str(folder / "kept")]
        return [*FTHANG, kind[0], f"{float(arguments[2]):g}s", *kind[1:], *steps]

    return words


def _torch() -> str:
    return "" if importlib.util.find_spec("torch") else "PyTorch"


TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
SEEN = ("learned", "before", "early")
STALLED = "assert ask('/stall/%f' % seconds) == 200"
COMPUTES = "end = time.monotonic() + seconds\n        while time.monotonic() < end: torch.ones(200, 200).exp().sum()"


def _row(name: str, words: Words, actor: Actor = nobody, cores: float = 0.15, moments: tuple[str, ...] = SEEN) -> Row:
    return Row("PyTorch", name, "", actor, None, cores, words, moments, _torch)


WITH_TORCH = (
    _row("a DataLoader whose worker downloads", loader(STALLED, False)),
    _row("a DataLoader with persistent workers, of which one sleeps", loader("time.sleep(seconds)", True)),
    _row("a DataLoader with persistent workers, which wait between two epochs", program(EPOCHS)),
    _row("a DataLoader with a thread that pins memory, of which one worker downloads", pinning(STALLED)),
    _row(
        "a DataLoader whose worker waits for a lock that a thread of it holds while that downloads",
        loader(
            "lock = threading.Lock(); lock.acquire(); "
            "threading.Thread(target=lambda: (ask('/stall/%f' % seconds), lock.release())).start(); lock.acquire()",
            False,
        ),
    ),
    _row("bursts of steps between rollouts in a remote simulator", program(BURSTS)),
    _row("torchrun: rank 1 downloads, rank 0 waits in the all-reduce of its gradients", torchrun(ddp(STALLED))),
    _row(
        "torchrun: rank 0 uploads its checkpoint, rank 1 waits in a barrier",
        torchrun(ddp("assert ask('/500000', bytes(int(500000 * seconds))) == 200", "dist.barrier()", 0)),
    ),
    _row(
        "torchrun: rank 0 evaluates, rank 1 waits in a barrier", torchrun(ddp(COMPUTES, "dist.barrier()", 0)), cores=1
    ),
    _row("torchrun: rank 1 sleeps, rank 0 waits", torchrun(ddp("time.sleep(seconds)"))),
    _row("torchrun waits for its second node", two_nodes, actors.second_node, moments=("before",)),
    _row(
        "a rank waits at its start for the rank of another node",
        two_hosts("start"),
        actors.second_node,
        moments=("before",),
    ),
    _row("a rank waits in a collective for the rank of another node", two_hosts("step"), actors.second_node_at_once),
    _row("torch.multiprocessing.spawn: one rank of two downloads", program(ddp(STALLED) + SPAWN)),
    _row("`fthang long-compile --torch`", fthang("long-compile", "--torch"), cores=1),
    _row("`fthang long-eval`", fthang("long-eval"), cores=1),
    _row("`fthang long-eval --torch`", fthang("long-eval", "--torch"), cores=1),
    _row("`fthang long-checkpoint --torch`", fthang("long-checkpoint", "--torch")),
    _row("`fthang slow-step`", fthang("slow-step"), cores=0.5),
    _row("`fthang quiet-sleep`", fthang("quiet-sleep")),
    _row("`fthang quiet-sleep --torch`", fthang("quiet-sleep", "--torch")),
    _row("`fthang first-batch`", fthang("first-batch"), cores=0.3),
    _row("`fthang paused-io`", fthang("paused-io"), cores=1),
)
