"""MindSpore: `Model.train` with a checkpoint callback, in the mode that the second argument names; in graph mode also
with the callback of the hooks."""

import glob
import os
import re
import sys

import mindspore as ms
import numpy as np
import plan
from mindspore import nn
from mindspore.train import Callback, CheckpointConfig, Model, ModelCheckpoint

ms.set_context(mode=getattr(ms, f"{sys.argv[2]}_MODE"))


class Data:
    def __getitem__(self, number):
        return np.ones(4, np.float32), np.ones(1, np.float32)

    def __len__(self):
        return plan.EVERY


class Plan(Callback):
    def on_train_step_end(self, run_context):
        plan.at(begin * plan.EVERY + run_context.original_args().cur_step_num - 1)

    def on_train_epoch_end(self, run_context):
        plan.saved(run_context.original_args().cur_epoch_num)


def number(path):
    return int(re.findall(r"\d+", path)[-2])


data = ms.dataset.GeneratorDataset(Data(), ["x", "y"], shuffle=False).batch(1)
net, begin = nn.Dense(4, 1), 0
kept = sorted(glob.glob("kept/*.ckpt"), key=os.path.getmtime)
if kept:
    ms.load_param_into_net(net, ms.load_checkpoint(kept[-1]))
    begin = len(kept)
model = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1))
for epoch in range(begin, plan.STEPS // plan.EVERY):
    config = CheckpointConfig(save_checkpoint_steps=plan.EVERY, keep_checkpoint_max=99)
    saving = ModelCheckpoint(prefix=f"epoch{epoch}", directory="kept", config=config)
    callbacks = [saving, Plan()]
    if sys.argv[2] == "GRAPH":
        from ftrun_hooks.mindspore import FtrunCallback

        callbacks.insert(1, FtrunCallback(first_step=begin * plan.EVERY))
    model.train(1, data, callbacks=callbacks, dataset_sink_mode=False)
    begin += 1
