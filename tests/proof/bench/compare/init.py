"""`init.py COMMAND...`: PID 1 of a namespace that starts the command, reaps whatever ends, and says on stdout how the
command ended.  Unlike a real one it then stays, so that what was left behind is seen.  `kill` on stdin: SIGKILL to
everybody else, at once, by the kernel; the end of stdin: it ends, and all that is left with it."""

import os
import select
import signal
import sys


def main(command: list[str]) -> None:
    first = os.spawnvp(os.P_NOWAIT, command[0], command)
    heard, bell = os.pipe()
    for end in (heard, bell):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(bell)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([0, heard], [], [])
        if heard in ready:
            os.read(heard, 65536)
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
