"""Accelerate, which finds its ranks in the environment."""

import os
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from ending import end_group
from strike import strike
from torch.utils.data import DataLoader, TensorDataset


def train(folder: str) -> None:
    set_seed(0)
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 2
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(64, 4, generator=generator), torch.randn(64, 1, generator=generator))
    linear = torch.nn.Linear(4, 1)
    model, optimizer, batches = accelerator.prepare(
        linear, torch.optim.Adam(linear.parameters(), lr=0.1), DataLoader(data, batch_size=4)
    )
    done, marker = 0, f"{folder}/done"
    if os.path.exists(marker):
        with open(marker) as stream:
            done = int(stream.read())
        accelerator.load_state(f"{folder}/state-{done}")
    for step, (inputs, targets) in enumerate(batches):
        if step < done:
            continue
        strike(step)
        optimizer.zero_grad()
        accelerator.backward((model(inputs) - targets).pow(2).mean())
        optimizer.step()
        if step % 2 == 1:
            accelerator.save_state(f"{folder}/state-{step + 1}")
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                with open(f"{marker}.new", "w") as stream:
                    stream.write(str(step + 1))
                os.replace(f"{marker}.new", marker)
    if accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(model).state_dict(), f"{folder}/final.pt")


train(sys.argv[1])
end_group()
