"""`with_faults.py STEPS FAULT...`: recoverable ranks that train with DDP and gloo, and do each fault once.

A fault is RANK:MOMENT:STEP:KIND.  Moments: `step`, once the gradients of that step are there; `keep`, `leave`,
`restore` and `go`, of which the last three need another fault that ends the round.  Each step is a line
`RANK ROUND STEP PID LOSS` of the file log-RANK, and each rank writes a digest of its final weights into weights-RANK.
"""

import hashlib
import os
import sys

import gloo
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ftrun_hooks as ft
from ftrun.workload import failures, rank_failures
from ftrun_hooks import _snapshot

STEPS = int(sys.argv[1])
FAULTS = [words.split(":") for words in sys.argv[2:]]
RANK = int(os.environ["RANK"])
KINDS = {
    "kill": rank_failures.kill,
    "exit": rank_failures.leave_at_once,
    "raise": rank_failures.throw,
    "retry": rank_failures.retry,
    "daemon": rank_failures.daemon,
    "stop": failures.stop,
    "gil": failures.gil,
    "lock": failures.deadlock,
    "ignore": rank_failures.ignore,
}


def at(moment, step=0):
    for number, (rank, when, first, kind) in enumerate(FAULTS):
        if (int(rank), when) != (RANK, moment) or step < int(first):
            continue
        try:
            os.close(os.open(f"fault-{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        KINDS[kind](None)


class Model(torch.nn.Sequential):
    def load_state_dict(self, *given, **named):
        at("restore")
        return super().load_state_dict(*given, **named)


class Marker(_snapshot.Bytes):
    """The bytes that `run.keep` writes last, when the rest of the snapshot is there: the fault `keep`."""

    def write(self, memory):
        at("keep", LAST["step"])
        super().write(memory)


LAST = {"step": 0}
_snapshot.Bytes = Marker


@ft.recoverable
def train(run):
    if run.round > 1:
        at("go")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Model(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    # Without this, DDP adds the gradients in another order in the first step of each round than in later ones.
    parallel = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters())
    step = run.restore(model=model, optimizer=optimizer)
    try:
        while step < STEPS:
            generator = torch.Generator().manual_seed(1000 * step + run.rank)
            loss = parallel(torch.rand(16, 16, generator=generator)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            at("step", step)
            optimizer.step()
            step += 1
            LAST["step"] = step
            run.keep(step, model=model, optimizer=optimizer, marker=b"0")
            ft.beat(step)
            with open(f"log-{RANK}", "a") as file:
                print(RANK, run.round, step, os.getpid(), loss.item().hex(), file=file)
    except BaseException:
        at("leave")
        raise
    weights = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
    with open(f"weights-{RANK}", "w") as file:
        file.write(hashlib.sha256(weights).hexdigest())
    dist.barrier()
    parallel = loss = None  # as the last owner of the process group, DDP would end gloo's threads with the GIL held
    dist.destroy_process_group()


train()
assert not gloo.has_threads(), "something holds the process group"
