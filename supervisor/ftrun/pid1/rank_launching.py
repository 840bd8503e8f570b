"""Start of the ranks that ftrun starts itself (`--nproc-per-node`): all of them, or a single one again."""

import errno
import os
import select
import time
from collections.abc import Mapping, Sequence
from typing import Final

from ftrun.config.group_config import Group
from ftrun.config.local_world import LocalWorld, reads_program
from ftrun.core.machine import events as ev
from ftrun.core.machine.values import Ledger, NodePlace, RankPlace
from ftrun.core.rules import exit_codes
from ftrun.host.output_pipes import OutputPipes
from ftrun.host.ports import ReservedPort
from ftrun.host.spawn import Start
from ftrun.host.standard_input import RankInputs, refusal
from ftrun.host.standby_process import StandbyProcess
from ftrun.host.terminal import JobControl
from ftrun.pid1.bootstrap import Setup, SetupError, local_ranks
from ftrun.pid1.launching import Launcher

# A living process keeps what it was started with.
NOT_BY_ROUND: Final = ("OMP_NUM_THREADS", "TORCHELASTIC_RESTART_COUNT")


class RankLauncher(Launcher):
    """`master`: where rank 0 listens in the round at work; None: as at the start.  `restarted`: local rank and pid of
    ranks that were executed because their standby could not take their place."""

    def __init__(
        self,
        command: Sequence[str],
        setup: Setup,
        control: JobControl,
        poll: select.poll,
        capture: OutputPipes,
        group: Group | None = None,
    ) -> None:
        super().__init__(command, setup, control, poll, capture, group)
        self._port: ReservedPort | None = None
        self._null: int | None = None
        self._inputs = RankInputs()
        self._place: RankPlace | None = None  # in a group
        self.master: tuple[str, int] | None = None
        self._unread: list[int] = []  # reports of processes that replace others: their ends say as much
        self._replacing: dict[int, Start] = {}  # single ranks whose standby has not answered, by pid
        self.restarted: list[tuple[int, int]] = []

    def start(
        self, ledger: Ledger, place: RankPlace | None, node: NodePlace | None, number: int
    ) -> ev.SpawnFailed | None:
        self._place, self.master = place, None
        self._close_unread()
        return super().start(ledger, place, node, number)

    def _of_processes(
        self, ledger: Ledger, place: RankPlace | None, environment: Mapping[str, str], held: bool = False
    ) -> Sequence[Mapping[str, str]]:
        world = self._world(ledger)
        if self._group is not None:
            world = world.placed(place, self._group.address, self._group.job, ledger.epoch)
        else:
            world = world._replace(port=self._reserve_port())
        if not held:
            if not world.port:
                raise OSError(errno.EADDRINUSE, "rank 0 of the group has no free port")
            self._master_port, self._first_rank = world.port, world.first
        return [world.variables(local_rank, environment) for local_rank in range(world.local_size)]

    def _world(self, ledger: Ledger) -> LocalWorld:
        world = self._setup.local_world(ledger)
        assert world is not None, "this launcher is for ranks"
        return world

    def start_rank(self, ledger: Ledger, local_rank: int, variables: Mapping[str, str]) -> int:
        """Start one rank again, with these further variables, beside the others.  Returns its pid; raises OSError or
        ValueError."""
        setup, environment = self._setup, self._environment(ledger)
        environment = {**environment, **self._world_of_round(ledger).variables(local_rank, environment), **variables}
        start = Start(
            setup.command(self._command, ledger, self._node, self.listed_devices),
            environment,
            self._streams(local_rank),
            None,
        )
        pid = self._start_warm(local_rank, start)
        if pid is not None:
            self._replacing[pid] = start
        else:
            pid = self._execute_rank(start)
            if self.standbys is not None:
                self.standbys.rank_started(local_rank, time.monotonic())
        setup.tree.started(pid, local_rank)
        return pid

    def _execute_rank(self, start: Start) -> int:
        child = self._spawn(start)
        self._unread.append(child.report)
        return child.pid

    def begin_round(self, own_port: bool) -> None:
        """Reserve a port for the next round: what the previous round left on its port must not meet it.  Raises
        OSError: there is none, and the next round has that port, too."""
        self._close_unread()
        if own_port:
            self._reserve_port()

    def round_variables(self, ledger: Ledger, local_rank: int) -> dict[str, str]:
        """The variables that differ between two rounds of a living process, and those with its place."""
        found = self._world_of_round(ledger).variables(local_rank, os.environ)
        return {name: value for name, value in found.items() if name not in NOT_BY_ROUND}

    def _world_of_round(self, ledger: Ledger) -> LocalWorld:
        world, place, group = self._world(ledger), self._place, self._group
        if place is None or group is None:
            return world._replace(port=self._port.number if self._port else 0)
        if self.master is not None:
            place = place._replace(address=self.master[0], port=self.master[1])
        return world.placed(place, group.address, group.job, ledger.epoch)

    def _close_unread(self) -> None:
        while self._unread:
            os.close(self._unread.pop())

    def awaits(self, pid: int) -> bool:
        return super().awaits(pid) or pid in self._replacing

    def _answered(self, standby: StandbyProcess, warm: bool, now: float, watched: bool) -> None:
        start = self._replacing.pop(standby.pid, None)
        if start is None:
            super()._answered(standby, warm, now, watched)
            return
        assert self.standbys is not None
        local_rank = self._setup.tree.processes[standby.pid]
        self.standbys.rank_started(local_rank, now)
        if not warm and watched:
            self._restart_rank(local_rank, standby.pid, start)

    def _restart_rank(self, local_rank: int, standby: int, start: Start) -> None:
        """Execute a rank whose standby could not take its place.  If that is not possible, the end of the standby
        counts as the end of the rank."""
        try:
            pid = self._execute_rank(start)
        except (OSError, ValueError) as error:
            self._setup.console.print(f"cannot start a process for local rank {local_rank}: {error}")
            return
        self._setup.tree.replaced(standby, pid)
        self.restarted.append((local_rank, pid))

    def _reserve_port(self) -> int:
        """A port for this attempt alone: what an earlier one left on its port must not meet this one."""
        before, self._port = self._port, ReservedPort()
        if before is not None:
            before.close()
        return self._port.number

    def _streams(self, local_rank: int) -> Mapping[int, int]:
        """The standard streams of a rank.  A terminal belongs to rank 0; the others read the end of a file."""
        streams = super()._streams(local_rank)
        if (own := self._inputs.of_starting(local_rank)) is not None:
            return {**streams, 0: own}
        if local_rank == 0 or not os.isatty(0):
            return streams
        if self._null is None:
            self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return {**streams, 0: self._null}

    def close(self) -> None:
        self._inputs.close()

    def _close(self) -> None:
        super()._close()
        if self.standbys is not None:
            self._replacing.clear()


def check_input(command: Sequence[str], asked: int | str) -> None:
    """Raise SetupError if several ranks would share a program that comes by standard input."""
    if reads_program(command) and local_ranks(asked) > 1 and (why := refusal()) is not None:
        text = f"the ranks cannot each read their program from standard input: {why}; give it as a file"
        raise SetupError(exit_codes.USAGE.code, text)
