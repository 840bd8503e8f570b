"""Train on two ranks with DistributedDataParallel, on the CPU; rank 1 stops coming in the first start.

    ftrun --hang-timeout 10s --progress checkpoint.pt torchrun --standalone --nproc-per-node 2 ddp.py --hang-at 30

There is nothing of ftrun in it: the beats are those of the optimizer's steps, the progress is the file.
"""

import argparse
import os
import threading

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group, which it would keep
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    options = parse()
    dist.init_process_group("gloo")
    train(options)
    dist.destroy_process_group()


def train(options: argparse.Namespace) -> None:
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    done = 0
    if os.path.exists("checkpoint.pt"):
        kept = torch.load("checkpoint.pt", weights_only=True)
        model.module.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        done = kept["step"]
    if rank == 0:
        print(f"from step {done}", flush=True)

    first_start = os.environ.get("MA_PROC_START_CNT", "1") == "1"
    for step in range(done + 1, options.steps + 1):
        if rank == 1 and step == options.hang_at and first_start:
            threading.Event().wait()  # the other rank waits for this one in its all_reduce
        inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(1000 * step + rank))
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and rank == 0:
            state = {"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, "checkpoint.tmp")
            os.replace("checkpoint.tmp", "checkpoint.pt")
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--hang-at", type=int, metavar="STEP", help="rank 1 stops before this step, in the first start")
    return parser.parse_args()


if __name__ == "__main__":
    main()
