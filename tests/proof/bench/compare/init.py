"""`init.py COMMAND...`: PID 1 of a namespace, which starts the command, reaps all processes, and prints the exit status
of the command.  Unlike a real init it stays after that, so that processes left behind can be counted.  `kill` on stdin
sends SIGKILL to all other processes with one system call; at the end of stdin it exits, and with it the namespace."""

import os
import select
import signal
import sys


def main(command: list[str]) -> None:
    first = os.spawnvp(os.P_NOWAIT, command[0], command)
    wakeup, wakeup_writer = os.pipe()
    for end in (wakeup, wakeup_writer):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakeup_writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([0, wakeup], [], [])
        if wakeup in ready:
            os.read(wakeup, 65536)
        if 0 in ready:
            if not os.read(0, 64):
                return
            os.kill(-1, signal.SIGKILL)
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == first:
                    os.write(1, b"%d\n" % os.waitstatus_to_exitcode(ended[1]))
        except ChildProcessError:
            pass


if __name__ == "__main__":
    main(sys.argv[1:])
