"""Lightning with `strategy="ddp"`, which finds its ranks in the environment; a checkpoint after each epoch."""

import os
import sys
from typing import Any

import lightning.pytorch as pl
import torch
from ending import end_group
from strike import strike
from torch.utils.data import DataLoader, TensorDataset


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any, index: int) -> Any:
        strike(self.global_step)
        return (self.linear(batch[0]) - batch[1]).pow(2).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.1)


def train(folder: str) -> None:
    pl.seed_everything(0)
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(16, 4, generator=generator), torch.randn(16, 1, generator=generator))
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=4,
        callbacks=[pl.callbacks.ModelCheckpoint(folder, save_last=True)],
        logger=False,
        enable_model_summary=False,
    )
    last = f"{folder}/last.ckpt"
    trainer.fit(Model(), DataLoader(data, batch_size=4), ckpt_path=last if os.path.exists(last) else None)
    assert trainer.world_size == 2
    if trainer.global_rank == 0:
        torch.save(trainer.lightning_module.state_dict(), f"{folder}/final.pt")


train(sys.argv[1])
end_group()
