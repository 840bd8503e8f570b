"""What capturing costs: `python tests/proof/bench/bench_output.py [MIB] [RUNS]`.

How fast a command that only writes gets rid of MIB MiB, captured and bare, to a pipe that is read, a file and one that
is appended to; how long a line is under way.  Goal: 200 MiB/s.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[3]
WRITE = "import os, sys\ndata = os.urandom(1 << 16)\nfor _ in range(16 * int(sys.argv[1])): os.write(1, data)"
LINES = """import os, time
for _ in range(200):
    time.sleep(0.005)
    os.write(1, b"%d\\n" % time.monotonic_ns())
"""
READ = "import os\nwhile os.read(0, 1 << 16): pass"
TARGETS = ("pipe", "file", "append")


def main(size: int = 512, runs: int = 9) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for target in TARGETS:
            speeds: dict[bool, list[float]] = {False: [], True: []}
            costs: dict[bool, list[float]] = {False: [], True: []}
            kept = 0
            for _ in range(runs):
                for captured in (False, True):
                    Path(folder, "out").unlink(missing_ok=True)
                    Path(folder, "output.log").unlink(missing_ok=True)
                    seconds, cpu = took(folder, target, captured, size)
                    speeds[captured].append(size / seconds)
                    costs[captured].append(1e3 * cpu / (size / 1024))
                kept += Path(folder, "output.log").stat().st_size >> 20
            print(
                f"{target:6}: captured {spread(speeds[True])} MiB/s, bare {spread(speeds[False])} MiB/s; "
                f"{kept / (runs * size):.0%} of it in the log\n"
                f"        CPU, all processes: captured {spread(costs[True])} ms/GiB, bare {spread(costs[False])} ms/GiB"
            )
        for captured in (False, True):
            print(f"a line {'captured' if captured else 'bare':8}: {spread(latencies(folder, captured))} us")


def took(folder: str, target: str, captured: bool, size: int) -> tuple[float, float]:
    """Seconds from its start to its end, and of CPU, without those of a command that writes nothing."""
    times = []
    for each in (0, size):
        words = [*command(folder, captured), "-c", WRITE, str(each)]
        began, before = time.perf_counter(), os.times()
        if target == "pipe":
            with subprocess.Popen([sys.executable, "-c", READ], stdin=subprocess.PIPE) as reader:
                subprocess.run(words, check=True, stdout=reader.stdin)
        else:
            with Path(folder, "out").open("ab" if target == "append" else "wb") as stream:
                subprocess.run(words, check=True, stdout=stream)
        after = os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        times.append((time.perf_counter() - began, cpu))
    return times[1][0] - times[0][0], times[1][1] - times[0][1]


def latencies(folder: str, captured: bool) -> list[float]:
    found = []
    words = [*command(folder, captured), "-c", LINES]
    with subprocess.Popen(words, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        while content := os.read(process.stdout.fileno(), 4096):
            found.append((time.monotonic_ns() - int(content.split()[-1])) / 1e3)
    return found[20:]  # the helper has started


def command(folder: str, captured: bool) -> list[str]:
    return [
        *([sys.executable, str(HOUSE / "tests" / "support" / "capturing.py"), folder, "1"] if captured else []),
        sys.executable,
    ]


def spread(samples: list[float]) -> str:
    low, middle, high = statistics.quantiles(samples, n=4)
    return f"{middle:.0f} (quartiles {low:.0f} to {high:.0f}, {min(samples):.0f} to {max(samples):.0f})"


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
