"""`ranks.py SIZE [FIFO]`: a command of so many processes, itself the first, that are ranks and beat once a second where
ftrun is, and else sleep.  With a FIFO they sleep, hang where ftrun is, and hold it open: it gets a line once all are
there, and its reader sees its end when the last of them is gone."""

import os
import signal
import sys
import time

HOOKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), *[os.pardir] * 4, "hooks")


def main(size: int, fifo: str = "") -> None:
    held = os.open(fifo, os.O_WRONLY) if fifo else -1
    if not fifo:
        sys.path.insert(0, HOOKS)
        import ftrun_hooks  # noqa: F401  before the forks: once for all
    rank = next((rank for rank in range(1, size) if os.fork() == 0), 0)
    if fifo:
        if rank == 0:
            os.write(held, b"up\n")
            if folder := os.environ.get("FTRUN_BEAT_DIR"):
                os.utime(os.path.join(folder, "touch"))  # the only beat: from now on it hangs
        signal.pause()  # until it is killed: how fast that goes is measured
    os.environ["RANK"] = str(rank)
    import ftrun_hooks as ft

    for step in range(86400):
        ft.beat(step)
        time.sleep(1)  # a step: this is a healthy rank, and how often it beats is part of what is compared


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
