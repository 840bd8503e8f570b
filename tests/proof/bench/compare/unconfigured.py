"""A deadlock under each program without any option: which ones notice it, and when."""

from __future__ import annotations

import contextlib
import os
import time

from proof.bench.compare.kit import contained, made_by
from proof.bench.compare.peers import OURS, PYTHON, Peer, installed
from proof.bench.compare.trainees import Mortal, apart, outside
from support.measured import Measured, spread
from support.runs import wait_for

NAME = "45-unconfigured"
PATIENCE = 180.0  # s
RUNS = 3
# A loop that computes and writes its state, as a training would; then the main thread waits for a lock that it holds.
COMMAND = """import os, threading, time
lock = threading.Lock()
for step in range(100):
    with open('state', 'w') as file:
        file.write(str(sum(range(20000))))
    time.sleep(0.02)
print('stuck', os.getpid(), flush=True)
lock.acquire()
lock.acquire()
"""


def noticed(peers: list[Peer], within: float) -> dict[Peer, float | None]:
    """Seconds from the deadlock to the death of the process, under all of them at the same time; None: it lives."""
    with contextlib.ExitStack() as stack:
        runs = {peer: stack.enter_context(contained(apart(peer), *PYTHON, "-c", COMMAND)) for peer in peers}
        ranks = {}
        for peer, run in runs.items():
            line = wait_for(lambda run=run: stuck(run.output), f"the deadlock under {peer.name}", 60)  # type: ignore[misc]
            ranks[peer] = time.monotonic(), stack.enter_context(Mortal(outside(run, int(line))))
        found: dict[Peer, float | None] = {}
        for peer, (began, rank) in ranks.items():
            died = rank.died(max(0.0, began + within - time.monotonic()))
            found[peer] = None if died is None else died - began
        return found


def stuck(output: str) -> str:
    """The pid that the command has printed; empty if it has not yet."""
    return next(
        (line.split()[-1] for line in output.splitlines() if "stuck " in line and line.split()[-1].isdigit()), ""
    )


def measure(short: bool) -> Measured:
    peers = [peer for peer in installed() if peer.name != "bare"]
    samples: dict[Peer, list[float | None]] = {peer: [] for peer in peers}
    for number in range(1 if short else RUNS):
        for peer, seconds in noticed(peers if number == 0 else [OURS], PATIENCE).items():
            samples[peer].append(seconds)
    rows = []
    for peer, found in samples.items():
        seen = [seconds for seconds in found if seconds is not None]
        missed = f"; {len(found) - len(seen)} times not" if len(seen) < len(found) else ""
        cell = spread(seen, unit=" s") + missed if seen else f"not within {PATIENCE:.0f} s"
        rows.append((peer.titled, cell, str(len(found))))
    return Measured(
        NAME,
        "A deadlock without any configuration",
        made_by(NAME),
        (
            "The main thread of a command waits for a lock that it holds itself. Neither the program nor the command "
            "has an option, a heartbeat or a timeout. The time is that from the deadlock to the death of the process.",
        ),
        ("program", "until its end", "runs"),
        tuple(rows),
        (
            "**A program with a timeout of its own is faster** once somebody has chosen that timeout (the previous "
            "figure). None of the others has a default that looks at a command which sends no heartbeats: a "
            "communication library would end its own collectives after 10 or 30 minutes, and this command has none. "
            f"The load of the machine was {os.getloadavg()[0]:.0f}.",
        ),
    )
