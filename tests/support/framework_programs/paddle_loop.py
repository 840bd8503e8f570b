"""PaddlePaddle: a plain loop; `paddle.Model.fit` where the second argument is `HAPI`, in static mode for `STATIC`."""

import os
import sys

import numpy as np
import paddle
import plan

if sys.argv[2] == "STATIC":
    paddle.enable_static()


class Data(paddle.io.Dataset):
    def __len__(self):
        return plan.EVERY

    def __getitem__(self, number):
        return np.ones(4, np.float32), np.ones(1, np.float32)


class Plan(paddle.callbacks.Callback):
    def on_train_batch_end(self, step, logs=None):
        plan.at(begin * plan.EVERY + step)


shapes = [paddle.static.InputSpec([None, size], "float32", name) for name, size in (("x", 4), ("y", 1))]
net, begin = paddle.nn.Linear(4, 1), 0
if os.path.exists("epoch"):
    with open("epoch") as file:
        begin = int(file.read())
if sys.argv[2]:
    model = paddle.Model(net, shapes[:1], shapes[1:])
    model.prepare(paddle.optimizer.Adam(0.1, parameters=net.parameters()), paddle.nn.MSELoss())
    if begin:
        model.load("kept")
else:
    optimizer = paddle.optimizer.AdamW(0.1, parameters=net.parameters())
    if begin:
        net.set_state_dict(paddle.load("kept.pdparams"))
        optimizer.set_state_dict(paddle.load("kept.pdopt"))
while begin < plan.STEPS // plan.EVERY:
    if sys.argv[2]:
        model.fit(Data(), batch_size=1, epochs=1, verbose=0, shuffle=False, callbacks=[Plan()])
        model.save("kept")
    else:
        for number, (x, y) in enumerate(paddle.io.DataLoader(Data(), batch_size=1)):
            paddle.nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
            optimizer.clear_grad()
            plan.at(begin * plan.EVERY + number)
        paddle.save(net.state_dict(), "kept.pdparams")
        paddle.save(optimizer.state_dict(), "kept.pdopt")
    begin += 1
    with open("epoch", "w") as file:
        file.write(str(begin))
    plan.saved(begin)
