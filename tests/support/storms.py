"""A tree that forks all the time: `storms.py KIND WIDTH RESTARTS`.  WIDTH storms of one kind stand for a second in each
of the first RESTARTS starts, which then fail; the next start ends with 0.

Each storm has a bounded number of living processes, goes on when no pid is free, and ends by itself.
"""

import os
import re
import signal
import sys
import time

PID_MAX = "/proc/sys/kernel/pid_max"
LASTS = 30  # s
UNTIL = time.monotonic() + LASTS


def has_own_pid_max() -> bool:
    """Whether each PID namespace has a limit of its own, so that a storm in one cannot use up the pids of the machine
    (Linux 6.14)."""
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return release is not None and (int(release[1]), int(release[2])) >= (6, 14)


def fork() -> int:
    while time.monotonic() < UNTIL:
        try:
            return os.fork()
        except OSError:  # no pid is free
            time.sleep(0.001)
    os._exit(0)


def chains(pause: float = 0) -> None:
    """A process forks its successor, in a session of its own, and ends."""
    while True:
        if pause:
            time.sleep(pause)
        if fork():
            os._exit(0)
        os.setsid()


def pauses() -> None:
    chains(0.002)


def daemons() -> None:
    """A process forks daemons (a double fork and a session of their own), which live for 50 ms."""
    while True:
        if fork() == 0:
            os.setsid()
            if fork() == 0:
                time.sleep(0.05)
            os._exit(0)
        os.wait()
        time.sleep(0.001)


def children() -> None:
    """A process keeps 16 children, each of which ends after 20 ms."""
    count = 0
    while True:
        if fork() == 0:
            time.sleep(0.02)
            os._exit(0)
        count += 1
        if count == 16:
            os.wait()
            count -= 1


def shells() -> None:
    """A shell starts one program in the background after the other."""
    script = "n=0; while [ $n -lt 20000 ]; do n=$((n + 1)); (sleep 0.02 & ); done"
    os.execvp("sh", ["sh", "-c", script])


def main(kind: str, width: int, restarts: int) -> None:
    if int(os.environ["MA_PROC_START_CNT"]) > restarts:
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(width):
        if fork() == 0:
            {f.__name__: f for f in (chains, pauses, daemons, children, shells)}[kind]()
    time.sleep(1)
    os._exit(7)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
