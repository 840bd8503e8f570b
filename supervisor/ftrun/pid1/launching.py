"""Start of the command: the fork, the report of the exec, and the work of PID 1 that follows it."""

import gc
import os
import select
import time
from collections.abc import Sequence

from ftrun.core.machine import events as ev
from ftrun.core.machine.values import Ledger
from ftrun.core.rules import exit_codes
from ftrun.host import beat_folders, spawn
from ftrun.host.output_pipes import OutputPipes
from ftrun.host.terminal import JobControl
from ftrun.pid1.bootstrap import Setup


class Launcher:
    """`report`: a descriptor, readable once the exec of the child has succeeded or failed; None between starts."""

    def __init__(
        self, command: Sequence[str], setup: Setup, control: JobControl, poll: select.poll, capture: OutputPipes
    ) -> None:
        self._command, self._setup, self._control, self._poll = command, setup, control, poll
        self._capture = capture
        self.report: int | None = None

    def start(self, ledger: Ledger) -> ev.SpawnFailed | None:
        """Fork without waiting for the exec.  Returns an event if no process could be created."""
        setup, environment = self._setup, self._setup.environment(ledger)
        try:
            child = spawn.spawn(
                setup.command(self._command, ledger),
                environment,
                setup.signals.inherited,
                self._control.offer(),
                os.getpid() != 1,
                self._capture.streams,
            )
        except (OSError, ValueError) as error:  # no more processes or memory; a NUL in an argument
            why = f"cannot start a process: {error}"
            setup.console.print(why)
            return ev.SpawnFailed(time.monotonic(), exit_codes.INTERNAL.code, why)
        setup.tree.command, self.report = child
        self._poll.register(child.report, select.POLLIN)
        return None

    def reported(self) -> bool:
        """Whether a report is readable."""
        return self.report is not None and bool(select.select([self.report], [], [], 0)[0])

    def outcome(self, now: float) -> ev.CommandSpawned | ev.SpawnFailed:
        """Read and close the report; the next descriptor that is opened may get its number."""
        assert self.report is not None
        content = os.read(self.report, 16)
        self._poll.unregister(self.report)
        os.close(self.report)
        self.report = None
        if not content:
            return ev.CommandSpawned(now, self._setup.tree.command or 0)
        code, why = spawn.explain_exec_failure(self._command[0], int(content))
        self._setup.console.print(why, level=0, severity="error")
        return ev.SpawnFailed(now, code, why)


def tidy(beat_folder: str) -> None:
    """Work that can wait until the command has started."""
    gc.collect()  # empties CPython's free lists, which each tuple() of a generator grows, up to 2,000 per size
    beat_folders.remove_stale(beat_folder)
