"""The terminal: the command gets the foreground; we take it back to stop with it, and when it has ended."""

import os
import signal
import termios

from ftrun.host import procfs


class Terminal:
    """The controlling terminal on stdin.  It is ours to give only while the shell above us, if there is one, has us in
    the foreground."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._modes = termios.tcgetattr(fd)
        self._ours = os.tcgetpgrp(fd) == os.getpgrp()

    def offer(self) -> int | None:
        """The descriptor for a new command to take the foreground of; its modes are those that we found."""
        self.take_back()
        return self.fd if self._ours else None

    def take_back(self, modes: bool = True) -> None:
        """Be in the foreground again; `modes`: put back what a killed full-screen program left changed."""
        if not self._ours:
            return
        _foreground(self.fd, os.getpgrp())
        if modes:
            with _unbothered():
                try:
                    # At once: waiting for the output to drain could be for ever.
                    termios.tcsetattr(self.fd, termios.TCSANOW, self._modes)
                except (termios.error, OSError):
                    pass  # hung up

    def stop_with(self, group: int, number: int) -> None:
        """The command was stopped by the terminal: hand that back to the shell by stopping too, and go on where the
        shell lets us."""
        self.continued(group)
        # What ran in the background and is brought to the front (`fg`) hears nothing of it (bash sends SIGCONT only to
        # stopped jobs): a command that then reads has the terminal from now on.
        if not (self._ours and number in (signal.SIGTTIN, signal.SIGTTOU)):
            self.take_back(modes=False)
            self._ours = False
            os.kill(os.getpid(), signal.SIGSTOP)
            # Here somebody continued us: in the foreground (`fg`) or not (`bg`).
            self.continued(group)
        try:
            os.killpg(group, signal.SIGCONT)
        except OSError:
            pass

    def continued(self, group: int) -> None:
        """Pass the foreground on if that is where the shell has put us."""
        try:
            owner = os.tcgetpgrp(self.fd)
            if owner == os.getpgrp():
                self._ours = True
                _foreground(self.fd, group)
            elif owner == os.getpgid(os.getsid(0)):
                self._ours = False
        except OSError:
            pass  # hung up


def find() -> Terminal | None:
    """The terminal to hand over, or None: no terminal, or we are one of several in a pipeline whose other members would
    lose the foreground."""
    try:
        if not os.isatty(0):
            return None
        group, me = os.getpgrp(), os.getpid()
        if any(s.group == group and s.pid != me and not s.ended for s in procfs.everyone()):
            return None
        return Terminal(0)  # OSError where it is not our session's
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
