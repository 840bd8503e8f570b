"""DeepSpeed on the processor: its engine with AdamW of PyTorch; the second argument is the stage of ZeRO."""

import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"  # read while it is imported

import deepspeed
import plan
import torch

stage = int(sys.argv[2])
if "RANK" not in os.environ:  # set like this by deepspeed.initialize, which asks mpi4py
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
model = torch.nn.Linear(4, 4)
settings = {
    "train_batch_size": 4,
    "zero_optimization": {"stage": stage},
    "bf16": {"enabled": stage > 0},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters()), config=settings)
begin = 0
if os.path.exists("kept/latest"):
    begin = engine.load_checkpoint("kept")[1]["step"]
for step in range(begin, plan.STEPS):
    engine.backward(engine(torch.ones(4, 4).to(engine.get_data_types()[0])).float().pow(2).mean())
    engine.step()
    plan.at(step)
    if (step + 1) % plan.EVERY == 0:
        engine.save_checkpoint("kept", client_state={"step": step + 1})
        plan.saved(step)
