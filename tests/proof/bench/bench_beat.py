"""What a beat costs: `python tests/proof/bench/bench_beat.py`.

It prints nanoseconds a call, the loop around it not counted.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[3]
CALLS = 20_000
ROUNDS = 41


def main() -> None:
    sys.path[:0] = [str(HOUSE / "hooks"), str(HOUSE / "tests")]
    if len(sys.argv) > 1:
        return measure(*sys.argv[1:])
    from support.beat_file import BeatDir

    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        beats = BeatDir(Path(folder, "beats"))
        for place, env in (("outside", beats.environment(FTRUN_BEAT_DIR="")), ("inside", beats.environment())):
            for call in ("beat()", "beat(step)", "section"):
                subprocess.run([sys.executable, __file__, place, call], env=env, check=True)
        beats.close()
    return None


def measure(place: str, call: str) -> None:
    import ftrun_hooks as ft

    def enter_and_leave(_: int) -> None:
        with ft.section("s"):
            pass

    calls: dict[str, Callable[[int], object]] = {
        "beat()": lambda _: ft.beat(),
        "beat(step)": ft.beat,
        "section": enter_and_leave,
    }
    # A lambda around beat() would be counted with it: what it costs alone is taken off.
    alone: Callable[[int], object] | None = (lambda _: None) if call == "beat()" else None
    costs = []
    for number in range(ROUNDS):
        steps = range(number * CALLS, (number + 1) * CALLS)
        costs.append((timed(calls[call], steps) - timed(alone, steps)) / CALLS)
    low, middle, high = statistics.quantiles(costs, n=4)
    print(f"{place:8} {call:11} median {middle:6.0f} ns   quartiles {low:.0f} to {high:.0f}", flush=True)


def timed(call: Callable[[int], object] | None, steps: range) -> float:
    began = time.perf_counter_ns()
    if call is None:
        for _ in steps:
            pass
    else:
        for step in steps:
            call(step)
    return time.perf_counter_ns() - began


if __name__ == "__main__":
    main()
