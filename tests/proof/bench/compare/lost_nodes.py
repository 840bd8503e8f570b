"""A node of several is lost: from the kill of its container to the first step of all nodes that train then."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from proof.bench.compare.kit import made_by
from proof.bench.compare.peers import TORCHRUN
from support.hosts import Hosts, refusal
from support.measured import Measured
from support.runs import wait_for

NAME = "95-lost-nodes"
WORK = (sys.executable, str(Path(__file__).with_name("trainee_nodes.py")))
PATIENCE = 5  # s that both wait for a lost node before fewer go on
GIVE_UP = 60.0  # s
FTRUN = "ftrun"
# Without warnings, since a standby whose imports print something is not used: PyTorch prints one where pynvml, which a
# peer requires, is installed too.  And each round of torchrun with a store of its own: with a shared one, which is the
# default, an agent that joins a later round waits for an address that rank 0 has given in the first round only.
ENVIRONMENT = {"PYTHONWARNINGS": "ignore", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class Move(NamedTuple):
    time: float
    rank: int
    size: int
    host: str


class Training:
    """Containers on hosts of their own, each with the same launcher; `nodes` of them train, and `least` are enough."""

    def __init__(self, folder: Path, who: str, nodes: int, least: int, spares: int = 0, imports: str = "") -> None:
        self.who, self.nodes, self.least, self.spares, self.imports = who, nodes, least, spares, imports
        self.hosts = Hosts(folder / "hosts", nodes + spares + 1)  # the last one is for a new container
        self.folder = folder / "shared"
        self.folder.mkdir()

    def start(self, host: int, member: int) -> None:
        """A container on that host; `member`: the number in the group of ftrun."""
        work = [*WORK, str(self.folder), *([self.imports] if self.imports else [])]
        if self.who != FTRUN:
            rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{self.hosts.hosts[0].address}:29400"]
            rendezvous += ["--rdzv-id", "job", "--rdzv-conf", f"last_call_timeout={PATIENCE},join_timeout=300"]
            nodes = f"{self.least}:{self.nodes}" if self.least < self.nodes else str(self.nodes)
            words = ["--nnodes", nodes, "--nproc-per-node", "1", "--max-restarts", "100", *rendezvous]
            local = ["--local-addr", self.hosts.hosts[host].address]
            agent = [sys.executable, "-m", "torch.distributed.run"]
            self.hosts.start(host, *words, *local, *work[1:], program=agent, environment=ENVIRONMENT)
            return
        size = f"{self.least}:{self.nodes + self.spares}"
        options = self.hosts.group(member, size, wait=f"{PATIENCE}s")
        options += ["--spares", str(self.spares), "--scale-out", "checkpoint", "--nproc-per-node", "1"]
        options += ["--progress", str(self.folder / "checkpoint-*"), "--restart-on", "hang,fault,failure"]
        options += ["--standby", "1"] if self.imports else []
        self.hosts.start(host, *options, "--grace", "2s", "--", *work, environment=ENVIRONMENT)

    def moves(self, since: float) -> list[Move]:
        try:
            lines = (self.folder / "moves").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [move for line in lines if (move := Move(**json.loads(line))).time >= since]

    def until_all(self, size: int, since: float) -> float | None:
        """When all of `size` ranks had made a first step after `since`; None: they had not within a minute."""
        until = time.monotonic() + GIVE_UP
        while time.monotonic() < until:
            found = {move.rank: move.time for move in self.moves(since) if move.size == size}
            if len(found) == size:
                return max(found.values())
            time.sleep(0.05)
        return None

    def begin(self) -> None:
        first = self.nodes + (self.spares if self.who == FTRUN else 0)  # torchrun would choose who is the spare
        for host in range(first):
            self.start(host, host)
        if self.until_all(self.nodes, 0.0) is None:
            raise AssertionError(f"{self.who} did not start: {self.hosts.log()}")
        for host in range(first, self.nodes + self.spares):
            self.start(host, host)
        time.sleep(5)  # the spare has come too
        if self.imports and self.who == FTRUN:
            last = self.hosts.last
            wait_for(lambda: all("ready" in [r["what"] for r in one.named("standby")] for one in last), "standbys", 180)

    def kill(self, host: int) -> float:
        newest = [container for container in self.hosts.started if container.rank == host][-1]
        since = time.monotonic()
        newest.kill()
        return since


class Took(NamedTuple):
    """`seconds`: None if it was not over within a minute.  `starts`: of each node that survived."""

    seconds: float | None
    starts: int


Scene = Callable[[Training], Took]


def _after(training: Training, size: int, since: float) -> Took:
    at = training.until_all(size, since)
    time.sleep(2)  # a second restart would come now
    each = [sum(move.host == f"host-{h}" for move in training.moves(since)) for h in range(len(training.hosts.hosts))]
    return Took(None if at is None else at - since, max(each))


def spare(training: Training) -> Took:
    return _after(training, training.nodes, training.kill(training.nodes - 1))


def replaced(training: Training) -> Took:
    since = training.kill(training.nodes - 1)
    training.start(training.nodes + training.spares, training.nodes - 1)
    return _after(training, training.nodes, since)


def fewer(training: Training) -> Took:
    return _after(training, training.nodes - 1, training.kill(training.nodes - 1))


def scale_out(training: Training) -> Took:
    since = training.kill(training.nodes - 1)
    if training.until_all(training.nodes - 1, since) is None:
        return Took(None, 0)
    since = time.monotonic()
    training.start(training.nodes + training.spares, training.nodes - 1)
    return _after(training, training.nodes, since)


def first_replaced(training: Training) -> Took:
    since = training.kill(0)
    training.start(0, 0)
    return _after(training, training.nodes, since)


SCENES: tuple[tuple[str, Scene, int, int, int, str], ...] = (  # nodes, least, spares, and what the program imports
    ("3 nodes and a spare, node 2 is lost", spare, 3, 2, 1, ""),
    ("the same, and the program imports PyTorch", spare, 3, 2, 1, "torch"),
    ("3 nodes, node 2 is lost, a new container comes at once", replaced, 3, 2, 0, ""),
    (f"2:3 nodes, node 2 is lost, nobody comes for {PATIENCE} s", fewer, 3, 2, 0, ""),
    ("2:3 nodes, a third comes back", scale_out, 3, 2, 0, ""),
    ("3 nodes, node 0 is lost, a new container comes at once", first_replaced, 3, 2, 0, ""),
    ("8 nodes and a spare, node 7 is lost", spare, 8, 7, 1, ""),
    (f"7:8 nodes, node 7 is lost, nobody comes for {PATIENCE} s", fewer, 8, 7, 0, ""),
)


def run(who: str, scene: Scene, nodes: int, least: int, spares: int, imports: str) -> Took:
    with tempfile.TemporaryDirectory(prefix="ftrun-bench-") as name:
        training = Training(Path(name), who, nodes, least, spares, imports)
        try:
            training.begin()
            return scene(training)
        finally:
            training.hosts.close()


def cell(took: Sequence[Took]) -> str:
    seconds = [one.seconds for one in took if one.seconds is not None]
    failed = f"{len(took) - len(seconds)} of {len(took)} not within {GIVE_UP:.0f} s"
    if not took:
        return "not measured"
    if not seconds:
        return failed
    most = max(one.starts for one in took)
    text = f"{statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f})"
    return text + (f"; {failed}" if len(seconds) < len(took) else "") + (f"; up to {most} starts" if most > 1 else "")


Samples = dict[tuple[str, str], list[Took]]  # by what happens, and the program


def measure(short: bool) -> Measured:
    if why := refusal():
        raise SystemExit(f"{NAME}: no hosts in network namespaces: {why}")
    samples: Samples = {}
    load = [os.getloadavg()[0]]
    for number in range(1 if short else 3):
        for title, scene, nodes, least, spares, imports in SCENES[:2] if short else SCENES:
            for who in [FTRUN, TORCHRUN.name] if TORCHRUN.installed else [FTRUN]:
                samples.setdefault((title, who), []).append(run(who, scene, nodes, least, spares, imports))
                print(f"{number}: {title}, {who}: {samples[title, who][-1]}", file=sys.stderr, flush=True)
                load.append(os.getloadavg()[0])
    return measured(samples, load)


def measured(samples: Samples, load: Sequence[float]) -> Measured:
    titles, peers = (list(dict.fromkeys(key[part] for key in samples)) for part in (0, 1))
    rows = tuple((title, *(cell(samples.get((title, who), [])) for who in peers)) for title in titles)
    numbers = sorted({len(took) for took in samples.values()})
    runs = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    return Measured(
        NAME,
        "A node of several is lost",
        made_by(NAME),
        (
            "Each node is a container on a host of its own, in network namespaces. The time is from the SIGKILL of a "
            'container (with "comes back": from the start of the new one) to the first step of all nodes that train '
            f"then: median (lowest to highest) of {runs} runs, in turn. One rank a node, in lockstep over TCP, "
            "which imports nothing where nothing else is said, and fails when a connection breaks.",
            f"ftrun: `--group-size 2:3 --nproc-per-node 1 --wait-peer {PATIENCE}s --scale-out checkpoint`, with a "
            "checkpoint each half second and, where there is one, `--spares 1`; where the program imports PyTorch, "
            "also `--standby 1`, so that the spare has imported it. torchrun: `--nnodes 2:3 --rdzv-backend "
            f"c10d`, `last_call_timeout={PATIENCE}`, and `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` in the environment; "
            "its spare is one more agent. Without this variable torchrun 2.13 stopped in the first of these scenes: "
            "rank 0 writes its address into the store of its first round only, and the agent that joins a later round "
            "waits for it for a minute, after which all agents end.",
        ),
        ("what happens", *(TORCHRUN.titled if who != FTRUN else who for who in peers)),
        rows,
        (
            f"The load of this machine with {os.cpu_count()} cores was {min(load):.0f} to {max(load):.0f} meanwhile. A "
            "node that survives starts once for each loss, where nothing else is said. torchrun takes an agent for "
            "lost after three missed keep-alives, 15 s by default; ftrun knows it from the end of its container. The "
            "store of torchrun's rendezvous is in the agent of node 0, so that all end with that.",
        ),
    )
