"""JAX with optax, and with flax where the second argument is `FLAX`; saves with orbax.  One line is for ftrun."""

import os
import sys

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
import plan

import ftrun_hooks as ft

optimizer = optax.adam(0.01)
x, y = jnp.ones((8, 4)), jnp.ones((8, 1))
if sys.argv[2] == "FLAX":
    from flax import linen

    net = linen.Dense(1)
    weights, apply = net.init(jax.random.key(0), x), net.apply
else:
    weights, apply = jnp.zeros((4, 1)), lambda weights, x: x @ weights


@jax.jit
def train(weights, state):
    value, gradients = jax.value_and_grad(lambda weights: jnp.mean((apply(weights, x) - y) ** 2))(weights)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(weights, updates), state, value


options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=sys.argv[1] == "hang")
manager = ocp.CheckpointManager(os.path.abspath("kept"), options=options)
state, begin = optimizer.init(weights), 0
if manager.latest_step() is not None:
    begin = manager.latest_step()
    kept = manager.restore(begin, args=ocp.args.StandardRestore({"weights": weights, "state": state}))
    weights, state = kept["weights"], kept["state"]
for step in range(begin, plan.STEPS):
    weights, state, value = train(weights, state)
    value.block_until_ready()
    if sys.argv[2] != "SILENT":
        ft.beat(step)
    plan.at(step)
    if (step + 1) % plan.EVERY == 0:
        manager.save(step + 1, args=ocp.args.StandardSave({"weights": weights, "state": state}))
        plan.saved(step)
manager.close()
