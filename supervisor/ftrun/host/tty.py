"""The terminal: the command gets the foreground; we take it back to stop with it, and when it has ended."""

import os
import signal
import termios

from ftrun.host import procfs


class Terminal:
    """The controlling terminal on stdin, while ftrun's own process group has its foreground."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._modes = termios.tcgetattr(fd)

    def give(self, group: int) -> None:
        _foreground(self.fd, group)

    def take_back(self, modes: bool = True) -> None:
        """Be in the foreground again; `modes`: put back what a killed full-screen program left changed."""
        _foreground(self.fd, os.getpgrp())
        if modes:
            with _unbothered():
                try:
                    termios.tcsetattr(self.fd, termios.TCSADRAIN, self._modes)
                except (termios.error, OSError):
                    pass  # hung up

    def stop_with(self, group: int) -> None:
        """The command was stopped from the keyboard: hand the terminal back to the shell by stopping too, and go on
        where the shell lets us."""
        self.take_back(modes=False)
        os.kill(os.getpid(), signal.SIGSTOP)
        # Here somebody continued us: in the foreground (`fg`) or not (`bg`).
        try:
            if os.tcgetpgrp(self.fd) == os.getpgrp():
                self.give(group)
            os.killpg(group, signal.SIGCONT)
        except OSError:
            pass


def find() -> Terminal | None:
    """The terminal to hand over, or None: no terminal, in the background, or one of several in a pipeline whose other
    members would lose the foreground."""
    try:
        if not os.isatty(0) or os.tcgetpgrp(0) != os.getpgrp():
            return None
        group, me = os.getpgrp(), os.getpid()
        if any(s.group == group and s.pid != me and not s.ended for s in procfs.everyone()):
            return None
        return Terminal(0)
    except (OSError, termios.error):
        return None


def has_shell() -> bool:
    """Whether somebody above us can continue us: not as PID 1, not as the leader of the session."""
    return os.getpid() != 1 and os.getsid(0) not in (0, os.getpid())


def _foreground(fd: int, group: int) -> None:
    with _unbothered():
        try:
            os.tcsetpgrp(fd, group)
        except OSError:
            pass  # hung up, or the group has ended


class _unbothered:
    """A change from the background raises SIGTTOU; blocked, it is simply done."""

    def __enter__(self) -> None:
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTTOU,))

    def __exit__(self, *problem: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)
