"""Four ranks that survive the death of one: `ftrun --nproc-per-node 4 python recover.py`.

`STEPS` steps; `OUT`, if set, is a folder for the losses and the final weights.  `FAULT=RANK:STEP:KIND` injects a fault
in the first process of that rank: `kill`, `exit`, `raise`, `retry`, or `hang`.
"""

import os
import signal
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ftrun_hooks as ft

STEPS = int(os.environ.get("STEPS", "100"))
OUT = os.environ.get("OUT")
FAULT = os.environ.get("FAULT", "-1:0:").split(":")


@ft.recoverable
def train(run):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    step = run.restore(model=model, optimizer=optimizer)
    if run.rank == 0:
        print(f"round {run.round} ({run.reason}): from step {step}", flush=True)
    while step < STEPS:
        loss = parallel(batch(step, run.rank)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        fault(run, step)
        optimizer.step()
        step += 1
        run.keep(step, model=model, optimizer=optimizer)
        ft.beat(step)
        log(run, step, loss.item())
    if OUT and run.rank == 0:
        torch.save(model.state_dict(), f"{OUT}/weights.new")
        os.replace(f"{OUT}/weights.new", f"{OUT}/weights.pt")  # whoever sees weights.pt sees all of it
    parallel = loss = None  # as the last owner of the process group, DDP would end gloo's threads with the GIL held
    dist.destroy_process_group()


def batch(step, rank):
    return torch.rand(16, 32, generator=torch.Generator().manual_seed(1000 * step + rank))


def log(run, step, loss):
    if OUT:
        with open(f"{OUT}/rank-{run.rank}.log", "a") as file:
            print(run.round, step, os.getpid(), loss.hex(), file=file)


def fault(run, step):
    rank, at, kind = FAULT
    if run.round > 1 or (run.rank, step) != (int(rank), int(at)):
        return
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "exit":
        os._exit(3)
    elif kind == "raise":
        raise ValueError("an injected fault")
    elif kind == "retry":
        raise ft.Retry("an injected fault")
    elif kind == "hang":
        time.sleep(3600)  # longer than any timeout: ftrun has to find it


train()
