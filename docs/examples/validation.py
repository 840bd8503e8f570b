"""Train in stretches with a validation after each; what hangs or crashes in a validation does not repeat it.

    ftrun --hang-timeout 10s python docs/examples/validation.py --hang-at 40
    ftrun --restart-on hang,failure python docs/examples/validation.py --crash-at 40

A checkpoint is saved before each validation, so that none can lose work.  A restart finds that the validation of its
checkpoint is still owed; `ft.attempt().last_section` tells whether it was that which ended the last start.
"""

import argparse
import json
import threading
from pathlib import Path

import torch
from torch import nn

import ftrun_hooks as ft
from ftrun_hooks.torch import latest, save


def main() -> None:
    options = parse()
    torch.manual_seed(0)
    inputs = torch.randn(512, 8)
    targets = inputs.sin().sum(dim=1, keepdim=True)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    options.dir.mkdir(parents=True, exist_ok=True)
    losses = options.dir / "losses.json"
    done = 0
    path = latest(options.dir)
    if path is not None:
        kept = torch.load(path, weights_only=True)
        model.load_state_dict(kept["model"])
        done = int(kept["step"])
    print(f"start {ft.attempt().start_cnt}: {done} of {options.steps} steps are done", flush=True)

    def validate(step: int) -> None:
        with ft.section("validation", timeout=options.validation_timeout), torch.no_grad():
            trouble(options, step)
            known = read(losses)
            known[str(step)] = nn.functional.mse_loss(model(inputs), targets).item()
            fresh = losses.with_suffix(".tmp")
            fresh.write_text(json.dumps(known))
            fresh.replace(losses)
        print(f"validated step {step}: loss {known[str(step)]:.4f}", flush=True)

    if done and str(done) not in read(losses):
        if ft.attempt().last_section == "validation":
            print(f"the validation of step {done} was cut off: going on with training", flush=True)
        else:
            validate(done)

    for step in range(done + 1, options.steps + 1):
        # The batch depends on the step alone: a resumed run sees the same data as one that was never interrupted.
        batch = torch.randint(len(inputs), (64,), generator=torch.Generator().manual_seed(step))
        loss = nn.functional.mse_loss(model(inputs[batch]), targets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ft.beat(step)
        if step % options.validate_every == 0 or step == options.steps:
            save({"step": step, "model": model.state_dict()}, options.dir / f"step-{step}.pt", step)
            validate(step)
    print("finished", flush=True)


def read(losses: Path) -> dict[str, float]:
    """The loss of each step that was validated."""
    known: dict[str, float] = json.loads(losses.read_text()) if losses.exists() else {}
    return known


def trouble(options: argparse.Namespace, step: int) -> None:
    """For the demonstration, in the first start only."""
    if ft.attempt().start_cnt > 1:
        return
    if step == options.crash_at:
        raise RuntimeError("crashing in the validation")
    if step == options.hang_at:
        print("hanging in the validation", flush=True)
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--dir", type=Path, default=Path("checkpoints"), help="where the checkpoints are kept")
    parser.add_argument("--validate-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--validation-timeout", default="10s", metavar="DURATION", help="how long one may take")
    parser.add_argument("--hang-at", type=int, metavar="STEP", help="hang in the validation of this step")
    parser.add_argument("--crash-at", type=int, metavar="STEP", help="crash in the validation of this step")
    return parser.parse_args()


if __name__ == "__main__":
    main()
