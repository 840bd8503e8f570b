"""The `Trainer` of transformers, which finds its ranks in the environment."""

import os
import sys
from typing import Any

import torch
from ending import end_group
from strike import strike
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x: Any = None, labels: Any = None) -> dict[str, Any]:
        found = self.linear(x).squeeze(-1)
        return {"loss": (found - labels).pow(2).mean(), "logits": found}


class Strike(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        strike(state.global_step)


def train(folder: str) -> None:
    set_seed(0)
    generator = torch.Generator().manual_seed(1)
    data = [{"x": torch.randn(4, generator=generator), "labels": torch.tensor(float(i % 3))} for i in range(64)]
    arguments = TrainingArguments(
        f"{folder}/checkpoints",
        max_steps=8,
        save_steps=2,
        use_cpu=True,
        ddp_backend="gloo",
        per_device_train_batch_size=4,
        report_to=[],
        disable_tqdm=True,
    )
    assert arguments.world_size == 2
    trainer = Trainer(Net(), arguments, train_dataset=data, callbacks=[Strike()])
    last = get_last_checkpoint(arguments.output_dir) if os.path.isdir(arguments.output_dir) else None
    trainer.train(resume_from_checkpoint=last)
    if arguments.process_index == 0:
        torch.save(trainer.model.state_dict(), f"{folder}/final.pt")


train(sys.argv[1])
end_group()
