"""DDP with gloo on several ranks, as its users would write it for each program that recovers ranks.

`trainee_ranks.py WAY FOLDER FAULT`: rank 2 does FAULT (`kill`, `retry` or `none`) once, in step 20 or the first one
after it in which the file FOLDER/go is there.  Each rank appends to FOLDER/steps a line for each step:
time.monotonic(), rank, life (the round, or the start), step, pid; the time of the fault is in FOLDER/fault.  `overhead
FOLDER none`: what the decorator and `keep` cost in one process, as FOLDER/overhead.
"""

import copy
import ctypes
import functools
import importlib
import json
import mmap
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

RANK, STEP = 2, 20
STEP_TIME = 0.02  # s
GLOO_TIMEOUT = 5.0  # s, of in-process restart
SIZES = (1, 16, 64)  # MiB
WAY, FOLDER, FAULT = sys.argv[1], Path(sys.argv[2]), sys.argv[3]


def note(name: str, *words: object) -> None:
    with (FOLDER / name).open("ab", buffering=0) as file:
        file.write((" ".join(map(str, (time.monotonic(), *words))) + "\n").encode())


class PassingFault(Exception):
    pass


def fault(rank: int, step: int, error: type[BaseException]) -> None:
    if rank != RANK or step < STEP or FAULT == "none" or (FOLDER / "fault").exists() or not (FOLDER / "go").exists():
        return
    note("fault")
    if FAULT == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise error("a passing fault")


class Training:
    def __init__(self, parallel: bool = True) -> None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.torch = torch
        self.model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
        self.optimizer: Any = torch.optim.AdamW(self.model.parameters())
        self.call: Any = torch.nn.parallel.DistributedDataParallel(self.model) if parallel else self.model

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def step(self, step: int, rank: int, error: type[BaseException]) -> None:
        batch = self.torch.rand(16, 32, generator=self.torch.Generator().manual_seed(1000 * step + rank))
        self.optimizer.zero_grad()
        self.call(batch).pow(2).mean().backward()
        fault(rank, step, error)
        self.optimizer.step()
        time.sleep(STEP_TIME)


def until_end(step: int) -> bool:
    return not (FOLDER / "end").exists() and step < 100_000


def ftrun() -> None:
    import torch.distributed as dist

    import ftrun_hooks as ft

    @ft.recoverable
    def train(run: Any) -> None:
        dist.init_process_group("gloo")
        training = Training()
        step = run.restore(model=training.model, optimizer=training.optimizer)
        while until_end(step):
            training.step(step, run.rank, ft.Retry)
            step += 1
            run.keep(step, model=training.model, optimizer=training.optimizer)
            ft.beat(step)
            note("steps", run.rank, run.round, step, os.getpid())

    call: Any = train
    call()


def inprocess() -> None:
    """NVRx: the survivors call the function again, with one rank less."""
    from datetime import timedelta

    import torch.distributed as dist
    from nvidia_resiliency_ext import inprocess as nvrx

    kept: dict[str, Any] = {}

    def train(call: nvrx.CallWrapper = None) -> None:
        os.environ["MASTER_PORT"] = str(int(os.environ["BASE_PORT"]) + 1 + call.iteration)
        # Nothing frees a rank that waits for a living one in a collective of gloo, but the timeout of the group.
        dist.init_process_group("gloo", timeout=timedelta(seconds=GLOO_TIMEOUT))
        rank = int(os.environ["INITIAL_RANK"])
        training = Training()
        if kept:
            training.load(kept["state"])
        step = kept.get("step", 0)
        least = training.torch.tensor([step])
        dist.all_reduce(least, dist.ReduceOp.MIN)
        if least.item() < step:
            training.load(kept["before"])
            step -= 1
        while until_end(step):
            training.step(step, rank, PassingFault)
            step += 1
            kept.update(before=kept.get("state"), step=step, state=copy.deepcopy(training.state()))
            note("steps", rank, call.iteration + 1, step, os.getpid())

    os.environ["BASE_PORT"] = os.environ["MASTER_PORT"]
    os.environ["INITIAL_RANK"] = os.environ["RANK"]
    nvrx.Wrapper()(train)()


def torchft() -> None:
    """Each rank is a replica group of its own; the others go on without it, and a new process joins them."""
    from datetime import timedelta

    ft: Any = importlib.import_module("torchft")
    rank, training = int(os.environ["REPLICA"]), Training(parallel=False)
    manager = ft.Manager(
        pg=ft.ProcessGroupGloo(timeout=timedelta(seconds=30)),
        load_state_dict=training.load,
        state_dict=training.state,
        min_replica_size=1,
        replica_id=f"replica-{rank}",
        timeout=timedelta(seconds=30),
    )
    training.call = ft.DistributedDataParallel(manager, training.model)
    training.optimizer = ft.Optimizer(manager, training.optimizer)
    while until_end(manager.current_step()):
        before = manager.current_step()
        training.step(before, rank, PassingFault)
        if manager.current_step() > before:
            note("steps", rank, manager.num_participants(), manager.current_step(), os.getpid())


def torchrun() -> None:
    """All ranks start again, with the checkpoint that rank 0 has written."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, life = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1
    training, step, path = Training(), 0, FOLDER / "checkpoint"
    if path.exists():
        saved = training.torch.load(path)
        training.load(saved["state"])
        step = saved["step"]
    while until_end(step):
        training.step(step, rank, PassingFault)
        step += 1
        if rank == 0:
            training.torch.save({"step": step, "state": training.state()}, path.with_suffix(".new"))
            path.with_suffix(".new").rename(path)
        note("steps", rank, life, step, os.getpid())


def overhead() -> None:
    """Seconds for each step of a loop, plain and decorated; GB/s of `keep` and of memcpy, by size."""
    import torch

    import ftrun_hooks as ft

    def steps() -> float:
        began = time.perf_counter()
        for _ in range(300_000):
            STEP_TIME.hex()
        return (time.perf_counter() - began) / 300_000

    @ft.recoverable
    def train(run: Any) -> None:
        plain, decorated = [outside() for _ in range(5)], [steps() for _ in range(5)]
        found: dict[str, Any] = {"plain": plain, "decorated": decorated, "keep": {}, "memcpy": {}}
        for size in SIZES:
            state, number = torch.rand(size << 18), size << 20
            memory = _shared(number)
            place = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            source = state.data_ptr()
            acts: dict[str, Any] = {
                "keep": functools.partial(run.keep, 1, state=state),
                "memcpy": functools.partial(ctypes.memmove, place, source, number),
            }
            for name, act in acts.items():
                samples = []
                for turn in range(25):
                    began = time.perf_counter()
                    act()
                    if turn >= 5:  # both files have their pages then
                        samples.append(time.perf_counter() - began)
                found[name][str(size)] = samples
        (FOLDER / "overhead").write_text(json.dumps(found))

    outside = steps
    call: Any = train
    call()


def _shared(size: int) -> mmap.mmap:
    """Shared memory of that size, as `keep` has it."""
    path = FOLDER / "memory"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), size)


{way.__name__: way for way in (ftrun, inprocess, torchft, torchrun, overhead)}[WAY]()
