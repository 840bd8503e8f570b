"""Job control for the loop: what happens to the command when the terminal or a shell stops it (ADR 12)."""

import signal

from ftrun.host import terminal


class JobControl:
    """Of the terminal of our session, if there is one.  `group` is always the process group of the command."""

    def __init__(self) -> None:
        self._terminal = terminal.find()
        self._received: set[int] = set()  # stop signals that were sent to us, since the last stop

    def offer(self) -> int | None:
        """A descriptor of the terminal that the new command is to take the foreground of."""
        self._received.clear()
        return None if self._terminal is None else self._terminal.offer()

    def take_back(self) -> None:
        """The command has ended: the keys are for us."""
        if self._terminal is not None:
            self._terminal.take_back()

    def continued(self, group: int) -> None:
        """Somebody has continued us."""
        if self._terminal is not None:
            self._terminal.continued(group)

    @property
    def keys_reach_command(self) -> bool:
        """Whether signals of the terminal's keys go to the command's group and not to ours."""
        return self._terminal is not None and self._terminal.keys_reach_command

    def received(self, number: int, idle: bool) -> None:
        """This stop signal was sent to us.  `idle`: there is no command to stop, so only we stop, for the shell."""
        self._received.add(number)
        if idle and number == signal.SIGTSTP and self._terminal is not None and terminal.has_shell():
            terminal.stop()

    def resumes(self, group: int, number: int) -> bool:
        """Whether the command would not have been stopped by that without us; if so, it goes on."""
        return self._terminal is not None and self._terminal.resumes(group, number)

    def stops_us(self, number: int) -> bool:
        """Whether we are to stop with the command, because a shell waits for that."""
        return (self._terminal is not None or number in self._received) and terminal.has_shell()

    def stop_with(self, group: int) -> None:
        """Stop until we are continued, and continue the command then."""
        self._received.clear()
        if self._terminal is not None:
            self._terminal.stop_with(group)
        else:
            terminal.stop_with(group)
