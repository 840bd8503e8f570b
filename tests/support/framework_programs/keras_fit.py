"""Keras 3 on the backend that the second argument names: `fit` with callbacks."""

import os
import sys

os.environ["KERAS_BACKEND"] = sys.argv[2].lower()

import keras
import numpy as np
import plan


class Plan(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        plan.at(begin * plan.EVERY + batch)

    def on_epoch_end(self, epoch, logs=None):
        self.model.save("model.keras")
        with open("epoch", "w") as file:
            file.write(str(epoch + 1))
        plan.saved(epoch)


begin = 0
if os.path.exists("epoch"):
    with open("epoch") as file:
        begin = int(file.read())
    model = keras.saving.load_model("model.keras")
else:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
x, y = np.ones((plan.EVERY, 4), np.float32), np.ones((plan.EVERY, 1), np.float32)
while begin < plan.STEPS // plan.EVERY:
    model.fit(x, y, batch_size=1, epochs=begin + 1, initial_epoch=begin, callbacks=[Plan()], verbose=0)
    begin += 1
