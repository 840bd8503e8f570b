"""The cost of one heartbeat for the rank, compared with a bare store to shared memory."""

from __future__ import annotations

import itertools
import json
import mmap
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proof.bench.compare import peers
from proof.bench.compare.kit import made_by, settled
from support.beat_file import BeatDir
from support.measured import Measured, spread

NAME = "30-heartbeat"
ROUNDS = (3, 25)  # for a short and for a full measurement, as the two below
TIGHT = (200, 4000)  # calls a round
SLOW = (10, 150)
PAUSE = 0.002  # s
FLOOR, OURS, OUTSIDE = "a bare store to shared memory", "`ft.beat(step)`", "`ft.beat(step)` outside ftrun"
TOUCH, NVRX = "touching a file, `os.utime`", "`RankMonitorClient.send_heartbeat()`, nvidia-resiliency-ext"
BEFORE = (
    "This is the cost in nanoseconds of one call for the rank that makes it. The calls are measured in turn, round by "
    "round: once in a tight loop, without the cost of the loop, and once at a pace of one call every 2 ms, as in a "
    "training loop, where the caches are cold and a server has to wake up. The baseline is `struct.pack_into` of eight "
    "bytes into a mapped file in `/dev/shm`. supervisord, circus, tini, dumb-init and torchrun have no heartbeats.",
)
AFTER = (
    "**A heartbeat costs more than the bare store**: it reads the clock, counts, and updates the usual interval "
    "between the heartbeats of this rank, in Python. It makes no system call, takes no lock and waits for no other "
    "process, so a supervisor that is stopped or dead does not delay the rank. A heartbeat of nvidia-resiliency-ext is "
    "a message over a socket, and the call waits for the reply: two switches between processes.",
)
Call = Callable[[], object]


def measure(short: bool) -> Measured:
    how = 0 if short else 1
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="ftrun-bench-") as folder:
        beats = BeatDir(Path(folder, "beats"))
        program = [sys.executable, __file__, folder, str(ROUNDS[how]), str(TIGHT[how]), str(SLOW[how])]
        env = settled() | {"FTRUN_BEAT_DIR": str(beats.folder), "PYTHONPATH": os.pathsep.join(sys.path)}
        ended = subprocess.run(program, env=env, capture_output=True, text=True, check=False)
        beats.close()
    assert ended.returncode == 0, ended.stderr
    tight, slow = json.loads(ended.stdout)
    rows = [
        (name, *(cell for seen in (tight, slow) for cell in (spread(seen[name]), ratio(seen, name)))) for name in tight
    ]
    return Measured(
        NAME,
        "The cost of a heartbeat for the rank",
        made_by(NAME),
        BEFORE,
        ("call", "tight loop, ns", "relative to the baseline", "one call in 2 ms, ns", "relative to the baseline"),
        tuple(rows),
        AFTER + cheaper(tight, slow),
    )


def cheaper(tight: dict[str, list[float]], slow: dict[str, list[float]]) -> tuple[str, ...]:
    """The comparison with nvidia-resiliency-ext, round by round; empty if it is not installed."""
    if NVRX not in tight:
        return ()
    fast, paced = ([a / b for a, b in zip(seen[NVRX], seen[OURS], strict=True)] for seen in (tight, slow))
    return (
        f"Compared round by round, a heartbeat of ftrun is {spread(fast, 2)} times cheaper than one of "
        f"nvidia-resiliency-ext in a tight loop (at least {min(fast):.0f} times), and {spread(paced, 2)} times cheaper "
        f"at one call every 2 ms (at least {min(paced):.0f} times).",
    )


def ratio(seen: dict[str, list[float]], name: str) -> str:
    """The cost relative to the baseline, round by round."""
    return spread([a / b for a, b in zip(seen[name], seen[FLOOR], strict=True)], 2)


# --- in a process of its own, which is a rank -------------------------------------------------------------------------


def rank(folder: Path, rounds: int, tight_calls: int, slow_calls: int) -> None:
    """Print as JSON the cost of each call in a tight loop, and one by one."""
    calls = {FLOOR: store(folder / "floor"), OURS: beat(inside=True), OUTSIDE: beat(inside=False)}
    calls[TOUCH] = touch(folder / "touch")
    server, client = nvrx(folder / "monitor")
    if server is not None:
        calls[NVRX] = client
    tight: dict[str, list[float]] = {name: [] for name in calls}
    slow: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            tight[name].append(in_a_loop(call, tight_calls))
            slow[name].append(one_by_one(call, slow_calls))
    print(json.dumps([tight, slow]), flush=True)
    if server is not None:
        server.kill()
        server.join()


def store(path: Path) -> Call:
    """The cheapest way in Python to write eight bytes to shared memory."""
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), mmap.PAGESIZE)
    put = struct.Struct("=Q").pack_into
    return lambda: put(mapped, 64, 1)


def beat(inside: bool) -> Call:
    """`inside`: whether the hooks are imported under ftrun."""
    kept = os.environ["FTRUN_BEAT_DIR"]
    os.environ["FTRUN_BEAT_DIR"] = kept if inside else ""
    for name in [name for name in sys.modules if name.startswith("ftrun_hooks")]:
        del sys.modules[name]
    import ftrun_hooks as ft

    steps = itertools.count()
    step = steps.__next__
    call = ft.beat
    call(step())  # the first call looks for ftrun
    os.environ["FTRUN_BEAT_DIR"] = kept
    return lambda: call(step())


def touch(path: Path) -> Call:
    path.touch()
    name = str(path)
    return lambda: os.utime(name)


def nvrx(path: Path) -> tuple[Any, Call]:
    """The monitor in a process of its own, and the call of a client that is connected to it.  Without
    nvidia-resiliency-ext there is neither."""
    if not peers.FT_LAUNCHER.installed:
        return None, lambda: None
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", FT_RANK_MONITOR_IPC_SOCKET=str(path))
    import torch.multiprocessing as mp
    from nvidia_resiliency_ext.fault_tolerance import FaultToleranceConfig, RankMonitorClient
    from nvidia_resiliency_ext.fault_tolerance.rank_monitor_server import RankMonitorServer

    server = RankMonitorServer.run_in_subprocess(FaultToleranceConfig(), str(path), mp_ctx=mp.get_context("spawn"))
    client = RankMonitorClient()
    client.init_workload_monitoring()
    return server, client.send_heartbeat


def in_a_loop(call: Call, calls: int) -> float:
    """ns per call, without the cost of the loop."""
    costs = []
    for function in (call, nothing):
        began = time.perf_counter_ns()
        for _ in range(calls):
            function()
        costs.append((time.perf_counter_ns() - began) / calls)
    return max(1.0, costs[0] - costs[1])


def one_by_one(call: Call, calls: int) -> float:
    """The median in ns; it includes the cost of reading the clock."""
    costs = []
    for _ in range(calls):
        time.sleep(PAUSE)  # the pace is part of what is measured
        began = time.perf_counter_ns()
        call()
        costs.append(time.perf_counter_ns() - began)
    return statistics.median(costs)


def nothing() -> None:
    pass


if __name__ == "__main__":
    rank(Path(sys.argv[1]), *map(int, sys.argv[2:]))
