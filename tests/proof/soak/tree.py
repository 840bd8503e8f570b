"""The command of the soak: `tree.py RESTARTS LOOK HANG HOOKS`.  A small tree that ends as its start number says.

A parent, two children, one in a session of its own and a daemon.  Each LOOKth start prints `standing <number>` and
waits for the restart; one in HANG sends a heartbeat and hangs, with a child that ignores SIGTERM; of the rest every
second exits with 3, and the others are killed.  After RESTARTS restarts it ends with 0.
"""

import os
import signal
import sys


def main(hooks: str, restarts: int, look: int, hang: int) -> None:
    number = int(os.environ["MA_PROC_START_CNT"])
    standing, hanging = number % look == 0, number % hang == hang // 2
    ready, done = os.pipe()
    for alone, daemon in ((False, False), (False, False), (True, False), (True, True)):
        grow(done, alone, daemon, hanging and not alone)
    os.close(done)
    while os.read(ready, 1):
        pass  # until all have closed it, and so are ready
    if number > restarts:
        sys.exit(0)
    if standing:
        print("standing", number, flush=True)
        signal.pause()
    if hanging:
        sys.path.insert(0, hooks)
        import ftrun_hooks as ft

        ft.beat(number)
        signal.pause()
    if number % 2:
        sys.exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


def grow(done: int, alone: bool, daemon: bool, deaf: bool) -> None:
    """One process that waits for its end."""
    if child := os.fork():
        if daemon:
            os.waitpid(child, 0)
        return
    if alone:
        os.setsid()
    if daemon and os.fork():
        os._exit(0)
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.close(done)
    while True:
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[4], *map(int, sys.argv[1:4]))
