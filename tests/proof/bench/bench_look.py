"""What it costs the supervisor to read the heartbeats of many ranks, and to assess them.

`python tests/proof/bench/bench_look.py`

Every rank has a new heartbeat (the usual case), or none has (each process is then checked).
"""

from __future__ import annotations

import mmap
import os
import statistics
import struct
import sys
import time
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(HOUSE / "supervisor"), str(HOUSE / "hooks")]

from ftrun.core.machine.values import Attempt  # noqa: E402
from ftrun.core.rules.liveness import Limits, assess  # noqa: E402
from ftrun.host import beats  # noqa: E402
from ftrun_hooks import layout as at  # noqa: E402

ROUNDS = 200


def main() -> None:
    reader = beats.create()
    with open(f"{reader.path}/{at.BEATS}", "r+b") as file:
        words = mmap.mmap(file.fileno(), at.FILE_BYTES)
    ticks = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
    for ranks in (8, 64, 512, 1024):
        for rank in range(ranks):
            put(words, rank, {at.PID: os.getpid(), at.START_TICKS: ticks, at.RANK: rank, at.MAGIC_WORD: at.MAGIC})
        for beaten in (True, False):
            costs = []
            for number in range(ROUNDS if ranks < 512 else ROUNDS // 4):
                for rank in range(ranks) if beaten or not number else ():
                    put(words, rank, {at.MOVED_AT: time.monotonic_ns(), at.STEP: number + 1})
                began = time.perf_counter()
                found = reader.read(time.monotonic())
                read = time.perf_counter()
                assess(Attempt(1, ranks=found), time.monotonic(), Limits(None, None, None, True))
                costs.append(((read - began) * 1e3, (time.perf_counter() - read) * 1e3))
            for what, times in zip(("read", "assessed"), zip(*costs, strict=True), strict=True):
                low, middle, high = statistics.quantiles(times, n=4)
                name = f"{ranks} ranks, {'all beat' if beaten else 'none beat'}, {what}"
                print(f"{name:32} median {middle:6.2f} ms   quartiles {low:.2f} to {high:.2f}")
    words.close()
    reader.close()


def put(words: mmap.mmap, rank: int, content: dict[int, int]) -> None:
    for word, value in content.items():
        struct.pack_into("=Q", words, (at.slot_of(rank) + word) * at.WORD, value)


if __name__ == "__main__":
    main()
