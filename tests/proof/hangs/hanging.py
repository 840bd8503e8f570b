"""Each kind of `fthang` that hangs, under ftrun without any option: when it is found, and how."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from ftrun.workload.kinds import FAILURES, KINDS
from support.runs import FTHANG, HOUSE, Run, Runs

MOMENTS = {
    "before the first step": ("--after", "0", "--steps", "20"),
    "in the first ten steps": ("--after", "5", "--steps", "20"),
    "after 125 steps": ("--after", "125", "--steps", "140"),
}
SINGLE, BESIDE = "a single process", "beside DataLoader workers"
WORKER, RANKS = "in a DataLoader worker", "in a rank of torchrun"
STARTED = "in a rank that ftrun started"
BESIDE_ALL = "beside CUDA's threads, trackers and a SIGTERM handler"
MONITORED = "beside a loop that monitors the job"
# Not in the matrix; their heartbeats are calls of the program.
PLAIN, PLAIN_MONITORED = "a single process without PyTorch", "the same beside a loop that monitors the job"
# The loop that people have for `nvidia-smi`: its processes come and go all the time.
MONITOR = '(while sleep 1; do ps aux | head -5 > /dev/null; done) & loop=$!; "$@"; code=$?; kill $loop; exit $code'
WORKERS = ("--workers", "2")
SHAPES = {SINGLE: (), BESIDE: WORKERS, WORKER: (*WORKERS, "--in-worker"), RANKS: (), STARTED: ()}
SHAPES |= {BESIDE_ALL: (), MONITORED: ()}
COMPANIONS, NATIVE = Path(__file__).with_name("companions.py"), HOUSE / "tests/support/native_threads.c"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
HANGS = tuple(kind.name for kind in FAILURES if kind.line.startswith("hanging"))
# What computes without end, in cores.
BUSY = {"spin": 1.0, "busy": 1.0, "flag": 1.0, "forkstorm": 1.0, "nobeat": 0.1}
# Kinds that bring their own processes, or that are what the column says.
ALONE = (SINGLE, BESIDE_ALL, MONITORED)
ONLY = {"collective": ALONE, "mismatch": (*ALONE, RANKS, STARTED), "dataloader": ALONE, "nobeat": (SINGLE,)}
UNBEGUN = "it did not begin"
SOON = 60.0  # s in which a closed wait has to be found


class Cell(NamedTuple):
    kind: str
    moment: str
    shape: str

    def __str__(self) -> str:
        return f"{self.kind}, {self.moment}, {self.shape}"

    @property
    def cores(self) -> float:
        return BUSY.get(self.kind, 0.15 if self.shape in (RANKS, STARTED) else 0.1)

    def command(self, folder: Path) -> list[str]:
        """The words that follow ftrun; `folder` is for a library that is compiled."""
        words = [*FTHANG, self.kind, *MOMENTS[self.moment]]
        words += ["--torch", *SHAPES[self.shape]] if self.shape not in (PLAIN, PLAIN_MONITORED) else []
        if self.shape in (MONITORED, PLAIN_MONITORED):
            return ["bash", "-c", MONITOR, "run.sh", *words]
        if self.shape == STARTED:
            return ["--nproc-per-node", "2", *words]
        if self.shape == BESIDE_ALL:
            library = folder / "libcuda.so.1"
            subprocess.run(["gcc", "-shared", "-fPIC", "-pthread", "-o", library, NATIVE], check=True)
            return [words[0], str(COMPANIONS), str(library), *words[1:]]
        return [*TORCHRUN, *words[1:]] if self.shape == RANKS else words


CELLS = [
    Cell(kind, moment, shape)
    for shape in SHAPES
    for moment in MOMENTS
    for kind in HANGS
    if shape in ONLY.get(kind, SHAPES)
]
CELLS = [cell for cell in CELLS if cell.kind != "nobeat" or cell.moment == next(iter(MOMENTS))]


class Found(NamedTuple):
    """`after`: seconds from the beginning of the hang to the verdict, None if there was none for `watched` seconds;
    `why`: what the verdict says; `wrong`: what else went wrong, or nothing; `open`: why the wait may end, as the looks
    and the evidence that cleared a suspicion say."""

    kind: str
    moment: str
    shape: str
    watched: float
    after: float | None = None
    rule: str = ""
    why: str = ""
    open: tuple[str, ...] = ()
    wrong: str = ""


def find(cell: Cell, patience: float, options: tuple[str, ...], folder: Path) -> Found:
    """Run one to its end, or for `patience` seconds without a verdict."""
    folder.mkdir(parents=True)
    runs = Runs(folder)
    try:
        run = runs.start(*options, *cell.command(folder))
        begun = _begun(run, cell)
        if begun is None:
            return Found(*cell, 0.0, wrong=f"{UNBEGUN}: {run.log()}")
        while not run.named("hang") and run.process.poll() is None and time.monotonic() < begun + patience:
            time.sleep(0.25)
        hang = next(iter(run.named("hang")), None)
        opened = tuple(dict.fromkeys(str(record.get("why")) for record in run.named("look", "cleared")))
        watched = round(time.monotonic() - begun, 1)
        if hang is None:
            wrong = "" if run.process.poll() is None else f"it ended: {run.log()}"
            return Found(*cell, watched, open=opened, wrong=wrong)
        code = run.wait(300)
        well = code == 0 and "finished at step" in run.stdout and len(run.named("restart")) == 1
        wrong = "" if well else f"after the verdict: exit code {code}\n{run.log()}"
        after = round(float(hang["mono"]) - begun, 1)
        return Found(*cell, watched, after, str(hang["rule"]), str(hang.get("why", "")), opened, wrong)
    finally:
        runs.end()


def _begun(run: Run, cell: Cell) -> float | None:
    """When the kind has printed its line, None if it has not within five minutes."""
    line, over = KINDS[cell.kind].text(0), time.monotonic() + 300
    while line not in run.stdout:
        if run.process.poll() is not None or time.monotonic() > over:
            return None
        time.sleep(0.05)
    return time.monotonic()
