"""`warm_trainee.py FIFO PROGRAM`: a rank whose imports dominate.  It writes lines `WHAT RANK START SECONDS` to the
FIFO, where SECONDS is CLOCK_MONOTONIC: `first` at its first line, and `step` after its first step with what PROGRAM
imports.

In the first start, the last rank fails once `FIFO.fail` exists; then `failing` is the time at which it raises.
`recoverable`: ranks that go on when another one is killed; `pace`: one process that writes the seconds of a step.
"""

import os
import time

FIRST = time.monotonic()

import contextlib  # noqa: E402
import sys  # noqa: E402
from typing import Any  # noqa: E402

PROGRAMS: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "torch": ("torch",),
    "lightning": ("torch", "transformers.trainer", "lightning"),
    "recoverable": ("torch", "torch.distributed"),
    "pace": ("torch",),
}
RANK = int(os.environ.get("RANK", "0"))
START = int(os.environ.get("MA_PROC_START_CNT") or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) + 1)


def main(fifo: str, program: str) -> None:
    stream = os.open(fifo, os.O_WRONLY)
    say(stream, "first", FIRST)
    for name in PROGRAMS[program]:
        __import__(name)
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        (torch.ones(64, 64) @ torch.ones(64, 64)).sum().item()
    ft: Any = None
    with contextlib.suppress(ImportError):
        import ftrun_hooks as ft
    if program == "recoverable":
        recoverable(stream, ft)
    say(stream, "step", time.monotonic())
    if program == "pace":
        pace(stream, ft)
    for step in range(1_000_000):
        if ft is not None:
            ft.beat(step)
        if START == 1 and int(os.environ.get("WORLD_SIZE", "1")) - 1 == RANK and os.path.exists(f"{fifo}.fail"):
            say(stream, "failing", time.monotonic())
            raise RuntimeError("the failure that is measured")
        time.sleep(0.01)


def recoverable(stream: int, ft: Any) -> None:
    """Each step is an all_reduce of all ranks."""
    import torch
    import torch.distributed as dist

    @ft.recoverable  # type: ignore[untyped-decorator]
    def train(run: Any) -> None:
        dist.init_process_group("gloo")
        step = run.restore()
        while True:
            dist.all_reduce(torch.ones(8))
            step += 1
            run.keep(step, total=step.to_bytes(8, "big"))
            ft.beat(step)
            if step % 10 == 1 or run.round > 1:
                say(stream, f"round-{run.round}", time.monotonic())
            time.sleep(0.02 if run.round == 1 else 0.1)

    train()


def pace(stream: int, ft: Any) -> None:
    """Steps of one thread, in lines of a hundred."""
    import torch

    torch.set_num_threads(1)
    one = torch.rand(192, 192)
    for step in range(1_000_000):
        began, used = time.perf_counter(), time.process_time()
        for _ in range(100):
            one = torch.tanh(one @ one)
        ft.beat(step)
        say(stream, "pace", time.perf_counter() - began)
        say(stream, "used", time.process_time() - used)


def say(stream: int, what: str, seconds: float) -> None:
    os.write(stream, b"%s %d %d %.6f\n" % (what.encode(), RANK, START, seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
