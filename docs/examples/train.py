"""Train a small network on the CPU, so that a restart goes on where the last checkpoint was.

    ftrun --hang-timeout 10s python docs/examples/train.py --hang-at 120

ftrun needs nothing from a training but that it resumes from its checkpoint.  The two lines with `ft.` tell it of each
step and of each checkpoint, so that a hang is found sooner; without ftrun they do nothing.
"""

import argparse
import os
import threading
import time
from pathlib import Path

import torch
from torch import nn

import ftrun_hooks as ft


def main() -> None:
    options = parse()
    torch.manual_seed(0)
    inputs = torch.randn(512, 8)
    targets = inputs.sin().sum(dim=1, keepdim=True)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    options.dir.mkdir(parents=True, exist_ok=True)
    path = options.dir / "checkpoint.pt"
    done = load(path, model, optimizer)
    print(f"start {ft.attempt().start_cnt}: {done} of {options.steps} steps are done", flush=True)

    for step in range(done + 1, options.steps + 1):
        # The batch depends on the step alone: a resumed run sees the same data as one that was never interrupted.
        batch = torch.randint(len(inputs), (64,), generator=torch.Generator().manual_seed(step))
        loss = nn.functional.mse_loss(model(inputs[batch]), targets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ft.beat(step)

        time.sleep(options.step_time)
        if step == options.hang_at:
            hang(options.hang_times)
        if step % options.save_every == 0 or step == options.steps:
            save(path, step, model, optimizer)
            ft.checkpoint(step, path)
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    print("finished", flush=True)


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """All or nothing: a crash at any moment leaves the earlier checkpoint whole."""
    fresh = path.with_suffix(".tmp")
    with fresh.open("wb") as file:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The step to go on from, with the model and the optimizer as they were after it; 0 without a checkpoint."""
    if not path.exists():
        return 0
    kept = torch.load(path, weights_only=True)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    return int(kept["step"])


def hang(starts: int) -> None:
    """For the demonstration: in the first `starts` starts, wait for a lock that nobody will ever release."""
    if ft.attempt().start_cnt > starts:
        return
    print("hanging", flush=True)
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--dir", type=Path, default=Path("checkpoints"), help="where the checkpoint is kept")
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--step-time", type=float, default=0.02, metavar="SECONDS", help="make each step take longer")
    parser.add_argument("--hang-at", type=int, metavar="STEP", help="hang in this step")
    parser.add_argument("--hang-times", type=int, default=1, metavar="N", help="hang in the first N starts only")
    return parser.parse_args()


if __name__ == "__main__":
    main()
