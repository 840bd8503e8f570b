"""What it costs to follow the paces of a node's ranks: `python tests/proof/bench/bench_paces.py [RANKS] [SECONDS]`.

As the messenger does it: five glances a second at each main thread, one look a second at the beat file.  Eight ranks
that sleep and wait; at most 0.5 % of a core is allowed.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[3] / folder) for folder in ("supervisor", "hooks")]

from ftrun.helpers.messenger.paces import Paces  # noqa: E402
from ftrun.helpers.messenger.steps import read_slots  # noqa: E402
from ftrun_hooks import layout as at  # noqa: E402

ALLOWED = 0.005  # of a core
PERIODS = 10
RANK = """import sys, time
sys.path.insert(0, sys.argv[1])
import ftrun_hooks as ft
for step in range(10**6):
    time.sleep(0.1)
    ft.beat(step)
"""


def main(number: int = 8, seconds: float = 30.0) -> None:
    hooks = str(Path(__file__).resolve().parents[3] / "hooks")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        words = memoryview(bytearray(at.FILE_BYTES)).cast("Q")
        words[at.H_MAGIC] = at.MAGIC
        Path(at.BEATS).write_bytes(words)
        environment = os.environ | {"FTRUN_BEAT_DIR": folder}
        ranks = [
            subprocess.Popen([sys.executable, "-c", RANK, hooks], env=environment | {"RANK": str(rank)})
            for rank in range(number)
        ]
        try:
            while len(read_slots(folder)) < number:
                time.sleep(0.1)
            shares = measure(folder, seconds)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        os.chdir("/")
    low, middle, high = (100 * part for part in statistics.quantiles(shares, n=4))
    load = os.getloadavg()[0]
    print(
        f"{number} ranks, {PERIODS} times {seconds / PERIODS:.0f} s: {middle:.3f} % of a core "
        f"(quartiles {low:.3f} to {high:.3f}; {100 * ALLOWED:.1f} % allowed); load {load:.1f}"
    )


def measure(folder: str, seconds: float) -> list[float]:
    """The CPU time of each period, as a share of it, without that of the waits in between."""
    paces, shares = Paces(None), []
    for _ in range(PERIODS):
        began, used = time.monotonic(), 0.0
        while (now := time.monotonic()) < began + seconds / PERIODS:
            time.sleep(max(0.0, min(paces.due, began + seconds / PERIODS) - now))
            before = time.process_time()
            paces.follow(partial(read_slots, folder), 1, time.monotonic())
            used += time.process_time() - before
        shares.append(used / (time.monotonic() - began))
    return shares


if __name__ == "__main__":
    main(*(kind(text) for kind, text in zip((int, float), sys.argv[1:], strict=False)))
