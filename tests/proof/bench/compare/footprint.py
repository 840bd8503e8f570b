"""Memory, threads and CPU of all processes of an idle supervisor, with 1 to 512 ranks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from proof.bench.compare import peers
from proof.bench.compare.kit import contained, made_by
from support.measured import Measured
from support.measured import short as rounded
from support.runs import wait_for

NAME = "20-footprint"
SIZES = (1, 8, 64, 512)
SETTLE, SPAN = 3.0, 5.0  # s
START = 180.0  # s; until all ranks are there
RANKS = str(Path(__file__).with_name("ranks.py"))
SLEEP = ("sleep", "86400")
MORE = ("--idle-timeout=30m", "--progress=checkpoint-*", "--metrics=127.0.0.1:0")
BEFORE = (
    "The figures include all processes except those of the command: for ftrun PID 1 and its helpers, for ft_launcher "
    "also its rank monitors, one for each rank. Memory is given as PSS, which divides a shared page among the "
    f"processes that map it, and as RSS, which counts it in each of them. CPU is the share of one core over {SPAN:.0f} "
    "s at rest, from one sample each. *More helpers*: ftrun runs with `"
    + " ".join(MORE)
    + "`, which starts the sampler, the checkpoint watcher and the metrics exporter.",
    "Under ftrun each rank sends a heartbeat every second; under tini and dumb-init the same program runs without "
    "heartbeats. The other programs start their ranks themselves, with `sleep` as the command, so the work of "
    "ft_launcher's monitors for a heartbeat is not included. There is no accelerator, and one node.",
)


class Footprint(NamedTuple):
    """`pss`, `rss` in MiB; `cpu` in cores."""

    processes: int
    threads: int
    pss: float
    rss: float
    cpu: float


def measure(short: bool) -> Measured:
    settle, span, sizes = (0.5, 0.5, (1, 2)) if short else (SETTLE, SPAN, SIZES)
    found = peers.installed()[1:]  # the bare command has no supervisor
    shown: list[tuple[peers.Peer, str, Sequence[str]]] = [(peer, peer.titled, ()) for peer in found]
    shown.insert(1, (peers.OURS, "ftrun, more helpers", MORE))
    rows = []
    for peer, name, options in shown:
        seen = [(size, footprint(peer, size, settle, span, options)) for size in sizes]
        rows += [(name if size == sizes[0] else "", str(size), *cells(of)) for size, of in seen]
    return Measured(
        NAME,
        "Resources of an idle supervisor",
        made_by(NAME),
        BEFORE,
        ("program", "ranks", "processes", "threads", "PSS, MiB", "RSS, MiB", "CPU, % of a core"),
        tuple(rows),
        tuple(reasons(found)),
    )


def cells(found: Footprint | str) -> tuple[str, ...]:
    if isinstance(found, str):
        return (found, "", "", "", "")
    sizes = (rounded(found.pss), rounded(found.rss), f"{found.cpu * 100:.2f}")
    return (str(found.processes), str(found.threads), *sizes)


def footprint(peer: peers.Peer, size: int, settle: float, span: float, options: Sequence[str] = ()) -> Footprint | str:
    """The footprint, or the reason why there is none."""
    ours = (*peers.PYTHON, RANKS, str(size))
    counts = peer in (peers.SUPERVISORD, peers.CIRCUSD, peers.TORCHRUN, peers.FT_LAUNCHER)
    command = SLEEP if counts else ours
    with contained(peer, *command, ranks=size if counts else 1, options=options) as run:
        rank = "\0".join(command).encode() + b"\0"
        try:
            wait_for(lambda: sum(cmdline(pid) == rank for pid in run.living()) >= size, f"{size} ranks", START)
        except AssertionError:
            return f"not all started within {START:.0f} s"
        if peer is peers.OURS:
            wait_for((run.folder / "run" / "records.sock").exists, "the messenger, the last of its helpers")
        time.sleep(settle)  # its start is complete
        pids = [pid for pid in run.living() if cmdline(pid) != rank]
        return taken(pids, span)


def taken(pids: list[int], span: float) -> Footprint:
    before, began = sum(map(cpu, pids)), time.monotonic()
    time.sleep(span)  # the span over which CPU use is measured
    share = (sum(map(cpu, pids)) - before) / (time.monotonic() - began)
    pss, rss = (sum(memory(pid, what) for pid in pids) for what in ("Pss", "Rss"))
    threads = sum(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in pids)
    return Footprint(len(pids), threads, pss, rss, share)


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def cpu(pid: int) -> float:
    """CPU time of all its threads, in s, with a resolution of a nanosecond."""
    spent = 0
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            spent += int((thread / "schedstat").read_text().split()[0])
    return spent / 1e9


def memory(pid: int, what: str) -> float:
    """MiB."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:")) / 1024
    return 0.0


def reasons(found: list[peers.Peer]) -> list[str]:
    """Where other programs need less than ftrun, and why."""
    names = {peer.name for peer in found}
    paragraphs = []
    if names & {"tini", "dumb-init"}:
        paragraphs.append(
            "**tini and dumb-init need a hundred times less**: they are C programs that only forward signals and reap "
            "processes. The lower bound for a supervisor in Python is an idle interpreter, 6 to 7 MiB. ftrun has one "
            "for PID 1 and one for the messenger, which does all of its networking; any other helper runs only where "
            "it has work, and needs 8 MiB."
        )
    if names & {"supervisord", "circusd"}:
        paragraphs.append(
            "**supervisord needs some MiB less than ftrun when there are few ranks, and both supervisord and circusd "
            "need less than ftrun with more helpers**: each is a single process that only evaluates exit codes, and if "
            "one part of it blocks, all of it blocks. Their memory and CPU use grow with the number of children; the "
            "heartbeats of ftrun are in a shared-memory file of 0.6 MiB, whatever the number of ranks."
        )
    return paragraphs
