"""`ranks.py SIZE [FIFO]`: a command of SIZE processes, including itself, which are ranks.  Under ftrun they send a
heartbeat every second, otherwise they only sleep.  With a FIFO they sleep (under ftrun they hang) and hold it open: a
line is written to it once all processes run, and its reader sees the end of the file when the last of them is dead."""

import os
import signal
import sys
import time

HOOKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), *[os.pardir] * 4, "hooks")


def main(size: int, fifo: str = "") -> None:
    held = os.open(fifo, os.O_WRONLY) if fifo else -1
    if not fifo:
        sys.path.insert(0, HOOKS)
        import ftrun_hooks  # noqa: F401  before the forks, so that it is imported once
    rank = next((rank for rank in range(1, size) if os.fork() == 0), 0)
    if fifo:
        if rank == 0:
            os.write(held, b"up\n")
            if folder := os.environ.get("FTRUN_BEAT_DIR"):
                os.utime(os.path.join(folder, "touch"))  # the only heartbeat: from now on the rank hangs
        signal.pause()  # until it is killed; the time of that is measured
    os.environ["RANK"] = str(rank)
    import ftrun_hooks as ft

    for step in range(86400):
        ft.beat(step)
        time.sleep(1)  # a step of a healthy rank; the rate of heartbeats is part of the comparison


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
