"""The controlling terminal, and job control as the command would have it without ftrun (ADR 12).

The command has a process group of its own.  If the terminal is its stdin and ftrun is alone in its group, the command's
group gets the foreground when it starts.  Otherwise (a pipeline, a calling script, stdin from a file) ftrun's group
keeps it, so that keys reach the whole group, including ftrun; the command gets the foreground when it reads from the
terminal or changes its modes.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ftrun.host import procfs, signals

# Sent to the terminal's foreground group: keys, another size, a hangup; and SIGCONT, by the shell.
BY_TERMINAL = frozenset((signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH, signal.SIGHUP, signal.SIGCONT))
FROM_BACKGROUND = (signal.SIGTTIN, signal.SIGTTOU)  # sent to a background process that uses the terminal


class JobControl:
    """Job control of the session's terminal, if there is one.

    While ftrun's group has the foreground, signals of the terminal's keys come to ftrun.  `group` is always the process
    group of the command.
    """

    def __init__(self) -> None:
        self._received: set[int] = set()  # stop signals that ftrun received since the last stop
        self._has_terminal = False
        self._shared = True  # ftrun's group keeps the foreground until the command needs it
        self._may_give = False  # ftrun may give away the foreground
        try:
            with _device() as fd:
                self._modes = _modes(fd)
                self._shared = not (_is_alone() and _controls(0))
                # Not while the shell has put ftrun in the background.
                self._may_give = not self._shared and os.tcgetpgrp(fd) == os.getpgrp()
                self._has_terminal = True
        except OSError:
            self._shared = True

    def may_be_from_terminal(self, number: int) -> bool:
        """Return whether ftrun may have received this signal from the terminal, as a member of the group to which the
        command would belong without ftrun.  A `kill` of ftrun cannot be distinguished from that while its group has the
        foreground."""
        if number not in BY_TERMINAL or not self._has_terminal or not self._shared or self._may_give:
            return False
        try:
            with _device() as fd:
                return os.tcgetpgrp(fd) == os.getpgrp()
        except OSError:
            return number == signal.SIGHUP  # the terminal hung up

    def offer(self) -> int | None:
        """Return the descriptor of the terminal in whose foreground a new command is to run, or None; the terminal's
        original modes are restored."""
        self._received.clear()
        self.take_back()
        return 0 if self._may_give and not self._shared else None

    def give(self, group: int) -> None:
        """Put a command that already runs into the foreground that `offer` has promised to it."""
        with suppress(OSError), _device() as fd:  # the terminal hung up
            _foreground(fd, group)

    def take_back(self, modes: bool = True) -> None:
        """Return to the foreground, so that signals of the keys come to ftrun; `modes`: restore the modes that a killed
        full-screen program may have changed."""
        if not self._may_give:
            return
        self._may_give = not self._shared
        with suppress(OSError), _device() as fd, signals.blocked(signal.SIGTTOU):  # the terminal hung up
            _foreground(fd, os.getpgrp())
            if modes:
                _set_modes(fd, self._modes)

    def received(self, number: int, idle: bool) -> None:
        """ftrun received this stop signal.  `idle`: there is no command to stop, so only ftrun stops, for the shell."""
        self._received.add(number)
        if idle and number == signal.SIGTSTP and self._has_terminal and _has_shell():
            _stop()

    def stops_us(self, number: int) -> bool:
        """Return whether ftrun must stop with the command, because a shell waits for that."""
        return (self._has_terminal or number in self._received) and _has_shell()

    def resumes(self, group: int, number: int) -> bool:
        """Return whether job control has stopped the command although it would not have stopped without ftrun; if so,
        continue it.

        Without a shell above ftrun the command's group would be an orphaned one, which the kernel does not stop for a
        terminal; it is not orphaned, because ftrun is its parent and in its session.  And a command that uses the
        terminal while ftrun's group is in the foreground is entitled to it: from now on it has the foreground.
        """
        if not self._has_terminal:
            return False
        shell = _has_shell()
        if number not in FROM_BACKGROUND and shell:
            return False
        try:
            with _device() as fd:
                owner = os.tcgetpgrp(fd)
                if number in FROM_BACKGROUND and owner != group:
                    if shell and owner != os.getpgrp():
                        return False  # the shell has sent ftrun to the background
                    if self._shared:
                        self._modes = _modes(fd)
                    self._may_give = True
                    _foreground(fd, group)
        except OSError:
            if shell:
                return False
        _continue(group)
        return True

    def stop_with(self, group: int) -> None:
        """The command was stopped: stop as well, so that the shell notices, and continue when the shell continues
        ftrun."""
        self._received.clear()
        had_foreground = self._may_give and self._shared
        self.take_back(modes=False)
        self._may_give = False
        if had_foreground:  # the key reached only the command: the rest of the pipeline must stop as well
            with signals.blocked(signal.SIGTSTP, dropped=(signal.SIGTSTP,)):  # ftrun itself is in the group
                os.killpg(os.getpgrp(), signal.SIGTSTP)
        _stop()
        # ftrun was continued: in the foreground (`fg`) or not (`bg`).
        self.continued(group)
        _continue(group)

    def continued(self, group: int) -> None:
        """ftrun was continued (SIGCONT): pass the foreground on to the command if the shell has put ftrun there."""
        if self._shared:
            return  # the command gets it when it needs it
        with suppress(OSError), _device() as fd:  # the terminal hung up
            owner = os.tcgetpgrp(fd)
            if owner == os.getpgrp():
                self._may_give = True
                _foreground(fd, group)
            elif owner == os.getpgid(os.getsid(0)):
                self._may_give = False


def _is_alone() -> bool:
    """Return whether ftrun is the only process of its group."""
    group, me = os.getpgrp(), os.getpid()
    return not any(s.group == group and s.pid != me and not s.ended for s in procfs.all_processes())


def _has_shell() -> bool:
    """Return whether a parent shell does job control and can continue ftrun.

    That is the POSIX condition for a process group that is not orphaned: the parent of one of its members is in another
    group of the same session.  PID 1 cannot be stopped from within its namespace.
    """
    if os.getpid() == 1:
        return False
    group, session = os.getpgrp(), os.getsid(0)
    processes = {process.pid: process for process in procfs.all_processes()}
    parents = [processes.get(s.parent) for s in processes.values() if s.group == group and not s.ended]
    return any(parent and parent.group != group and parent.session == session for parent in parents)


def _stop() -> None:
    """Stop this process until it is continued."""
    os.kill(os.getpid(), signal.SIGSTOP)


def _continue(group: int) -> None:
    with suppress(OSError):  # it has just ended
        os.killpg(group, signal.SIGCONT)


def _controls(fd: int) -> bool:
    """Return whether this descriptor is the terminal of this session."""
    try:
        os.tcgetpgrp(fd)
    except OSError:
        return False
    return True


@contextmanager
def _device() -> Iterator[int]:
    """The controlling terminal: one of the standard streams if possible, else opened only while it is needed, since a
    program that waits for the end of a terminal waits until no process has it open.  Raises OSError if there is
    none."""
    number = next((fd for fd in (0, 1, 2) if _controls(fd)), None)
    if number is not None:
        yield number
        return
    opened = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield opened
    finally:
        os.close(opened)


def _modes(fd: int) -> list[Any]:
    """The modes of the terminal.  Raises OSError."""
    import termios  # only where there is a terminal

    try:
        return termios.tcgetattr(fd)
    except termios.error as error:
        raise OSError(*error.args) from None


def _set_modes(fd: int, modes: list[Any]) -> None:
    """At once: waiting for the output to drain could take forever.  Raises OSError."""
    import termios

    try:
        termios.tcsetattr(fd, termios.TCSANOW, modes)
    except termios.error as error:
        raise OSError(*error.args) from None


def _foreground(fd: int, group: int) -> None:
    """A change from the background raises SIGTTOU; while that is blocked, the change succeeds."""
    with signals.blocked(signal.SIGTTOU), suppress(OSError):  # the terminal hung up, or the group has ended
        os.tcsetpgrp(fd, group)
