"""The command of the soak: `tree.py LAST LOOK HANG HOOKS`.  A small tree whose end depends on the start number.

A parent, two children, one child in its own session and a daemon.  Each LOOKth start prints `ready <number>` and
waits for the restart; one in HANG sends a heartbeat and hangs, with a child that ignores SIGTERM; of the rest every
second exits with 3, and the others are killed.  After as many restarts as
the file LAST says it ends with 0.
"""

import os
import signal
import sys


def main(last: str, look: int, hang: int, hooks: str) -> None:
    number = int(os.environ["MA_PROC_START_CNT"])
    waiting, hanging = number % look == 0, number % hang == hang // 2
    children_ready, done = os.pipe()
    for own_session, daemon in ((False, False), (False, False), (True, False), (True, True)):
        start_child(done, own_session, daemon, hanging and not own_session)
    os.close(done)
    while os.read(children_ready, 1):
        pass  # until all children have closed the pipe, and so are ready
    with open(last) as file:
        if number > int(file.read()):
            sys.exit(0)
    if waiting:
        print("ready", number, flush=True)
        signal.pause()
    if hanging:
        sys.path.insert(0, hooks)
        import ftrun_hooks as ft

        ft.beat(number)
        signal.pause()
    if number % 2:
        sys.exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


def start_child(done: int, own_session: bool, daemon: bool, ignores_term: bool) -> None:
    """One process that waits for its end."""
    if child := os.fork():
        if daemon:
            os.waitpid(child, 0)
        return
    if own_session:
        os.setsid()
    if daemon and os.fork():
        os._exit(0)
    if ignores_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.close(done)
    while True:
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
