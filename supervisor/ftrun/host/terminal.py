"""The controlling terminal, and job control as the command would have it without us (ADR 12).

The command has a process group of its own.  Where the terminal is its stdin and nobody else is in our group, that group
gets the foreground at the start.  Else (a pipeline, a script around us, stdin from a file) our own group keeps it, so
that keys reach all of it, and us; the command gets the foreground when it reads from the terminal or changes its modes.
"""

import os
import signal
import termios
from collections.abc import Iterator
from contextlib import contextmanager

from ftrun.host import procfs

FROM_BACKGROUND = (signal.SIGTTIN, signal.SIGTTOU)  # sent to a process that uses the terminal from there


class Terminal:
    """`shared`: our group keeps the foreground until the command needs it.  While the command does not have it, what
    the keys send comes to us."""

    def __init__(self, shared: bool) -> None:
        self._shared = shared
        with _device() as fd:
            self._modes = termios.tcgetattr(fd)
            # Whether the foreground is ours to give: not while the shell above us has us in the background.
            self._ours = not shared and os.tcgetpgrp(fd) == os.getpgrp()

    @property
    def keys_reach_command(self) -> bool:
        """Whether signals of the terminal's keys go to the command's group and not to ours."""
        return self._ours or not self._shared

    def offer(self) -> int | None:
        """The descriptor for a new command to take the foreground of; its modes are those that we found."""
        self.take_back()
        return 0 if self._ours and not self._shared else None

    def take_back(self, modes: bool = True) -> None:
        """Be in the foreground again; `modes`: put back what a killed full-screen program left changed."""
        if not self._ours:
            return
        self._ours = not self._shared
        try:
            with _device() as fd, _unbothered():
                _foreground(fd, os.getpgrp())
                if modes:
                    # At once: waiting for the output to drain could be for ever.
                    termios.tcsetattr(fd, termios.TCSANOW, self._modes)
        except (termios.error, OSError):
            pass  # hung up

    def resumes(self, group: int, number: int) -> bool:
        """Whether job control has stopped the command where it would not have stopped without us; if so, it goes on.

        Without a shell above us the command's group would be an orphaned one, which the kernel does not stop for a
        terminal; it is none, because we are its parent and in its session.  And what uses the terminal while our group
        is in the foreground has a right to it: from now on it has the foreground.
        """
        shell = has_shell()
        if number not in FROM_BACKGROUND and shell:
            return False
        try:
            with _device() as fd:
                owner = os.tcgetpgrp(fd)
                if number in FROM_BACKGROUND and owner != group:
                    if shell and owner != os.getpgrp():
                        return False  # the shell has sent us to the background
                    if self._shared:
                        self._modes = termios.tcgetattr(fd)
                    self._ours = True
                    _foreground(fd, group)
        except (termios.error, OSError):
            if shell:
                return False
        _continue(group)
        return True

    def stop_with(self, group: int) -> None:
        """The terminal has stopped the command: hand that back to the shell by stopping too, and go on where the shell
        lets us."""
        lent = self._ours and self._shared
        self.take_back(modes=False)
        self._ours = False
        if lent:  # the key went to the command alone: the others of the pipeline are to stop as well
            with _held(signal.SIGTSTP):
                os.killpg(os.getpgrp(), signal.SIGTSTP)
        stop()
        # Here somebody continued us: in the foreground (`fg`) or not (`bg`).
        self.continued(group)
        _continue(group)

    def continued(self, group: int) -> None:
        """Pass the foreground on if that is where the shell has put us."""
        if self._shared:
            return  # the command gets it when it needs it
        try:
            with _device() as fd:
                owner = os.tcgetpgrp(fd)
                if owner == os.getpgrp():
                    self._ours = True
                    _foreground(fd, group)
                elif owner == os.getpgid(os.getsid(0)):
                    self._ours = False
        except OSError:
            pass  # hung up


def find() -> Terminal | None:
    """The terminal of our session, or None where there is none."""
    try:
        with _device():
            pass
        group, me = os.getpgrp(), os.getpid()
        alone = not any(s.group == group and s.pid != me and not s.ended for s in procfs.all_processes())
        return Terminal(shared=not (alone and _controls(0)))
    except (OSError, termios.error):
        return None


def has_shell() -> bool:
    """Whether a shell above us does job control and can continue us.

    That is what POSIX asks of a process group that is not orphaned: the parent of one of its members is in another
    group of the same session.  PID 1 cannot be stopped from within its namespace.
    """
    if os.getpid() == 1:
        return False
    group, session = os.getpgrp(), os.getsid(0)
    processes = {process.pid: process for process in procfs.all_processes()}
    parents = [processes.get(s.parent) for s in processes.values() if s.group == group and not s.ended]
    return any(parent and parent.group != group and parent.session == session for parent in parents)


def stop() -> None:
    """Stop ourselves, until somebody continues us."""
    os.kill(os.getpid(), signal.SIGSTOP)


def stop_with(group: int) -> None:
    """The same with the command, where there is no terminal."""
    stop()
    _continue(group)


def _continue(group: int) -> None:
    try:
        os.killpg(group, signal.SIGCONT)
    except OSError:
        pass  # it has just ended


def _controls(fd: int) -> bool:
    """Whether this is the terminal of our session."""
    try:
        os.tcgetpgrp(fd)
    except OSError:
        return False
    return True


@contextmanager
def _device() -> Iterator[int]:
    """The controlling terminal: one of the standard streams if possible, else opened for as long as it is needed, since
    a program that waits for the end of a terminal waits until no process has it open.  OSError where there is none."""
    number = next((fd for fd in (0, 1, 2) if _controls(fd)), None)
    if number is not None:
        yield number
        return
    opened = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield opened
    finally:
        os.close(opened)


def _foreground(fd: int, group: int) -> None:
    with _unbothered():
        try:
            os.tcsetpgrp(fd, group)
        except OSError:
            pass  # hung up, or the group has ended


@contextmanager
def _unbothered() -> Iterator[None]:
    """A change from the background raises SIGTTOU; blocked, it is simply done."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTTOU,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _held(number: int) -> Iterator[None]:
    """What is sent to our own group meanwhile is for the others in it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (number,))
    try:
        yield
    finally:
        signal.sigtimedwait((number,), 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
