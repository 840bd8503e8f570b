"""Job control for the loop: how the command is stopped and continued when the terminal or a shell stops it (ADR 12)."""

import signal

from ftrun.host import terminal


class JobControl:
    """Job control of the session's terminal, if there is one.  `group` is always the process group of the command."""

    def __init__(self) -> None:
        self._terminal = terminal.find()
        self._received: set[int] = set()  # stop signals that ftrun received since the last stop

    def offer(self) -> int | None:
        """Return the descriptor of the terminal in whose foreground the new command is to run, or None."""
        self._received.clear()
        return None if self._terminal is None else self._terminal.offer()

    def take_back(self) -> None:
        """The command has ended: signals of the terminal's keys come to ftrun."""
        if self._terminal is not None:
            self._terminal.take_back()

    def continued(self, group: int) -> None:
        """ftrun was continued (SIGCONT)."""
        if self._terminal is not None:
            self._terminal.continued(group)

    @property
    def keys_reach_command(self) -> bool:
        """Whether signals of the terminal's keys go to the command's group and not to ftrun's."""
        return self._terminal is not None and self._terminal.keys_reach_command

    def received(self, number: int, idle: bool) -> None:
        """ftrun received this stop signal.  `idle`: there is no command to stop, so only ftrun stops, for the shell."""
        self._received.add(number)
        if idle and number == signal.SIGTSTP and self._terminal is not None and terminal.has_shell():
            terminal.stop()

    def resumes(self, group: int, number: int) -> bool:
        """Return whether without ftrun this signal would not have stopped the command; if so, the command is
        continued."""
        return self._terminal is not None and self._terminal.resumes(group, number)

    def stops_us(self, number: int) -> bool:
        """Return whether ftrun must stop with the command, because a shell waits for that."""
        return (self._terminal is not None or number in self._received) and terminal.has_shell()

    def stop_with(self, group: int) -> None:
        """Stop until ftrun is continued, then continue the command."""
        self._received.clear()
        if self._terminal is not None:
            self._terminal.stop_with(group)
        else:
            terminal.stop_with(group)
