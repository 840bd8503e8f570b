"""PyTorch: plain loops that use `backward` and change the weights themselves."""

import os

import plan
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model, begin = torch.nn.Linear(4, 1), 0
if os.path.exists("model.pt"):
    kept = torch.load("model.pt")
    model.load_state_dict(kept["model"])
    begin = kept["step"]
for step in range(begin, plan.STEPS):
    model(torch.ones(8, 4)).pow(2).mean().backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight -= 0.1 * weight.grad
            weight.grad = None
    plan.at(step)
    if (step + 1) % plan.EVERY == 0:
        torch.save({"model": model.state_dict(), "step": step + 1}, "model.pt")
        plan.saved(step)
