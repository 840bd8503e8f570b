"""Time to the command's first instruction, against `python3 -c pass` and the bare command."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from proof.bench.compare import peers
from proof.bench.compare.kit import made_by, settled
from proof.bench.compare.plain import by_plain, plain
from support.measured import Measured, spread

NAME = "10-first-instruction"
FLOOR = "python3 -c pass"
DEADLINE = 60.0  # s
BEFORE = (
    "This is the time in milliseconds from the exec of the program to the first instruction of its command, "
    "`sh -c 'echo > FIFO'`, as the reader of the FIFO observes it; the start of `sh` is therefore included everywhere. "
    "The files are cached. The programs run in turn, round by round, and each ratio is computed within a round. All "
    "programs that are written in Python use the same interpreter, without the `.pth` files of this environment: the "
    "one of `pynvml`, which nvidia-resiliency-ext installs, alone adds 20 ms to each start of Python.",
)
WHY = {
    "tini": "**tini and dumb-init are faster by the time that Python needs to start.** They are C programs of some "
    "tens of kilobytes; ftrun is a Python program, and its lower bound is `python3 -c pass`. Before ftrun starts the "
    "command, it reads its options, creates the run dir and the beat folder, and writes the first record to disk; its "
    "helpers start after the command. A training job spends seconds on `import torch`; the time that ftrun adds is "
    "needed once for each start of the container, and not for a restart in place.",
    "supervisord": "supervisord waits for a second before it starts anything, because its loop runs once a second.",
}


def measure(short: bool) -> Measured:
    found = peers.installed()
    names = [FLOOR, *(peer.titled for peer in found)]
    seen: dict[str, list[float]] = {name: [] for name in names}
    rounds, warm = (3, 1) if short else (21, 2)
    for number in range(rounds + warm):
        took = {FLOOR: python()} | {peer.titled: first_instruction(peer) for peer in found}
        for name in names if number >= warm else ():
            seen[name].append(took[name])
    rows = [(name, spread(seen[name]), ratio(seen[name], seen["bare"]), ratio(seen[name], seen[FLOOR]))
            for name in names]  # fmt: skip
    after = [reason for name, reason in WHY.items() if any(peer.name == name for peer in found)]
    return Measured(
        NAME,
        "Time to the command's first instruction",
        made_by(NAME),
        BEFORE,
        ("program", "ms", "relative to the bare command", f"relative to `{FLOOR}`"),
        tuple(rows),
        tuple(after),
    )


def ratio(ours: list[float], theirs: list[float]) -> str:
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


def python() -> float:
    began = time.perf_counter()
    subprocess.run([plain(), "-c", "pass"], check=True, env=settled())
    return (time.perf_counter() - began) * 1e3


def first_instruction(peer: peers.Peer) -> float:
    with tempfile.TemporaryDirectory(prefix="ftrun-bench-") as name:
        folder = Path(name)
        fifo = folder / "first"
        os.mkfifo(fifo)
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        arguments = by_plain(peer.command(folder, "sh", "-c", f"echo > {fifo}"))
        nothing = subprocess.DEVNULL
        began = time.perf_counter()
        process = subprocess.Popen(
            arguments, stdin=nothing, stdout=nothing, stderr=nothing, cwd=folder, env=settled() | {"TMPDIR": name},
            start_new_session=True,
        )  # fmt: skip
        try:
            arrived, _, _ = select.select([reader], [], [], DEADLINE)
            took = (time.perf_counter() - began) * 1e3
            assert arrived, f"{peer.name} did not start its command"
            if peer not in (peers.SUPERVISORD, peers.CIRCUSD):  # these do not end, and would start the command again
                process.wait(DEADLINE)
            return took
        finally:
            os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
            process.wait()
            os.close(reader)
