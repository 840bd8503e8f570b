"""Start of the command: the forks, the reports of the execs, and the work of PID 1 that follows them."""

import gc
import os
import select
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ftrun.core.machine import events as ev
from ftrun.core.machine.values import Ledger, LocalRank
from ftrun.core.rules import exit_codes
from ftrun.host import beat_folders, spawn
from ftrun.host.output_pipes import OutputPipes
from ftrun.host.terminal import JobControl
from ftrun.pid1.bootstrap import Setup

if TYPE_CHECKING:
    from ftrun.host.ports import ReservedPort


class Launcher:
    """Starts the command once, or once for each local rank (`--nproc-per-node`).

    `reports`: descriptors, each readable once the exec of a child has succeeded or failed, and its local rank; empty
    between starts."""

    def __init__(
        self, command: Sequence[str], setup: Setup, control: JobControl, poll: select.poll, capture: OutputPipes
    ) -> None:
        self._command, self._setup, self._control, self._poll = command, setup, control, poll
        self._capture = capture
        self.reports: dict[int, int] = {}
        self._started: tuple[LocalRank, ...] = ()
        self._problem: ev.SpawnFailed | None = None
        self._port: ReservedPort | None = None
        self._null: int | None = None
        self._program = command[0]  # that is executed

    def start(self, ledger: Ledger) -> ev.SpawnFailed | None:
        """Fork without waiting for the execs.  Returns an event if a process could not be created."""
        setup, world = self._setup, self._setup.local_world(ledger, 0)
        self._started, self._problem = (), None
        environment, terminal = setup.environment(ledger), self._control.offer()
        command = setup.command(self._command, ledger)
        self._program = command[0]
        try:
            if world is not None:
                world = world._replace(port=self._reserve_port())
            for local_rank in range(world.local_size if world else 1):
                child = spawn.spawn(
                    command,
                    environment | (world.variables(local_rank, environment) if world else {}),
                    setup.signals.inherited,
                    None if local_rank else terminal,
                    os.getpid() != 1,
                    self._streams(local_rank),
                    setup.tree.group or 0,
                )
                setup.tree.started(child.pid, local_rank)
                self.reports[child.report] = local_rank
                self._poll.register(child.report, select.POLLIN)
                if world is not None:
                    self._started += (LocalRank(world.first + local_rank, local_rank, child.pid),)
        except (OSError, ValueError) as error:  # no more processes or memory; a NUL in an argument
            why = f"cannot start a process: {error}"
            setup.console.print(why)
            for report in [*self.reports]:
                self._close(report)
            return ev.SpawnFailed(time.monotonic(), exit_codes.INTERNAL.code, why)
        return None

    def _reserve_port(self) -> int:
        """A port for this attempt alone: what an earlier one left on its port must not meet this one."""
        from ftrun.host.ports import ReservedPort

        if self._port is not None:
            self._port.close()
        self._port = ReservedPort()
        return self._port.number

    def _streams(self, local_rank: int) -> dict[int, int]:
        """The standard streams of a rank.  A terminal belongs to rank 0; the others read the end of a file."""
        streams = self._capture.streams(local_rank)
        if local_rank == 0 or not os.isatty(0):
            return streams
        if self._null is None:
            self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return {**streams, 0: self._null}

    def collect(self, now: float) -> ev.CommandSpawned | ev.SpawnFailed | None:
        """Read and close the reports that are readable; the next descriptor that is opened may get such a number.
        Returns the outcome with the last one."""
        for report in select.select([*self.reports], [], [], 0)[0]:
            content = os.read(report, 16)
            self._close(report)
            if content and self._problem is None:
                code, why = spawn.explain_exec_failure(self._program, int(content))
                self._setup.console.print(why, level=0, severity="error")
                self._problem = ev.SpawnFailed(now, code, why)
        if self.reports:
            return None
        if self._problem is not None:
            return self._problem
        return ev.CommandSpawned(now, self._setup.tree.command or 0, self._started)

    def _close(self, report: int) -> None:
        self._poll.unregister(report)
        os.close(report)
        del self.reports[report]


def tidy(beat_folder: str) -> None:
    """Work that can wait until the command has started."""
    gc.collect()  # empties CPython's free lists, which each tuple() of a generator grows, up to 2,000 per size
    beat_folders.remove_stale(beat_folder)
