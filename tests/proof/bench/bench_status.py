"""How long `ftctl status` takes, Python's start included: `python tests/proof/bench/bench_status.py`.

Wall and CPU time of the program from the checkout, with an `events.jsonl` of 10 MB, and of `read_snapshot` alone, as
`top` and the page call it: the wall time says little on a machine that is busy.  All ranks have beaten just now, or
none for long (each is asked whether its process lives).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

HOUSE = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(HOUSE / "supervisor"), str(HOUSE / "hooks"), str(HOUSE / "tests")]

from ftrun.records.run_snapshot import read_snapshot  # noqa: E402
from support.made_run import MadeRun  # noqa: E402

PROGRAM = str(HOUSE / "bin" / "ftctl")
RECORDS = 10 << 20  # bytes
ROUNDS = 30
T = TypeVar("T")


def main() -> None:
    started = times(run_to_its_end, [sys.executable, "-c", "pass"])
    report("python -c pass", started)
    for ranks in (1, 64, 1024):
        for moved in (0.5, 90.0):
            with tempfile.TemporaryDirectory() as folder:
                run = MadeRun(Path(folder))
                try:
                    path = prepared(run, ranks, moved)
                    name = f"{ranks} ranks, {'all beat' if moved < 1 else 'none beats'}"
                    report(f"{name}, read_snapshot", times(read_snapshot, path))
                    command = [sys.executable, PROGRAM, "status", "--run-dir", path]
                    report(f"{name}, status", times(run_to_its_end, command))
                finally:
                    run.close()


def prepared(run: MadeRun, ranks: int, moved: float) -> str:
    run.record("started", reason="first", start_cnt=1)
    run.record("spawned", pid=1)
    size = 0
    while size < RECORDS:
        run.record("progress", by="checkpoint", step=len(run.lines), checkpoint=f"/checkpoints/{len(run.lines)}")
        size += len(run.lines[-1])
    for rank in range(ranks):
        run.rank(rank, moved)
    return run.write()


def run_to_its_end(command: list[str]) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def times(call: Callable[[T], object], what: T) -> list[tuple[float, float]]:
    """Wall and CPU, of children as well, in ms."""
    found = []
    for _ in range(ROUNDS):
        began, used = time.perf_counter(), sum(os.times()[:4])
        call(what)
        found.append(((time.perf_counter() - began) * 1e3, (sum(os.times()[:4]) - used) * 1e3))
    return found


def report(name: str, found: list[tuple[float, float]]) -> None:
    wall, cpu = ([pair[number] for pair in found] for number in (0, 1))
    low, middle, high = statistics.quantiles(wall, n=4)
    figures = f"median {middle:6.1f} ms   quartiles {low:.1f} to {high:.1f}   worst {max(wall):.1f}"
    print(f"{name:28} {figures}   CPU {statistics.mean(cpu):.1f}")


if __name__ == "__main__":
    main()
