"""A small training program that hangs.  It sends heartbeats to the program that started it: by ftrun's hooks, by the
client of nvidia-resiliency-ext, or not at all.  It appends to the file `last` in its working directory a line with the
time of its last heartbeat and its pid.
"""

import os
import random
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

TACT = 0.05  # s between two heartbeats
WARM = 10  # heartbeats before the failure
MORE = 100  # at most so many further heartbeats, a random number
Beat = Callable[[], object]


def ftrun() -> Beat:
    sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "hooks"))
    import ftrun_hooks

    steps = count(1)
    return lambda: ftrun_hooks.beat(next(steps))


def nvidia() -> Beat:
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

    client = RankMonitorClient()
    client.init_workload_monitoring()
    return lambda: client.send_heartbeat()


def starter() -> Beat:
    if "FT_RANK_MONITOR_IPC_SOCKET" in os.environ:
        return nvidia()
    return ftrun() if "FTRUN_BEAT_DIR" in os.environ else lambda: None


def main() -> None:
    """Hang at a random time in the interval of the monitor's checks."""
    beat, at = starter(), 0.0  # kept, because a client that is deleted signs off
    for _ in range(WARM + random.randrange(MORE)):
        beat()
        at = time.monotonic()
        time.sleep(TACT)
    with open("last", "a") as file:
        file.write(f"{at:.6f} {os.getpid()}\n")
    while True:
        time.sleep(600)


if __name__ == "__main__":
    main()
