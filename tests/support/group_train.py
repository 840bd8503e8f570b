"""One rank of a real training: a tiny model, averaged gradients at each step, checkpoints from which it goes on.

    group_train.py FOLDER [--steps N] [--failure hang:3:20]

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT give its rank and the rendezvous, as torchrun or a scheduler sets them.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.group_work import Ledger, options

HELD = 60.0  # s for which a port of an earlier epoch may still be in use (TIME_WAIT)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--ports", type=int, default=1, help="number of ports, used in turn: one for each epoch")
    given = parser.parse_args()
    ledger = Ledger(given.folder, int(os.environ["RANK"]))
    ledger.fail_as_planned(given.failure, 0)  # before anything else

    import torch
    import torch.distributed as dist
    import torch.distributed.nn  # before there is a group, which it would keep: rank_programs/ending.py
    from torch import nn

    import ftrun_hooks as ft

    torch.set_num_threads(1)
    meet(ledger, given.ports)
    rank, size = dist.get_rank(), dist.get_world_size()
    ledger.add("met")
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    kept = given.folder / "checkpoint.pt"
    at = torch.zeros(1, dtype=torch.int64)
    if rank == 0 and kept.exists():
        state = torch.load(kept, weights_only=True)
        model.load_state_dict(state["model"])
        at[0] = state["step"]
    dist.broadcast(at, 0)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    done = int(at)
    ledger.add("resumed", step=done)

    for step in range(done + 1, given.steps + 1):
        ledger.fail_as_planned(given.failure, step)
        time.sleep(given.step_time)
        inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(1000 * step + rank))
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.data -= 1e-2 * parameter.grad / size  # an optimizer of torch imports its compiler: seconds
        ledger.step(step)
        if step % given.every == 0:
            if rank == 0:
                torch.save({"step": step, "model": model.state_dict()}, kept.with_suffix(".tmp"))
                kept.with_suffix(".tmp").rename(kept)
            ft.checkpoint(step)
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    dist.barrier()
    ledger.add("finished", step=given.steps, digest=digest)
    dist.destroy_process_group()


def meet(ledger: Ledger, ports: int) -> None:
    """The rendezvous; the rank that listens waits for a port that is still in use."""
    import torch.distributed as dist

    if "TORCHELASTIC_RUN_ID" not in os.environ:
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + ledger.epoch % ports)
    until = time.monotonic() + HELD
    while True:
        try:
            dist.init_process_group("gloo", timeout=timedelta(minutes=10))
            return
        except (RuntimeError, OSError) as error:
            if "in use" not in str(error).lower() or time.monotonic() > until:
                raise
            time.sleep(0.2)


if __name__ == "__main__":
    main()
