"""Memory, threads and CPU of all processes that supervise, at rest, with 1 to 512 ranks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from proof.bench.compare import peers
from proof.bench.compare.kit import contained, made_by
from support.measured import Measured, Plot, Series
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
    "All processes that are there besides the command: of ftrun PID 1 and its helpers, of ft_launcher its rank "
    "monitors, one a rank. Memory is PSS, which shares out a page among those that map it; RSS counts it in each of "
    f"them. CPU is the share of one core over {SPAN:.0f} s at rest, one sample each. *More helpers*: with `"
    + " ".join(MORE)
    + "`, which start the sampler, the watcher of checkpoints and the exporter.",
    "Under ftrun the ranks beat once a second; under tini and dumb-init the same program runs, without beats. The "
    "others start their ranks themselves, as `sleep`: what ft_launcher's monitors do at a heartbeat is not in its "
    "figures. No accelerator, one node.",
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
    found = peers.installed()[1:]  # bare has no such process
    shown: list[tuple[peers.Peer, str, Sequence[str]]] = [(peer, peer.titled, ()) for peer in found]
    shown.insert(1, (peers.OURS, "ftrun, more helpers", MORE))
    rows, lines = [], []
    for peer, name, options in shown:
        seen = [(size, footprint(peer, size, settle, span, options)) for size in sizes]
        rows += [(name if size == sizes[0] else "", str(size), *cells(of)) for size, of in seen]
        lines.append(Series(name, tuple((size, (of.pss,)) for size, of in seen if isinstance(of, Footprint))))
    return Measured(
        NAME,
        "What supervising costs at rest",
        made_by(NAME),
        BEFORE,
        ("program", "ranks", "processes", "threads", "PSS, MiB", "RSS, MiB", "CPU, % of a core"),
        tuple(rows),
        tuple(reasons(found)),
        Plot("lines", "ranks", "PSS, MiB", tuple(lines), log_x=True, log_y=True),
    )


def cells(found: Footprint | str) -> tuple[str, ...]:
    if isinstance(found, str):
        return (found, "", "", "", "")
    sizes = (rounded(found.pss), rounded(found.rss), f"{found.cpu * 100:.2f}")
    return (str(found.processes), str(found.threads), *sizes)


def footprint(peer: peers.Peer, size: int, settle: float, span: float, options: Sequence[str] = ()) -> Footprint | str:
    """Or why there is none."""
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
        time.sleep(settle)  # what its start has to do is done
        pids = [pid for pid in run.living() if cmdline(pid) != rank]
        return taken(pids, span)


def taken(pids: list[int], span: float) -> Footprint:
    before, began = sum(map(cpu, pids)), time.monotonic()
    time.sleep(span)  # this is the span of which the CPU is told
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
    """Seconds, of all its threads, to the nanosecond."""
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
    """Where others need less, and why."""
    names = {peer.name for peer in found}
    said = []
    if names & {"tini", "dumb-init"}:
        said.append(
            "**tini and dumb-init need less, by a hundred times**: they are C, pass signals on, reap, and do nothing "
            "else. The floor of a supervisor in Python is an idle interpreter, 6 to 7 MiB. ftrun has one for PID 1 and "
            "one for the messenger, which is all of its network; others only where there is work, 8 MiB each."
        )
    if names & {"supervisord", "circusd"}:
        said.append(
            "**supervisord needs some MiB less where ranks are few, and both need less than ftrun with all of its "
            "helpers**: they are one process, which knows exit codes only, and what blocks a part of it blocks all. "
            "With their children they grow, in memory and CPU; ftrun's beats lie in a shared memory file of 0.6 MiB, "
            "however many ranks there are."
        )
    return said
