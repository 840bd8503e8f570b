"""A training script as people write them, whose ranks survive the death of one: epochs, shuffled batches from worker
processes, dropout, a schedule of the learning rate, validation, early stopping, checkpoints.

`ftrun --restart-on hang,fault,failure --nproc-per-node 2 python recover_script.py FOLDER`.  Each comment with CHANGED
says what was otherwise before `@ft.recoverable`.  `FAULT=RANK:STEP` kills that rank before that step, once.
"""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Sampler, TensorDataset

import ftrun_hooks as ft

EPOCHS, BATCH, PATIENCE = 4, 8, 3
FOLDER = sys.argv[1]
FAULT = tuple(map(int, os.environ.get("FAULT", "-1:-1").split(":")))


def data(rows, seed):
    inputs = torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True).tanh())


# Read only, so that it may stay outside of the function: it is built once in each process.
TRAINING, VALIDATION = data(160, 1), data(32, 2)


class Rest(Sampler):
    """CHANGED: new.  The order of an epoch without the samples of the batches that are done."""

    def __init__(self, sampler, done):
        self.order = list(sampler)[done:]

    def __iter__(self):
        return iter(self.order)

    def __len__(self):
        return len(self.order)


def batches_of(epoch, done, run):
    """The batches of this epoch from number `done` on.

    CHANGED: before, one loader lived as long as the process, and `for batch in loader` began with the first batch.  Its
    workers fetch batches in advance, so that its position is further than the training is, and differs between ranks.
    Now each round makes its own, from the step alone.  The generator is CHANGED, too: without one, each iterator draws
    a seed for its workers from the random numbers of the process, so that a round would have other ones than without
    it."""
    sampler = DistributedSampler(TRAINING, run.world_size, run.rank, shuffle=True, seed=3)
    sampler.set_epoch(epoch)
    draws = torch.Generator().manual_seed(epoch)
    return DataLoader(TRAINING, BATCH, sampler=Rest(sampler, done * BATCH), num_workers=1, generator=draws)


class Progress:
    """What decides about the end, and what is printed.

    CHANGED: these were variables of the module, `best = inf` and `global history`.  A rank that survives would go on
    with values from after the step with which the round begins, while a new process has those of the start: then the
    ranks stop after different epochs, and one waits for ever.  Now they belong to the state of a step."""

    def __init__(self):
        self.best, self.bad, self.losses = float("inf"), 0, []

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)


@ft.recoverable  # CHANGED: `main()` was called directly
def main(run):
    dist.init_process_group("gloo")  # CHANGED: was outside of the function, as were the model and the optimizer
    torch.set_num_threads(1)
    torch.manual_seed(100 + run.rank)  # dropout differs between ranks; DDP gives all the weights of rank 0
    network = torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1)
    )
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    per_epoch = len(batches_of(0, 0, run))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * per_epoch)
    progress = Progress()
    state = {"model": network, "optimizer": optimizer, "schedule": schedule, "progress": progress}

    def load():
        path = f"{FOLDER}/checkpoint.pt"
        if not os.path.exists(path):
            return 0
        found = torch.load(path)
        for name, one in state.items():
            one.load_state_dict(found[name])
        return found["step"]

    # CHANGED: was `step = load()`.  A snapshot comes first, and the checkpoint where there is none.
    step = run.restore(load, **state)
    if "random" in run.kept:
        torch.set_rng_state(run.kept["random"])
    print(f"rank {run.rank}, round {run.round}: from step {step}", flush=True)

    while step < EPOCHS * per_epoch and progress.bad < PATIENCE:
        epoch, done = divmod(step, per_epoch)
        for inputs, targets in batches_of(epoch, done, run):
            die_once(run, step)
            model.train()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            progress.losses.append(loss.item())
            if step % per_epoch == 0:
                validate(network, progress)
                if run.rank == 0:
                    save(step, state)
            # CHANGED: new.  After all that belongs to the step, the validation too.  The states of `random` are this
            # rank's own, so there is no shard="all": a rank would begin with those of another one.
            run.keep(step, random=torch.get_rng_state(), **state)
            ft.beat(step)
    if run.rank == 0:
        print("losses", *(f"{loss:.6f}" for loss in progress.losses), f"best {progress.best:.6f}", flush=True)
    model = loss = None  # CHANGED: new; DDP would hold the process group beyond its end
    dist.destroy_process_group()


def validate(network, progress):
    network.eval()
    with torch.no_grad():
        loss = torch.nn.functional.mse_loss(network(VALIDATION.tensors[0]), VALIDATION.tensors[1])
    dist.all_reduce(loss)
    progress.bad = 0 if loss.item() < progress.best else progress.bad + 1
    progress.best = min(progress.best, loss.item())


def save(step, state):
    torch.save({"step": step, **{name: one.state_dict() for name, one in state.items()}}, f"{FOLDER}/checkpoint.new")
    os.replace(f"{FOLDER}/checkpoint.new", f"{FOLDER}/checkpoint.pt")
    ft.checkpoint(step, f"{FOLDER}/checkpoint.pt")


def die_once(run, step):
    if (run.rank, step) == FAULT and run.round == 1:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
