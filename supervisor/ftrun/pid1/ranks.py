"""The ranks that ftrun itself starts (`--nproc-per-node`): which of them run, and when their ends are the command's."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ftrun.core.machine.events import CommandExited
from ftrun.core.machine.values import LocalRank

if TYPE_CHECKING:
    from ftrun.core.rules.first_death import Death


class RankProcesses:
    """The ranks of the attempt that was spawned last; without ranks, `processes` is empty and the command is one
    process.  `living`: their pids that have not ended.  `failures`: how ranks failed, by pid, in the order of time."""

    def __init__(self) -> None:
        self.processes: tuple[LocalRank, ...] = ()
        self.living: set[int] = set()
        self.failures: dict[int, CommandExited] = {}
        self._stopped: set[int] = set()
        self._ended = False  # the end of the command was reported
        self.port = 0  # MASTER_PORT of rank 0

    def spawned(self, processes: tuple[LocalRank, ...], port: int = 0) -> None:
        self.__init__()  # type: ignore[misc]
        self.port = port
        self.processes, self.living = processes, {process.pid for process in processes}

    def recovers(self, gone: int) -> None:
        """The process `gone` has ended, and the attempt goes on without it."""
        self._stopped.discard(gone)
        self.living.discard(gone)

    def started(self, local_rank: int, pid: int) -> None:
        """This process takes the place of the rank's earlier process."""
        self.living -= {process.pid for process in self.processes if process.local_rank == local_rank}
        self.processes = tuple(
            process._replace(pid=pid) if process.local_rank == local_rank else process for process in self.processes
        )
        self.living.add(pid)

    def stopped(self, pid: int, living: Iterable[int]) -> bool:
        """A process was stopped by job control.  Returns whether the whole command is stopped now."""
        self._stopped.add(pid)
        return self._stopped.issuperset(living)

    def continued(self, pid: int) -> None:
        """A process was continued by job control."""
        self._stopped.discard(pid)

    def exited(self, pid: int, exited: CommandExited, waits_for_all: bool) -> CommandExited | None:
        """A rank has ended.  Returns the end of the command, once: at the first failure, or when all have ended
        (`waits_for_all`: only then, because the ranks were asked to end)."""
        self._stopped.discard(pid)
        self.living.discard(pid)
        rank = next(process.rank for process in self.processes if process.pid == pid)
        if exited.code != 0:
            self.failures[pid] = exited._replace(rank=rank)
        if self._ended or (self.living and (waits_for_all or not self.failures)):
            return None
        self._ended = True
        return next(iter(self.failures.values()), exited)

    @property
    def deaths(self) -> "list[Death]":
        """The failures as a launcher would report them."""
        from ftrun.core.rules.first_death import Death  # needed after a failure only

        return [
            Death(end.rank or 0, pid, -end.signal if end.signal is not None else end.code or 0)
            for pid, end in self.failures.items()
        ]
