"""A beat against the heartbeat of nvidia-resiliency-ext, in turn in one run: `python tests/bench/bench_nvrx.py`.

In a tight loop, and at one call in 2 ms, where caches are cold and a server has to wake up.
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
from typing import Any

HOUSE = Path(__file__).resolve().parents[2]
ROUNDS = 15
TIGHT, SLOW = 2_000, 200  # calls a round
PAUSE = 0.002  # s


def main() -> None:
    sys.path[:0] = [str(HOUSE / "hooks"), str(HOUSE / "tests")]
    if len(sys.argv) == 1:
        from beat_file import BeatDir

        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            beats = BeatDir(Path(folder, "beats"))
            more = os.environ.get("PYTHONPATH", "").split(os.pathsep)
            env = beats.environment()
            env["PYTHONPATH"] = os.pathsep.join([env["PYTHONPATH"], *more])
            subprocess.run([sys.executable, __file__, "measure"], env=env, check=True)
            beats.close()
        return
    import ftrun_hooks as ft

    steps = iter(range(1 << 40))
    calls: dict[str, Callable[[], object]] = {"ft.beat(step)": lambda: ft.beat(next(steps))}
    with tempfile.TemporaryDirectory() as folder:
        server: Any = None
        try:
            server, calls["nvidia-resiliency-ext"] = nvrx(f"{folder}/monitor")
        except ImportError as error:
            print(f"nvidia-resiliency-ext: not installed ({error})")
        seen: dict[tuple[str, str], list[float]] = {}
        for _ in range(ROUNDS):
            for name, call in calls.items():
                seen.setdefault((name, "in a tight loop"), []).append(tight(call))
                seen.setdefault((name, "one call in 2 ms"), []).append(statistics.median(slow(call)))
        for (name, how), costs in sorted(seen.items(), key=lambda item: item[0][1]):
            low, middle, high = statistics.quantiles(costs, n=4)
            print(f"{how:17} {name:22} median {middle:8.0f} ns   quartiles {low:.0f} to {high:.0f}")
        for how in ("in a tight loop", "one call in 2 ms") if len(calls) > 1 else ():
            ratios = [b / a for a, b in zip(*(seen[name, how] for name in calls), strict=True)]
            print(f"{how:17} {statistics.median(ratios):.0f} times cheaper (least {min(ratios):.0f})")
        if server is not None:
            server.kill()


def nvrx(path: str) -> tuple[Any, Callable[[], object]]:
    """Its monitor in a process of its own, and the call of a client that is connected to it."""
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", FT_RANK_MONITOR_IPC_SOCKET=path)
    import torch.multiprocessing as mp
    from nvidia_resiliency_ext.fault_tolerance import FaultToleranceConfig, RankMonitorClient
    from nvidia_resiliency_ext.fault_tolerance.rank_monitor_server import RankMonitorServer

    server = RankMonitorServer.run_in_subprocess(FaultToleranceConfig(), path, mp_ctx=mp.get_context("spawn"))
    client = RankMonitorClient()
    client.init_workload_monitoring()
    return server, client.send_heartbeat


def tight(call: Callable[[], object]) -> float:
    began = time.perf_counter_ns()
    for _ in range(TIGHT):
        call()
    return (time.perf_counter_ns() - began) / TIGHT


def slow(call: Callable[[], object]) -> list[int]:
    costs = []
    for _ in range(SLOW):
        time.sleep(PAUSE)
        began = time.perf_counter_ns()
        call()
        costs.append(time.perf_counter_ns() - began)
    return costs


if __name__ == "__main__":
    main()
