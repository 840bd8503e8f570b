"""What one heartbeat costs the rank, against a bare store to shared memory."""

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
from support.measured import Measured, Plot, Series, spread

NAME = "30-heartbeat"
ROUNDS = (3, 25)  # short and in full, as the two below
TIGHT = (200, 4000)  # calls a round
SLOW = (10, 150)
PAUSE = 0.002  # s
FLOOR, OURS, OUTSIDE = "a bare store to shared memory", "`ft.beat(step)`", "`ft.beat(step)` outside ftrun"
TOUCH, NVRX = "touching a file, `os.utime`", "`RankMonitorClient.send_heartbeat()`, nvidia-resiliency-ext"
BEFORE = (
    "What one call costs the rank that makes it, in nanoseconds, all in turn round by round: in a tight loop, the loop "
    "not counted, and at one call in 2 ms, as in a training, where caches are cold and a server has to wake up. The "
    "floor is `struct.pack_into` of eight bytes into a mapped file in `/dev/shm`. supervisord, circus, tini, dumb-init "
    "and torchrun have no heartbeats.",
)
AFTER = (
    "**A beat costs more than the bare store**: it reads the clock, counts, and learns how long this rank is usually "
    "silent, in Python. It makes no system call, takes no lock and waits for nobody, so a supervisor that is stopped "
    "or gone does not hold up the rank. The heartbeat of nvidia-resiliency-ext is a message over a socket whose "
    "answer is waited for: two changes of process.",
)
LABELS = {
    FLOOR: "bare store",
    OURS: "ft.beat(step)",
    OUTSIDE: "the same\noutside ftrun",
    TOUCH: "touch a file",
    NVRX: "nvidia-\nresiliency-ext",
}
Call = Callable[[], object]


def measure(short: bool) -> Measured:
    how = 0 if short else 1
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="ftrun-bench-") as folder:
        beats = BeatDir(Path(folder, "beats"))
        words = [sys.executable, __file__, folder, str(ROUNDS[how]), str(TIGHT[how]), str(SLOW[how])]
        env = settled() | {"FTRUN_BEAT_DIR": str(beats.folder), "PYTHONPATH": os.pathsep.join(sys.path)}
        ended = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        beats.close()
    assert ended.returncode == 0, ended.stderr
    tight, slow = json.loads(ended.stdout)
    rows = [
        (name, *(cell for seen in (tight, slow) for cell in (spread(seen[name]), ratio(seen, name)))) for name in tight
    ]
    kinds = (("in a tight loop", tight), ("one call in 2 ms", slow))
    plots = tuple(Series(kind, tuple((LABELS[name], tuple(seen[name])) for name in seen)) for kind, seen in kinds)
    return Measured(
        NAME,
        "What a heartbeat costs the rank",
        made_by(NAME),
        BEFORE,
        ("call", "tight loop, ns", "times the floor", "one in 2 ms, ns", "times the floor"),
        tuple(rows),
        AFTER + cheaper(tight, slow),
        Plot("bars", "", "ns a call", plots, log_y=True),
    )


def cheaper(tight: dict[str, list[float]], slow: dict[str, list[float]]) -> tuple[str, ...]:
    """Against the peer, round by round."""
    if NVRX not in tight:
        return ()
    fast, paced = ([a / b for a, b in zip(seen[NVRX], seen[OURS], strict=True)] for seen in (tight, slow))
    return (
        f"Against nvidia-resiliency-ext, round by round, a beat is {spread(fast, 2)} times cheaper in a tight loop, "
        f"least {min(fast):.0f}, and {spread(paced, 2)} times at one in 2 ms, least {min(paced):.0f}.",
    )


def ratio(seen: dict[str, list[float]], name: str) -> str:
    """Round by round."""
    return spread([a / b for a, b in zip(seen[name], seen[FLOOR], strict=True)], 2)


# --- in a process of its own, which is a rank -------------------------------------------------------------------------


def rank(folder: Path, rounds: int, tight_calls: int, slow_calls: int) -> None:
    """Prints, as JSON, what the calls cost in a loop and one by one."""
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
    """As cheap as Python permits: eight bytes to where others see them."""
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("r+b") as file:
        words = mmap.mmap(file.fileno(), mmap.PAGESIZE)
    put = struct.Struct("=Q").pack_into
    return lambda: put(words, 64, 1)


def beat(inside: bool) -> Call:
    """Outside: of hooks that were imported where there is no ftrun."""
    kept = os.environ["FTRUN_BEAT_DIR"]
    os.environ["FTRUN_BEAT_DIR"] = kept if inside else ""
    for name in [name for name in sys.modules if name.startswith("ftrun_hooks")]:
        del sys.modules[name]
    import ftrun_hooks as ft

    steps = itertools.count()
    step = steps.__next__
    call = ft.beat
    call(step())  # finds out where it is
    os.environ["FTRUN_BEAT_DIR"] = kept
    return lambda: call(step())


def touch(path: Path) -> Call:
    path.touch()
    name = str(path)
    return lambda: os.utime(name)


def nvrx(path: Path) -> tuple[Any, Call]:
    """Its monitor in a process of its own, and the call of a client that is connected to it; none where it is not."""
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
    """ns a call; the loop itself is taken off."""
    costs = []
    for what in (call, nothing):
        began = time.perf_counter_ns()
        for _ in range(calls):
            what()
        costs.append((time.perf_counter_ns() - began) / calls)
    return max(1.0, costs[0] - costs[1])


def one_by_one(call: Call, calls: int) -> float:
    """The median, in ns; the clock is in it."""
    costs = []
    for _ in range(calls):
        time.sleep(PAUSE)  # this is the pace that is measured
        began = time.perf_counter_ns()
        call()
        costs.append(time.perf_counter_ns() - began)
    return statistics.median(costs)


def nothing() -> None:
    pass


if __name__ == "__main__":
    rank(Path(sys.argv[1]), *map(int, sys.argv[2:]))
