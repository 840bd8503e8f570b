"""The same training with PyTorch: a real loader and a real optimizer, which ftrun's automatic heartbeats see."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from threading import Lock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.utils.data import DataLoader, Dataset

from ftrun.host.spawn import die_with
from ftrun.workload.training import POINTS, RATE, Checkpoint, Setting

PEER = "FTHANG_PEER"  # in the environment of the second rank: the first one's pid, and the port where it waits
NEVER = timedelta(days=365)

Batch = tuple[int, Tensor, Tensor]
BeginNow = Callable[[], None]


class Batches(Dataset[Batch]):
    """The batch of each step.  To read that of step `stuck` calls `begin`."""

    def __init__(self, steps: range, stuck: int | None, begin: BeginNow) -> None:
        self.steps, self.stuck, self.begin = steps, stuck, begin

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, index: int) -> Batch:
        step = self.steps[index]
        if step == self.stuck:
            self.begin()
        x, y = torch.tensor(POINTS, dtype=torch.float64).unbind(1)
        return step, x, y


class Torch:
    """SGD, with batches from this many `workers`; the one that loads the batch of step `stuck` calls `begin` first.

    It does that once this process has come to the step before.  A worker loads batches ahead, and a thread of it sends
    them: one that kept the interpreter at once would keep them, too, and the training would stop some steps early.
    """

    leads = True

    def __init__(
        self, begun: Checkpoint, workers: int = 0, stuck: int | None = None, begin: BeginNow | None = None
    ) -> None:
        torch.set_num_threads(1)
        self.weights = torch.tensor(begun.weights, dtype=torch.float64, requires_grad=True)
        # A parameter group with a step count, as in apex, distinguishes a resumed optimizer from a new one.
        self.optimizer = torch.optim.SGD([{"params": [self.weights], "step": begun.step}], lr=RATE)
        self.workers, self.stuck, self.held = workers, stuck, Lock()
        self.begin = begin or self._take_held
        self.reached, self.reach = os.pipe()  # not inherited by what a kind executes

    def disturb(self, begin: BeginNow) -> None:
        if self.stuck is None:
            begin()
        else:
            os.write(self.reach, b"1")

    def epoch(self, steps: range) -> Iterator[Checkpoint]:
        for step, x, y in self._batches(steps):
            errors = self.weights[0] * x + self.weights[1] - y
            self.optimizer.zero_grad()
            (errors.square().mean() / 2).backward()  # type: ignore[no-untyped-call]
            self._exchange()
            self.optimizer.param_groups[0]["step"] = step
            self.optimizer.step()
            slope, offset = self.weights.tolist()
            yield Checkpoint(step, (slope, offset), errors.square().mean().item())

    def _batches(self, steps: range) -> Iterator[Batch]:
        loader = DataLoader(
            Batches(steps, self.stuck, self._begin_in_worker),
            batch_size=None,
            num_workers=self.workers,
            multiprocessing_context="fork" if self.workers else None,
            worker_init_fn=partial(_begin_worker, os.getpid()),
        )
        with self.held:  # a worker that is forked now inherits the locked lock
            return iter(loader)

    def _begin_in_worker(self) -> None:
        os.read(self.reached, 1)
        self.begin()

    def _take_held(self) -> None:
        with self.held:
            pass

    def _exchange(self) -> None:
        """Between the gradients and the step."""


class Launched(Torch):
    """One of the ranks that a launcher such as torchrun has started: each step averages their gradients (gloo).  The
    kind happens in the last one."""

    def __init__(self, begun: Checkpoint) -> None:
        super().__init__(begun)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # otherwise gloo resolves the host's own name, which may fail
        self._join()
        self.leads = dist.get_rank() == 0

    def _join(self) -> None:
        dist.init_process_group("gloo")

    def disturb(self, begin: BeginNow) -> None:
        if dist.get_rank() == dist.get_world_size() - 1:
            begin()

    def epoch(self, steps: range) -> Iterator[Checkpoint]:
        yield from super().epoch(steps)
        dist.destroy_process_group()

    def _exchange(self) -> None:
        assert self.weights.grad is not None
        dist.all_reduce(self.weights.grad)
        self.weights.grad /= dist.get_world_size()


class TwoRanks(Launched):
    """This process and a copy of it, which dies with it."""

    peer: subprocess.Popen[bytes] | None = None

    def _join(self) -> None:
        first, port = map(int, os.environ.get(PEER, "0 0").split())
        if first:
            die_with(first)
        store = TCPStore("127.0.0.1", port, 2, is_master=not first, wait_for_workers=False)
        if not first:
            environment = {**os.environ, PEER: f"{os.getpid()} {store.port}", "RANK": "1"}
            again = [sys.executable, *sys.orig_argv[1:]]
            self.peer = subprocess.Popen(again, env=environment, stdout=subprocess.DEVNULL)
        dist.init_process_group("gloo", store=store, rank=1 if first else 0, world_size=2, timeout=NEVER)

    def epoch(self, steps: range) -> Iterator[Checkpoint]:
        yield from super().epoch(steps)
        if self.peer is not None:
            self.peer.wait()


def training(kind: str, begin: BeginNow, setting: Setting, begun: Checkpoint, begins_after: int | None) -> Torch:
    """The training of this kind, which the kind disturbs after step `begins_after`; `begin` is for a worker."""
    stuck = None if begins_after is None else begins_after + 1
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return Launched(begun)
    if kind in ("collective", "mismatch"):
        return TwoRanks(begun)
    if kind == "dataloader":
        return Torch(begun, 1, stuck)
    if setting.in_worker:
        return Torch(begun, setting.workers, stuck, begin)
    return Torch(begun, setting.workers)


def barrier() -> None:
    dist.barrier()


def _begin_worker(parent: int, number: int) -> None:
    die_with(parent)


def save(file: object, size: int) -> None:
    """`torch.save` of `size` bytes."""
    torch.save(torch.zeros(size, dtype=torch.uint8), file)  # type: ignore[arg-type]


def compile_once() -> None:
    """`torch.compile` of a fresh function, by a backend that needs no C compiler and leaves no cache on disk."""

    def layers(x: Tensor) -> Tensor:
        for _ in range(20):
            x = (x * x).sin() + x.mean()
        return x

    torch.compiler.reset()
    torch.compile(layers, backend="aot_eager")(torch.ones(64, 8, requires_grad=True))
