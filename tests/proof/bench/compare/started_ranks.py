"""Time from the exec of a launcher to the first line of its last rank, and from the failure of a rank to that of the
last new one."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from proof.bench.compare import peers
from proof.bench.compare.kit import Launched, made_by
from proof.bench.compare.plain import by_plain, plain
from support.measured import Measured, spread

NAME = "15-started-ranks"
SCRIPT: Final = Path(__file__).with_name("first_line.py")
SIZES: Final = (1, 8, 64)
TORCH_SIZES: Final = (1,)
FAILING: Final = 8
DEADLINE: Final = 300.0  # s; PyTorch is imported by several ranks at once
LOOP: Final = "a loop of forks"
FORKS: Final = """
import os, sys
size, command = int(sys.argv[1]), sys.argv[2:]
for rank in range(size):
    if os.fork() == 0:
        os.execve(command[0], command, os.environ | {"RANK": str(rank), "WORLD_SIZE": str(size)})
for rank in range(size):
    os.wait()
"""
BEFORE: Final = (
    "The first columns are the time in seconds from the exec of the program to the first line of its last rank: of "
    "a Python program that only writes this line, and of one that imports PyTorch before. The last column is "
    f"the time from the order to one of {FAILING} ranks to fail until the first line of the last new rank; each "
    "of these programs ends and starts all of them. The programs run in turn, round by round. *A loop of forks* is a "
    "Python program that forks and executes each rank, and does nothing else; the time relative to it is computed in "
    "a round. ftrun has `--restart-on failure --backoff 10ms`, since the others do not wait before a restart.",
    "The machine was shared with other work while this was measured: compare the programs, not the seconds with those "
    "of a quiet machine. More ranks that import PyTorch were not measured.",
)

WHY: Final = (
    "**ftrun needs a second longer for the restart**: the rank exits with 1 and leaves no exception, so that ftrun "
    "waits for a second whether another rank has one, which would be the cause. A rank that leaves an exception is not "
    "waited for.",
)


def measure(short: bool) -> Measured:
    launchers = peers.installed(peers.OURS, peers.TORCHRUN, peers.FT_LAUNCHER)
    names = [LOOP, *(peer.titled for peer in launchers)]
    sizes = SIZES[:1] if short else SIZES
    columns: list[tuple[int, tuple[str, ...]]] = [(size, ()) for size in sizes]
    columns += [(size, ("torch",)) for size in TORCH_SIZES if not short]
    found: dict[tuple[str, int, tuple[str, ...]], list[float]] = {}
    for size, asked in columns:
        for _ in range(1 if short else 3 if asked or size == SIZES[-1] else 7):
            for name, peer in zip(names, (None, *launchers), strict=True):
                found.setdefault((name, size, asked), []).append(started(peer, size, *asked))
    again: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(0 if short else 5):
        for peer in launchers:
            again[peer.titled].append(started_again(peer))
    rows = []
    for name in names:
        seconds = [found[name, *column] for column in columns]
        loops = [found[LOOP, *column] for column in columns]
        cells = [spread(ours) for ours in seconds]
        ratios = [ratio(ours, theirs) for ours, theirs in zip(seconds, loops, strict=True)]
        mixed = [f"{cell}; {part}" if name != LOOP else cell for cell, part in zip(cells, ratios, strict=True)]
        rows.append((name, *mixed, spread(again[name]) if again[name] else "–"))
    head = [f"{several(size)}{', PyTorch' if asked else ''}" for size, asked in columns]
    return Measured(
        NAME,
        "Start of the ranks of a node",
        made_by(NAME),
        BEFORE,
        ("program", *head, f"a rank of {FAILING} fails"),
        tuple(rows),
        () if short else WHY,
    )


def several(size: int) -> str:
    return f"{size} rank{'s' if size > 1 else ''}"


def ratio(ours: list[float], theirs: list[float]) -> str:
    return f"{spread([a / b for a, b in zip(ours, theirs, strict=True)])} times"


class Ranks(Launched):
    """One launcher and its ranks."""

    def __init__(self, folder: Path, peer: peers.Peer | None, size: int, *asked: str) -> None:
        super().__init__(folder)
        self.size = size
        rank = [plain(), str(SCRIPT), str(self.fifo), *asked]
        options = ["--restart-on=failure", "--backoff=10ms"] if peer is peers.OURS else ["--max-restarts=3"]
        if peer is None:
            arguments = [plain(), "-c", FORKS, str(size), *rank]
        elif peer is peers.OURS:
            arguments = peer.command(folder, *rank, options=[f"--nproc-per-node={size}", *options])
        else:
            arguments = peer.command(folder, *rank, ranks=size, options=options)
        self.start(by_plain(arguments))

    def until(self, restarts: int) -> float:
        """When the last rank of this start has written its line."""
        until = time.monotonic() + DEADLINE
        while True:
            lines = self.content.splitlines()
            if sum(line.endswith(b" %d" % restarts) for line in lines) == self.size:
                return time.monotonic()
            assert self.read(until - time.monotonic()), f"only {lines} within {DEADLINE:.0f} s"


@contextmanager
def launched(peer: peers.Peer | None, size: int, *asked: str) -> Iterator[Ranks]:
    with tempfile.TemporaryDirectory(prefix="ftrun-bench-") as name:
        found = Ranks(Path(name), peer, size, *asked)
        try:
            yield found
        finally:
            found.end()


def started(peer: peers.Peer | None, size: int, *asked: str) -> float:
    with launched(peer, size, *asked) as run:
        return run.until(0) - run.began


def started_again(peer: peers.Peer) -> float:
    with launched(peer, FAILING, "fail") as run:
        run.until(0)
        began = time.monotonic()
        run.fifo.with_name(f"{run.fifo.name}.fail").touch()
        return run.until(1) - began
