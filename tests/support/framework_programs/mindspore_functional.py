"""MindSpore: a loop with `value_and_grad`.  The second argument: `PYNATIVE`, `GRAPH`, or `JIT`, where a whole step is
one compiled function."""

import os
import sys

import mindspore as ms
import plan
from mindspore import nn, ops

ms.set_context(mode=ms.GRAPH_MODE if sys.argv[2] == "GRAPH" else ms.PYNATIVE_MODE)
net, loss = nn.Dense(4, 1), nn.MSELoss()
optimizer = nn.Momentum(net.trainable_params(), 0.01, 0.9)
begin = 0
if os.path.exists("model.ckpt"):
    kept = ms.load_checkpoint("model.ckpt")
    begin = int(kept.pop("step").asnumpy())
    ms.load_param_into_net(net, kept)


def forward(x, y):
    return loss(net(x), y)


compute = ms.value_and_grad(forward, None, optimizer.parameters)


def step_of(x, y):
    value, gradients = compute(x, y)
    optimizer(gradients)
    return value


if sys.argv[2] == "JIT":
    step_of = ms.jit(step_of)
x, y = ops.ones((8, 4)), ops.ones((8, 1))
for step in range(begin, plan.STEPS):
    step_of(x, y).asnumpy()
    plan.at(step)
    if (step + 1) % plan.EVERY == 0:
        ms.save_checkpoint(net, "model.ckpt", append_dict={"step": step + 1})
        plan.saved(step)
