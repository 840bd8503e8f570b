"""DistributedDataParallel with one rank, which no variable of the environment tells, and the store in its process."""

import os
import socket

import plan
import torch
import torch.distributed as dist

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
with socket.create_server(("127.0.0.1", 0)) as server:
    where = f"tcp://127.0.0.1:{server.getsockname()[1]}"
dist.init_process_group("gloo", init_method=where, rank=0, world_size=1)
model = torch.nn.Linear(4, 4)
trained = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
begin = 0
if os.path.exists("kept.pt"):
    begin, state = torch.load("kept.pt")
    model.load_state_dict(state)
for step in range(begin, plan.STEPS):
    optimizer.zero_grad()
    trained(torch.ones(4, 4)).pow(2).mean().backward()
    optimizer.step()
    plan.at(step)
    if (step + 1) % plan.EVERY == 0:
        torch.save((step + 1, model.state_dict()), "kept.pt")
        plan.saved(step)
