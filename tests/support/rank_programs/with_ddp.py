"""DistributedDataParallel as in the tutorials of PyTorch: a checkpoint of rank 0 after every second step."""

import os
import sys

import torch
import torch.distributed as dist
from ending import end_group
from strike import strike
from torch.nn.parallel import DistributedDataParallel


def train(folder: str) -> None:
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    done, path = 0, f"{folder}/checkpoint.pt"
    if os.path.exists(path):
        kept = torch.load(path, weights_only=True)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        done = kept["step"]
    for step in range(done, 8):
        strike(step)
        inputs = torch.randn(4, 4, generator=torch.Generator().manual_seed(100 * step + rank))
        optimizer.zero_grad()
        model(inputs).pow(2).mean().backward()
        optimizer.step()
        if step % 2 == 1 and rank == 0:
            state = {"step": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, f"{path}.new")
            os.replace(f"{path}.new", path)
    if rank == 0:
        torch.save(model.module.state_dict(), f"{folder}/final.pt")


dist.init_process_group("gloo")
train(sys.argv[1])
end_group()
