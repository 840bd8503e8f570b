"""Time from the fault of one of four ranks to the next step of all, without and with the death of its process."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from proof.bench.compare.kit import made_by
from proof.bench.compare.peers import titled
from support.measured import Measured, percentile, spread
from support.runs import FTRUN, carrying, end_all, objects, whole_lines

NAME = "57-recovered-ranks"
TRAINEE: Final = (sys.executable, str(Path(__file__).with_name("trainee_ranks.py")))
RANKS, FAILING = 4, 2
DEADLINE: Final = 180.0  # s; PyTorch is imported by four processes at once
MARK: Final = "RECOVERED_RANKS"


class Step(NamedTuple):
    at: float
    rank: int
    life: int
    step: int
    pid: int


class Found(NamedTuple):
    """`seconds`: from the fault to the next step of the last rank that goes on; `ranks`: how many go on; `redone`: the
    steps that one of them did again; `processes`: how many are new."""

    seconds: float
    ranks: int
    redone: int
    processes: int


Launch = Callable[[Path, str, dict[str, str]], list[list[str]]]


class Way(NamedTuple):
    """`launch(folder, fault, environment)`: the command lines, each with RANK in its environment if there are several;
    it may add to the environment.  `ranks`: how many go on after the death of one.  `ready(folder)`: whether the fault
    may come, from the twentieth step on."""

    title: str
    package: str
    module: str
    launch: Launch
    ranks: int = RANKS
    ready: Callable[[Path], bool] = lambda folder: True

    @property
    def installed(self) -> bool:
        return not self.module or importlib.util.find_spec(self.module) is not None

    @property
    def titled(self) -> str:
        return titled(self.title, self.package, "{name} ({package} {version})")


def _ftrun(*options: str) -> Launch:
    def launch(folder: Path, fault: str, environment: dict[str, str]) -> list[list[str]]:
        ranks = ("--nproc-per-node", str(RANKS), "--probe", "off", "--restart-on", "failure", *options)
        return [[*FTRUN, "--run-dir", str(folder / "run"), *ranks, "--", *TRAINEE, "ftrun", str(folder), fault]]

    return launch


def _standbys_wait(folder: Path) -> bool:
    """Whether the standbys have imported all."""
    records = objects(folder / "run" / "events.jsonl")
    return any(one["event"] == "standby" and one["what"] == "ready" for one in records)


def _inprocess(folder: Path, fault: str, environment: dict[str, str]) -> list[list[str]]:
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(RANKS)}
    return [[*TRAINEE, "inprocess", str(folder), fault]] * RANKS


def _torchft(folder: Path, fault: str, environment: dict[str, str]) -> list[list[str]]:
    port = _free_port()
    environment |= {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}
    lighthouse = [str(Path(sys.executable).with_name("torchft_lighthouse")), "--min_replicas", str(RANKS - 1)]
    lighthouse += ["--join_timeout_ms", "1000", "--bind", f"127.0.0.1:{port}"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "3"]
    return [*([*launcher, "--nproc-per-node", "1", *TRAINEE[1:], "torchft", str(folder), fault],) * RANKS, lighthouse]


def _torchrun(folder: Path, fault: str, environment: dict[str, str]) -> list[list[str]]:
    # Without it the store still has the addresses of the ranks before the restart, and gloo of the new ones is refused.
    environment |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "3"]
    return [[*launcher, "--nproc-per-node", str(RANKS), *TRAINEE[1:], "torchrun", str(folder), fault]]


WAYS: Final = (
    Way("ftrun", "", "", _ftrun("--standby", str(RANKS)), ready=_standbys_wait),
    Way("ftrun --standby off", "", "", _ftrun("--standby", "off")),
    Way("in-process restart", "nvidia-resiliency-ext", "nvidia_resiliency_ext", _inprocess, RANKS - 1),
    Way("torchft", "torchft-nightly", "torchft", _torchft),
    Way("torchrun", "torch", "torch", _torchrun),
)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def running(way: Way, folder: Path, fault: str) -> Iterator[Callable[[], str]]:
    """The processes of this way; gives what they have written."""
    mark = f"{MARK}={folder.name}"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FTRUN_", "MA_", "PYTHONPATH"))}
    hooks = str(Path(__file__).resolve().parents[4] / "hooks")
    # Of the old package `pynvml`, which nvidia-resiliency-ext installs; an import that prints makes a start cold.
    environment |= {"PYTHONWARNINGS": "ignore"}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": hooks, **dict([mark.split("=")])}
    started = []
    with (folder / "output").open("wb") as output:
        try:
            commands = way.launch(folder, fault, environment)
            for rank, command in enumerate(commands):
                # Not LOCAL_RANK: with it the restart in the process checks the GPU of the rank, and there may be none.
                own = {"RANK": str(rank)} if way.module == "nvidia_resiliency_ext" else {}
                own |= {"REPLICA": str(rank)} if way.module == "torchft" else {}
                started.append(
                    subprocess.Popen(
                        command, env=environment | own, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                        start_new_session=True,
                    )
                )  # fmt: skip
            yield lambda: (folder / "output").read_text(errors="replace")[-2000:]
        finally:
            for process in started:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
            until = time.monotonic() + 20
            while time.monotonic() < until and (any(one.poll() is None for one in started) or carrying(mark)):
                time.sleep(0.05)
            end_all(lambda: carrying(mark))
            for process in started:
                if process.poll() is None:
                    process.kill()
                process.wait()


def steps(folder: Path) -> list[Step]:
    lines = (line.split() for line in whole_lines(folder / "steps"))
    return [Step(float(at), int(rank), int(life), int(step), int(pid)) for at, rank, life, step, pid in lines]


def recovered(way: Way, fault: str) -> Found | None:
    """None: not within DEADLINE after the start; what was written then goes to stderr."""
    with tempfile.TemporaryDirectory(prefix="ftrun-bench-", dir="/dev/shm") as name:
        folder = Path(name)
        with running(way, folder, fault) as said:
            until = time.monotonic() + DEADLINE
            while time.monotonic() < until:
                if not (folder / "go").exists() and way.ready(folder):
                    (folder / "go").touch()
                if (found := _found(way, folder, fault)) is not None:
                    print(f"{way.titled}, {fault}: {found}", file=sys.stderr, flush=True)
                    return found
                time.sleep(0.02)
            print(f"{way.titled}, {fault}: not in time: {said()}", file=sys.stderr, flush=True)
    return None


def _found(way: Way, folder: Path, fault: str) -> Found | None:
    if not (folder / "fault").exists():
        return None
    text, done = (folder / "fault").read_text(), steps(folder)
    if not text.endswith("\n"):
        return None
    at = float(text)
    before = [one for one in done if one.at <= at]
    life = max(one.life for one in before)
    if way.module == "torchft":  # its steps have no life: the others go on, and the new process joins them
        pids = {one.pid for one in before if one.rank == FAILING}
        after = [one for one in done if one.at > at and not (one.rank == FAILING and one.pid in pids)]
    else:
        after = [one for one in done if one.at > at and one.life > life]
    first: dict[int, Step] = {}
    for one in after:
        first.setdefault(one.rank, one)
    wanted = RANKS if fault != "kill" else way.ranks
    if len(first) < wanted:
        return None
    last = {rank: max(one.step for one in before if one.rank == rank) for rank in range(RANKS)}
    redone = max(last[rank] + 1 - one.step for rank, one in first.items())
    known = {one.pid for one in before}
    return Found(
        max(one.at for one in first.values()) - at,
        len(first),
        max(0, redone),
        len({one.pid for one in first.values()} - known),
    )


def import_seconds() -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch, torch.distributed, torch.nn.parallel"], check=True)
    return time.monotonic() - began


def overhead() -> tuple[tuple[str, ...], ...]:
    """What ftrun costs where nothing fails."""
    with tempfile.TemporaryDirectory(prefix="ftrun-bench-", dir="/dev/shm") as name:
        folder = Path(name)
        words = ["--run-dir", str(folder / "run"), "--nproc-per-node", "1", "--probe", "off", "--"]
        subprocess.run([*FTRUN, *words, *TRAINEE, "overhead", str(folder), "none"], check=True, timeout=DEADLINE)
        found = json.loads((folder / "overhead").read_text())
    rows = []
    plain, decorated = (statistics.median(found[name]) * 1e9 for name in ("plain", "decorated"))
    rows.append(("a step of a loop, plain and decorated", f"{plain:.1f} and {decorated:.1f} ns"))
    for size in found["keep"]:
        keep, copy = found["keep"][size], found["memcpy"][size]
        rates = [[int(size) * 2**20 / 1e9 / one for one in samples] for samples in (keep, copy)]
        per = statistics.median(keep) * 1e3 / int(size)
        rows.append(
            (
                f"`keep` of {size} MiB",
                f"{spread(rates[0])} GB/s; memcpy {spread(rates[1])} GB/s; {per:.2f} ms for each MiB",
            )
        )
    return tuple(rows)


def measure(short: bool) -> Measured:
    ways = [way for way in WAYS if way.installed][: 1 if short else None]
    runs = 1 if short else 3
    found: dict[tuple[str, str], list[Found | None]] = {}
    imports: list[float] = []
    for _ in range(runs):
        imports.append(import_seconds())
        for way in ways:
            for fault in ("retry",) if short else ("retry", "kill"):
                if not (way.module == "torchft" and fault == "retry"):
                    found.setdefault((way.title, fault), []).append(recovered(way, fault))
    better = () if short else tuple(_better(found, fault) for fault in ("retry", "kill"))
    rows = [
        (way.titled, *_cells(found.get((way.title, "retry"))), *_cells(found.get((way.title, "kill")))) for way in ways
    ]
    load = os.getloadavg()[1]
    return Measured(
        NAME,
        "Recovery of one rank of four",
        made_by(NAME),
        (
            *(line for line in better if line),
            "Four ranks train a small model with DDP and gloo, a step takes 20 ms. In step 20 rank 2 raises an error "
            "that passes (`ft.Retry`; an exception elsewhere), or kills itself with SIGKILL. The time is that from "
            "the fault to the next step of the last rank that goes on, as the ranks write it. With its standbys ftrun "
            "waits for them before the fault: that is the state of a job which has run for a minute. All programs ran "
            "with `PYTHONWARNINGS=ignore`, since the old package `pynvml` prints a warning, and an import that prints "
            f"makes ftrun start cold. The programs run in turn, {runs} times; cells are medians with the 10th and 90th "
            f"percentile. The machine has {os.cpu_count()} cores, its load was {load:.0f}; importing PyTorch in one "
            f"process took {spread(imports)} s meanwhile: compare the programs, not the seconds.",
        ),
        ("program", "retry: s", "steps redone, new processes", "death: s", "steps redone, new processes"),
        (*rows, *((name, cost, "", "", "") for name, cost in (() if short else overhead()))),
        (
            "In-process restart goes on with three ranks, since it cannot start a process; it has its default "
            "intervals of a second, and a timeout of 5 s for gloo, without which the other ranks wait for the one that "
            "asks for a retry. torchft goes on with three replicas until the new process has joined, which is the time "
            "here; an exception in a replica ends its process. torchrun starts all ranks again, "
            "which load the checkpoint that rank 0 writes after each step (with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, "
            "without which gloo cannot connect after the restart). The rows of ftrun's costs are of one "
            "process: a loop that does nothing else, and the copy of a tensor into snapshots whose pages exist.",
        ),
    )


def _better(found: dict[tuple[str, str], list[Found | None]], fault: str) -> str:
    """Who was faster than ftrun without standbys; empty: nobody."""
    medians = {
        title: statistics.median(one.seconds for one in samples if one is not None)
        for (title, of), samples in found.items()
        if of == fault and any(samples)
    }
    own = medians.get("ftrun")
    faster = [way for way in WAYS if own is not None and not way.title.startswith("ftrun") and way.title in medians]
    names = [f"{way.title} ({medians[way.title]:.2f} s)" for way in faster if medians[way.title] < (own or 0.0)]
    what = "a retry" if fault == "retry" else "the death of a rank"
    return f"**Faster than ftrun ({own:.2f} s) after {what}: {', '.join(names)}.**" if names else ""


def _cells(given: Sequence[Found | None] | None) -> tuple[str, str]:
    samples = [one for one in given or () if one is not None]
    if not samples:
        return ("–", "–") if not given else (f"not within {DEADLINE:.0f} s", "–")
    seconds = [one.seconds for one in samples]
    cell = f"{statistics.median(seconds):.2f}"
    if len(seconds) > 1:
        cell += f" ({percentile(seconds, 0.1):.2f} to {percentile(seconds, 0.9):.2f})"
    if given is not None and len(samples) < len(given):
        cell += f"; {len(given) - len(samples)} of {len(given)} not within {DEADLINE:.0f} s"
    return cell, f"{max(one.redone for one in samples)}, {max(one.processes for one in samples)}"
