"""A rank of a training over gloo that stops in one of several ways at step `STOP_AT`, once:
`python group_gloo.py FOLDER KIND`.  Where it stops is noted in FOLDER, so that the next start trains on to its end.
Environment: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, MA_PROC_START_CNT; STEPS, STOP_AT, SECONDS; CULPRIT: the rank
that stops, else the last one.
"""

import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group, which it would keep: rank_programs/ending.py

folder, kind = Path(sys.argv[1]), sys.argv[2]
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
steps, stop_at = int(os.environ.get("STEPS", "8")), int(os.environ.get("STOP_AT", "5"))
culprit = int(os.environ.get("CULPRIT", size - 1))
first = os.environ["MA_PROC_START_CNT"] == "1"


def lock() -> None:
    if rank == culprit:
        held = threading.Lock()
        held.acquire()
        held.acquire()


def mismatch() -> None:
    if rank == culprit:
        dist.barrier()


def receive() -> None:
    dist.recv(torch.zeros(1), src=(rank + 1) % size)


def validate() -> None:
    """Rank 0 computes for SECONDS, while the others wait in the next collective."""
    until = time.monotonic() + float(os.environ["SECONDS"])
    numbers = torch.ones(64)
    while rank == 0 and time.monotonic() < until:
        for _ in range(1000):
            numbers = numbers * 1.0001
        time.sleep(0.005)


def nothing() -> None:
    pass


STOPS = {
    "lock": lock,
    "backward": lock,
    "mismatch": mismatch,
    "receive": receive,
    "validate": validate,
    "none": nothing,
}

dist.init_process_group("gloo", timeout=timedelta(hours=1))
model: torch.nn.Module = torch.nn.Linear(4, 1)
averages = kind == "backward"  # its backward pass averages the gradients
if averages:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(steps):
    if first and step == stop_at:
        (folder / f"stopped-{rank}").write_text(str(os.getpid()))
        STOPS[kind]()
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    for parameter in () if averages else model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
(folder / f"ended-{rank}").write_text(os.environ["MA_PROC_START_CNT"])
dist.barrier()
dist.destroy_process_group()
