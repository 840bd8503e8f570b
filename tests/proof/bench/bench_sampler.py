"""What a look of the sampler costs: `python tests/proof/bench/bench_sampler.py [PROCESSES] [LOOKS]`.

A tree of 300 processes, every tenth with 50 threads; at the default period of 60 s at most 0.3 % of a core is allowed.
"""

import os
import signal
import statistics
import sys
import threading
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[3] / "supervisor")]

from ftrun.helpers.sampler.__main__ import processes  # noqa: E402
from ftrun.helpers.sampler.counters import Count, Process, activity, counts  # noqa: E402
from ftrun.messages.activity import SampledTree  # noqa: E402
from ftrun.pid1.clients.base import LONGEST_PERIOD  # noqa: E402

THREADS = 50
ALLOWED = 0.003  # of a core


def main(number: int = 300, looks: int = 30) -> None:
    root = grow(number)
    try:
        before: dict[Process, Count] = {}
        costs = []
        for _ in range(looks):
            began = time.process_time()
            after = counts(processes(SampledTree(root, ()), before))
            activity(before, after)
            costs.append(1e3 * (time.process_time() - began))
            before = after
            time.sleep(0.1)
    finally:
        os.killpg(root, signal.SIGKILL)
        os.waitpid(root, 0)
    low, middle, high = statistics.quantiles(costs, n=4)
    share = middle / 1e3 / LONGEST_PERIOD
    print(
        f"{len(before)} processes, {looks} looks: "
        f"{middle:.1f} ms of CPU (quartiles {low:.1f} to {high:.1f}, worst {max(costs):.1f}); "
        f"each {LONGEST_PERIOD:.0f} s: {share:.3%} of a core ({ALLOWED:.1%} allowed)"
    )


def grow(number: int) -> int:
    """The first process of a tree, once all of it stands."""
    ready, started = os.pipe()
    root = os.fork()
    if root == 0:
        os.setpgid(0, 0)
        for index in range(number - 1):
            if os.fork() == 0:
                for _ in range(THREADS if index % 10 == 0 else 0):
                    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
                break
        os.write(started, b".")
        while True:
            signal.pause()  # a quiet process, until the end of the bench
    os.close(started)
    running = 0
    while running < number:
        running += len(os.read(ready, number))
    return root


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
