"""Start of the command: the forks, the reports of the execs, and the work of PID 1 that follows them."""

import errno
import gc
import os
import select
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ftrun.core.machine import events as ev
from ftrun.core.machine.values import Ledger, LocalRank, NodePlace, RankPlace
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules import exit_codes
from ftrun.host import beat_folders, spawn
from ftrun.host.output_pipes import OutputPipes
from ftrun.host.terminal import JobControl
from ftrun.pid1.bootstrap import Setup

if TYPE_CHECKING:
    from ftrun.config.group_config import Group
    from ftrun.config.local_world import LocalWorld
    from ftrun.host.ports import ReservedPort
    from ftrun.pid1.standby import Standbys

# A living process keeps what it was started with.
NOT_BY_ROUND: Final = ("OMP_NUM_THREADS", "TORCHELASTIC_RESTART_COUNT")


class Launcher:
    """Starts the command once, or once for each local rank (`--nproc-per-node`).

    `report`: a descriptor that is readable once an exec has failed or all have succeeded; None between starts.  It is
    one for all ranks, so that PID 1 does not wake up for each of them while they start."""

    def __init__(
        self,
        command: Sequence[str],
        setup: Setup,
        control: JobControl,
        poll: select.poll,
        capture: OutputPipes,
        group: "Group | None" = None,
    ) -> None:
        self._command, self._setup, self._control, self._poll = command, setup, control, poll
        self._capture, self._group = capture, group
        self.report: int | None = None
        self._started: tuple[LocalRank, ...] = ()
        self._problem: ev.SpawnFailed | None = None
        self._port: ReservedPort | None = None
        self._null: int | None = None
        self._master_port = 0  # of the ranks
        self._first_rank: int | None = None  # the number of local rank 0 in the job; None: the command is one process
        self._node: NodePlace | None = None  # of this member, where it may change
        self._place: RankPlace | None = None  # of the ranks, in a group
        self.master: tuple[str, int] | None = None  # where rank 0 listens in the round at work; None: as at the start
        self._program = command[0]  # that is executed
        self._unread: list[int] = []  # reports of processes that replace others: their ends say as much
        self._written: int | None = None  # the end of the report that its processes have inherited
        self._starts: list[Start] = []  # by local rank
        self._replacing: dict[int, Start] = {}  # single ranks whose standby has not answered, by pid
        self.restarted: list[tuple[int, int]] = []  # local rank and pid of ranks that were executed instead of these
        self.standbys = standbys(setup, poll)

    def start(
        self, ledger: Ledger, place: RankPlace | None, node: NodePlace | None, number: int
    ) -> ev.SpawnFailed | None:
        """Fork without waiting for the execs, for the round `number`.  Returns an event if a process could not be
        created."""
        self._node = self._reachable(node)
        setup, world, group = self._setup, self._setup.local_world(ledger), self._group
        self._started, self._problem, self._place, self.master = (), None, place, None
        self._close_unread()
        environment, terminal = self._environment(ledger), self._control.offer()
        environment |= {"FTRUN_ROUND": str(number)} if number > 1 else {}
        command = setup.command(self._command, ledger, self._node)
        self._program = command[0]
        try:
            if world is not None and group is not None:
                world = world.placed(place, group.address, group.job, ledger.epoch)
            elif world is not None:
                world = world._replace(port=self._reserve_port())
            if world is not None and not world.port:
                raise OSError(errno.EADDRINUSE, "rank 0 of the group has no free port")
            self._master_port = world.port if world else 0
            self.report, self._written = spawn.report_pipe()
            self._poll.register(self.report, select.POLLIN)
            self._starts = self._all_starts(command, environment, world, terminal)
            self._first_rank = None if world is None else world.first
        except (OSError, ValueError) as error:
            return self._failed(error)
        if self.standbys is not None:
            self.standbys.spawning(self._starts, command, time.monotonic())
            if self.standbys.preparing:
                return None
        return self._start_all()

    def hold(self, ledger: Ledger, place: RankPlace | None, node: NodePlace) -> None:
        """This member waits as a spare: have standbys ready for a start at a place like this."""
        if self.standbys is not None and (group := self._group) is not None:
            self._node, world = self._reachable(node), self._setup.local_world(ledger)
            world = world and world.placed(place, group.address, group.job, ledger.epoch)
            command = self._setup.command(self._command, ledger, self._node)
            self.standbys.hold(self._all_starts(command, self._environment(ledger), world, None), command)

    def _reachable(self, node: NodePlace | None) -> NodePlace | None:
        """This member's place with the address of the first one, where the number of members may change."""
        if node is None or self._group is None or not self._group.is_elastic:
            return None
        return node._replace(master=node.master or self._group.address)

    def _all_starts(
        self, command: Sequence[str], environment: Mapping[str, str], world: "LocalWorld | None", terminal: int | None
    ) -> list["Start"]:
        return [
            Start(
                command,
                {**environment, **(world.variables(local_rank, environment) if world else {})},
                self._streams(local_rank),
                None if local_rank else terminal,
            )
            for local_rank in range(world.local_size if world else 1)
        ]

    def _start_all(self) -> ev.SpawnFailed | None:
        try:
            for local_rank, start in enumerate(self._starts):
                pid = self._start_warm(local_rank, start) or self._start_cold(start)
                self._setup.tree.started(pid, local_rank)
                if self._first_rank is not None:
                    self._started += (LocalRank(self._first_rank + local_rank, local_rank, pid),)
        except (OSError, ValueError) as error:  # no more processes or memory; a NUL in an argument
            return self._failed(error)
        self._await_report()
        return None

    def _failed(self, error: OSError | ValueError) -> ev.SpawnFailed:
        why = f"cannot start a process: {error}"
        self._setup.console.print(why)
        self._close()
        return ev.SpawnFailed(time.monotonic(), exit_codes.INTERNAL.code, why)

    def _environment(self, ledger: Ledger) -> dict[str, str]:
        """The environment of the command.  Where the number of members that work may change, it has this member's
        place, with the names that torchrun and its operators use."""
        environment, node = self._setup.environment(ledger), self._node
        if node is None:
            return environment
        place = {"NNODES": node.nodes, "GROUP_WORLD_SIZE": node.nodes, "GROUP_RANK": node.number}
        environment |= {name: str(value) for name, value in (place | {"NODE_RANK": node.number}).items()}
        return environment | ({"MASTER_ADDR": node.master} if node.master else {})

    def _await_report(self) -> None:
        """Close the end of the report that further processes would need, unless a standby may have to be replaced."""
        waits = self.standbys is not None and self.standbys.starting
        if self._written is not None and not waits:
            os.close(self._written)
            self._written = None

    def start_rank(self, ledger: Ledger, local_rank: int, variables: Mapping[str, str]) -> int:
        """Start one rank again, with these further variables, beside the others.  Returns its pid; raises OSError or
        ValueError."""
        setup = self._setup
        world, environment = self._world_of_round(ledger), self._environment(ledger)
        environment = environment | (world.variables(local_rank, environment) if world else {}) | dict(variables)
        start = Start(setup.command(self._command, ledger, self._node), environment, self._streams(local_rank), None)
        pid = self._start_warm(local_rank, start)
        if pid is not None:
            self._replacing[pid] = start
        else:
            pid = self._execute_rank(start)
            if self.standbys is not None:
                self.standbys.rank_started(local_rank, time.monotonic())
        setup.tree.started(pid, local_rank)
        return pid

    def _execute_rank(self, start: "Start") -> int:
        setup = self._setup
        child = spawn.spawn(
            start.command,
            start.environment,
            setup.signals.inherited,
            None,
            os.getpid() != 1,
            start.streams,
            setup.tree.joinable_group(),
        )
        self._unread.append(child.report)
        return child.pid

    def begin_round(self, own_port: bool) -> None:
        """Reserve a port for the next round: what the one before left on its port must not meet it."""
        self._close_unread()
        if own_port:
            self._reserve_port()

    def round_variables(self, ledger: Ledger, local_rank: int) -> dict[str, str]:
        """The variables that differ between two rounds of a living process, and those with its place."""
        world = self._world_of_round(ledger)
        found = world.variables(local_rank, os.environ) if world else {}
        return {name: value for name, value in found.items() if name not in NOT_BY_ROUND}

    def _world_of_round(self, ledger: Ledger) -> "LocalWorld | None":
        world, place, group = self._setup.local_world(ledger), self._place, self._group
        if world is None or place is None or group is None:
            return world and world._replace(port=self._port.number if self._port else 0)
        if self.master is not None:
            place = place._replace(address=self.master[0], port=self.master[1])
        return world.placed(place, group.address, group.job, ledger.epoch)

    def _close_unread(self) -> None:
        while self._unread:
            os.close(self._unread.pop())

    def _start_cold(self, start: "Start") -> int:
        """Returns the pid; raises OSError or ValueError."""
        setup, terminal = self._setup, start.terminal
        assert self.report is not None
        assert self._written is not None
        child = spawn.spawn(
            start.command,
            start.environment,
            setup.signals.inherited,
            terminal,
            os.getpid() != 1,
            start.streams,
            setup.tree.joinable_group(),
            (self.report, self._written),
        )
        return child.pid

    def _start_warm(self, local_rank: int, start: "Start") -> int | None:
        """Start a standby, if there is one for this.  Its answer is its report."""
        standby = None if self.standbys is None else self.standbys.take(local_rank, start)
        if standby is None:
            return None
        assert self.standbys is not None
        tree = self._setup.tree
        if start.terminal is not None:
            self._control.give(standby.pid)
        if not self.standbys.begin(standby, start, tree.joinable_group(), time.monotonic()):
            return None
        tree.include(standby.pid)
        return standby.pid

    @property
    def descriptors(self) -> set[int]:
        """What reports to `collect`, and may be closed by it; empty between starts."""
        answers = set() if self.standbys is None else {*self.standbys.starting}
        if self._is_preparing:
            answers |= self.standbys.descriptors if self.standbys else set()
        return answers if self.report is None else answers | {self.report}

    @property
    def deadline(self) -> float | None:
        """When standbys that have not answered their start are given up, or the start need not wait for their imports
        any more."""
        if self.standbys is None:
            return None
        if self._is_preparing:
            return self.standbys.deadline
        return self.standbys.answers_due

    @property
    def _is_preparing(self) -> bool:
        return self.standbys is not None and self.standbys.preparing

    def is_late(self, now: float) -> bool:
        return self.deadline is not None and now >= self.deadline

    def awaits(self, pid: int) -> bool:
        """Whether a change of this process is to be seen by `collect` first."""
        return self.report is not None or pid in self._replacing

    def _settle_warm(self, answers: int, now: float, watched: bool) -> None:
        """A standby may have answered, ended, or be late: without a good answer the command is executed instead."""
        assert self.standbys is not None
        standby, tree = self.standbys.starting[answers], self._setup.tree
        warm = self.standbys.answered(answers, now)
        if warm is None:
            return
        if (start := self._replacing.pop(standby.pid, None)) is not None:
            local_rank = tree.processes[standby.pid]
            self.standbys.rank_started(local_rank, now)
            if not warm and watched:
                self._restart_rank(local_rank, standby.pid, start)
            return
        if warm:
            return
        try:
            pid = self._start_cold(self._starts[tree.processes[standby.pid]])
        except (OSError, ValueError) as error:
            why = f"cannot start a process: {error}"
            self._setup.console.print(why)
            self._problem = self._problem or ev.SpawnFailed(now, exit_codes.INTERNAL.code, why)
            tree.reaped(standby.pid)
            return
        tree.replaced(standby.pid, pid)
        self._started = tuple(one._replace(pid=pid) if one.pid == standby.pid else one for one in self._started)
        self._repeat_stop([pid])

    def _repeat_stop(self, pids: Iterable[int]) -> None:
        """A request to end came before these were executed, and has reached at most standbys."""
        if (stop := self._setup.signals.stop) is not None:
            for pid in pids:
                os.kill(pid, stop)

    def _restart_rank(self, local_rank: int, standby: int, start: "Start") -> None:
        """Where this is not possible, the end of the standby is that of the rank."""
        try:
            pid = self._execute_rank(start)
        except (OSError, ValueError) as error:
            self._setup.console.print(f"cannot start a process for local rank {local_rank}: {error}")
            return
        self._setup.tree.replaced(standby, pid)
        self.restarted.append((local_rank, pid))

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

    def collect(self, now: float, watched: bool) -> ev.CommandSpawned | ev.SpawnFailed | None:
        """Read the report and close it at its end; the next descriptor that is opened may get its number.  Returns the
        outcome once every process has executed, or could not.  `watched`: no end of the tree is under way."""
        if self._is_preparing and self.standbys is not None:
            if not self.standbys.prepared(now):
                return None
            if (failed := self._start_all()) is not None:
                return failed
            self._repeat_stop(self._setup.tree.processes)
        for answers in [*self.standbys.starting] if self.standbys is not None else ():
            self._settle_warm(answers, now, watched)
        if self.report is None:  # it was about a single rank
            return None
        self._await_report()
        while self.report is not None:
            try:
                content = os.read(self.report, 4096)
            except BlockingIOError:
                return None
            if not content:
                self._close()
            elif self._problem is None:
                code, why = spawn.explain_exec_failure(self._program, int(content.split()[0]))
                self._setup.console.print(why, level=0, severity="error")
                self._problem = ev.SpawnFailed(now, code, why)
        if self._problem is not None:
            return self._problem
        if self.standbys is not None:
            self.standbys.spawned()
        return ev.CommandSpawned(now, self._setup.tree.command or 0, self._started, self._master_port)

    def _close(self) -> None:
        if self.standbys is not None:
            self.standbys.abandon()
            self._replacing.clear()
        self._await_report()
        if self.report is not None:
            self._poll.unregister(self.report)
            os.close(self.report)
            self.report = None


class Start(NamedTuple):
    """How one process of the command is started.  `terminal`: see `spawn.spawn`."""

    command: Sequence[str]
    environment: Mapping[str, str]
    streams: Mapping[int, int]
    terminal: int | None


def standbys(setup: Setup, poll: select.poll) -> "Standbys | None":
    """None without these options, and then nothing of it is loaded."""
    if setup.settings["standby"].value is None and not setup.settings["preload"].value:
        return None
    from ftrun.pid1.standby import Standbys

    return Standbys(setup, poll)


def tidy(beat_folder: str) -> None:
    """Work that can wait until the command has started."""
    gc.collect()  # empties CPython's free lists, which each tuple() of a generator grows, up to 2,000 per size
    beat_folders.remove_stale(beat_folder)
    beat_folders.keep_bytecode()
