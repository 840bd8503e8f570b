"""Start of the command: the forks, the reports of the execs, and the work of PID 1 that follows them."""

import errno
import gc
import os
import select
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ftrun.config.option_table import Settings
from ftrun.core.machine import events as ev
from ftrun.core.machine.values import Ledger, LocalRank, NodePlace, RankPlace
from ftrun.core.rules import exit_codes
from ftrun.core.text import durations
from ftrun.host import beat_folders, safe_files, spawn
from ftrun.host.output_pipes import OutputPipes
from ftrun.host.spawn import Start
from ftrun.host.terminal import JobControl
from ftrun.pid1.bootstrap import Setup
from ftrun_hooks import layout

if TYPE_CHECKING:
    from ftrun.config.group_config import Group
    from ftrun.core.rules.standby import Mode
    from ftrun.host.standby_process import StandbyProcess
    from ftrun.pid1.clients.base import Context
    from ftrun.pid1.standby import Standbys

LACKS: Final = (errno.EAGAIN, errno.ENOMEM)  # of a fork: others have all processes, or the memory, at the moment
AGAIN: Final = 0.5  # s between two tries of a restart
TRYING: Final = 60.0  # s in which it is tried


class Launcher:
    """Starts the command once; `rank_launching` starts it once for each local rank (`--nproc-per-node`).

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
        self._master_port = 0  # of the ranks
        self._first_rank: int | None = None  # the number of local rank 0 in the job; None: the command is one process
        self._node: NodePlace | None = None  # of this member, where it may change
        self.listed_devices = 0  # as the probe reports them
        self._program = command[0]  # the program that is executed
        self._written: int | None = None  # the end of the report that its processes have inherited
        self._starts: list[Start] = []  # by local rank
        self._lack: OSError | None = None  # why nothing could be forked; it is tried again at `_again`, while it may be
        self._again = self._tried_until = 0.0
        self._shares_group = False  # that no process group could be made was said
        self.standby_request = StandbyRequest(setup, poll)

    @property
    def standbys(self) -> "Standbys | None":
        return self.standby_request.standbys

    def start(
        self, ledger: Ledger, place: RankPlace | None, node: NodePlace | None, number: int
    ) -> ev.SpawnFailed | None:
        """Fork without waiting for the execs, for the round `number`.  Returns an event if a process could not be
        created."""
        self._node = self._reachable(node)
        self._started, self._problem, self._lack = (), None, None
        self._tried_until = time.monotonic() + TRYING if ledger.starts > 1 else 0.0
        environment, terminal = self._environment(ledger), self._control.offer()
        environment |= {"FTRUN_ROUND": str(number)} if number > 1 else {}
        command = self._setup.command(self._command, ledger, self._node, self.listed_devices)
        self._program = command[0]
        try:
            variables = self._of_processes(ledger, place, environment)
            self.report, self._written = spawn.report_pipe()
            self._poll.register(self.report, select.POLLIN)
            self._starts = self._all_starts(command, environment, variables, terminal)
        except (OSError, ValueError) as error:
            return self._failed(error)
        self.standby_request.spawning(self._starts, command, time.monotonic())
        return None if self._is_preparing else self._start_all()

    def _of_processes(
        self, ledger: Ledger, place: RankPlace | None, environment: Mapping[str, str], held: bool = False
    ) -> Sequence[Mapping[str, str]]:
        """The variables of each process beyond `environment`.  `held`: for standbys, at a place that may change.
        Raises OSError."""
        return ({},)

    def prepare_standbys(self, ledger: Ledger, place: RankPlace | None, node: NodePlace) -> None:
        """This member waits as a spare: have standbys ready for a start at a place like this."""
        if (standbys := self.standby_request.for_a_spare()) is not None:
            self._node = self._reachable(node)
            command, environment = (
                self._setup.command(self._command, ledger, self._node, self.listed_devices),
                self._environment(ledger),
            )
            variables = self._of_processes(ledger, place, environment, held=True)
            standbys.prepare_spare(self._all_starts(command, environment, variables, None), command)

    def _reachable(self, node: NodePlace | None) -> NodePlace | None:
        """This member's place with the address of the first one, where the number of members may change."""
        if node is None or self._group is None or not self._group.is_elastic:
            return None
        return node._replace(master=node.master or self._group.address)

    def _all_starts(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        variables: Sequence[Mapping[str, str]],
        terminal: int | None,
    ) -> list[Start]:
        return [
            Start(command, {**environment, **more}, self._streams(local_rank), None if local_rank else terminal)
            for local_rank, more in enumerate(variables)
        ]

    def _start_all(self) -> ev.SpawnFailed | None:
        try:
            for local_rank, start in enumerate(self._starts):
                pid = self._start_warm(local_rank, start) or self._start_cold(start)
                self._setup.tree.started(pid, local_rank)
                if self._first_rank is not None:
                    self._started += (LocalRank(self._first_rank + local_rank, local_rank, pid),)
        except (OSError, ValueError) as error:  # no more processes or memory; a NUL in an argument
            return None if self._try_again(error) else self._failed(error)
        self._lack = None
        self._await_report()
        return None

    def _try_again(self, error: OSError | ValueError) -> bool:
        """Whether a restart for which there are no processes is tried again: the old tree is dead, so that it is others
        who have them, and a job that ran well must not fail for that."""
        now, lacks = time.monotonic(), isinstance(error, OSError) and error.errno in LACKS
        if not lacks or self._setup.tree.processes or self._setup.signals.stop is not None or now >= self._tried_until:
            return False
        if self._lack is None:
            why = f"cannot start a process: {error}; trying again for {durations.seconds(self._tried_until - now)}"
            self._setup.journal.log(why)
            self._setup.console.print(why)
        assert isinstance(error, OSError)
        self._lack, self._again = error, now + AGAIN
        return True

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

    def _start_cold(self, start: Start) -> int:
        """Returns the pid; raises OSError or ValueError."""
        assert self.report is not None
        assert self._written is not None
        return self._spawn(start, (self.report, self._written)).pid

    def _spawn(self, start: Start, reporting: tuple[int, int] | None = None) -> spawn.Child:
        """A new process; `reporting`: see `spawn.spawn`.  Raises OSError or ValueError."""
        setup = self._setup
        child = spawn.spawn(start, setup.signals.inherited, setup.tree.joinable_group(), reporting)
        if not self._shares_group and setup.tree.is_in_own_group(child.pid):
            why = "setpgid is refused here (seccomp?): the command is in the process group of ftrun"
            self._shares_group = True
            setup.journal.log(why)
            setup.console.print(why)
        return child

    def _start_warm(self, local_rank: int, start: Start) -> int | None:
        """Start the standby for this process, if there is one.  Its answer is its report."""
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
        if self._lack is not None:
            return self._again if self._setup.signals.stop is None else 0.0
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
        return self.report is not None

    def _settle_warm(self, answers: int, now: float, watched: bool) -> None:
        """A standby may have answered, ended, or be late: without a good answer the command is executed instead."""
        assert self.standbys is not None
        standby = self.standbys.starting[answers]
        warm = self.standbys.answered(answers, now)
        if warm is not None:
            self._answered(standby, warm, now, watched)

    def _answered(self, standby: "StandbyProcess", warm: bool, now: float, watched: bool) -> None:
        if warm:
            return
        tree = self._setup.tree
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
                with suppress(OSError):  # by now it may be a program of another user
                    os.kill(pid, stop)

    def _streams(self, local_rank: int) -> Mapping[int, int]:
        return self._capture.streams(local_rank)

    def collect(self, now: float, watched: bool) -> ev.CommandSpawned | ev.SpawnFailed | None:
        """Read the report and close it at its end; the next descriptor that is opened may get its number.  Returns the
        outcome once every process has executed, or could not.  `watched`: no end of the tree is under way."""
        if self._is_preparing and self.standbys is not None:
            if not self.standbys.prepared(now):
                return None
            if (failed := self._start_all()) is not None or self._lack is not None:
                return failed
            self._repeat_stop(self._setup.tree.processes)
        if self._lack is not None:
            if not self.is_late(now):
                return None
            if (failed := self._start_all()) is not None or self._lack is not None:
                return failed
            self._repeat_stop(self._setup.tree.processes)
        for answers in [*self.standbys.starting] if self.standbys is not None else ():
            self._settle_warm(answers, now, watched)
        if self.report is None:  # the report was about a single rank
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

    def close(self) -> None:
        """At the end of the run."""

    def _close(self) -> None:
        if self.standbys is not None:
            self.standbys.abandon()
        self._await_report()
        if self.report is not None:
            self._poll.unregister(self.report)
            os.close(self.report)
            self.report = None


class StandbyRequest:
    """Whether there are to be standbys (`--standby`, `--preload`).  `standbys`: None until they are loaded: before the
    command is started only where that may start from one, else after it, and with `auto` only if it is Python."""

    def __init__(self, setup: Setup, poll: select.poll) -> None:
        self._setup, self._poll, self._folder = setup, poll, f"{setup.beats.path}/{layout.IMPORTS}"
        self._mode = standby_mode(setup.settings)
        self.standbys: Standbys | None = None
        self._context: Context | None = None
        self._begun: tuple[Sequence[Start], Sequence[str]] | None = None  # the last start
        if setup.settings.preload or self._mode not in (None, "auto"):
            self._load()

    def attach(self, context: "Context") -> None:
        self._context = context
        if self.standbys is not None:
            self.standbys.attach(context)

    def _load(self) -> "Standbys":
        if self.standbys is None:
            from ftrun.pid1.standby import Standbys

            self.standbys = Standbys(self._setup, self._poll, self._mode)
            if self._context is not None:
                self.standbys.attach(self._context)
        return self.standbys

    def for_a_spare(self) -> "Standbys | None":
        return self.standbys if self._mode is None else self._load()

    def spawning(self, starts: Sequence[Start], command: Sequence[str], now: float) -> None:
        """The command is about to be started: let it report its imports.  `standbys.preparing`: it has to wait."""
        if self._mode is not None and self._begun is None and len(starts) > 1 and self._knows_imports:
            self._load()
        self._begun = starts, command
        if self._mode is None and self.standbys is None:
            return
        problem = None
        try:
            os.makedirs(self._folder, 0o700, exist_ok=True)
            for name in os.listdir(self._folder):
                os.unlink(f"{self._folder}/{name}")
            words = os.fsencode("".join(f"{word}\0" for word in command))
            safe_files.replace(f"{self._folder}/{layout.COMMAND}", words, durable=False)
        except OSError as error:
            problem = f"the imports cannot be reported: {error.strerror}"
        if self.standbys is not None:
            self.standbys.spawning(starts, command, now, problem)

    @property
    def _knows_imports(self) -> bool:
        """Whether an earlier ftrun has left what it has imported for some command."""
        store: Any = None if self._context is None else self._context.running.get("state_store")
        return self._setup.imports is not None or bool(store and store.imports)

    def settled(self) -> None:
        """Work without urgency is done now."""
        is_wanted = self.standbys is None and self._mode is not None
        if is_wanted and self._begun is not None and any(map(_is_python, self._setup.tree.processes)):
            self._load().begun(*self._begun)


def standby_mode(settings: Settings) -> "Mode":
    """With `auto` there are none where ftrun starts nothing again."""
    mode: Mode = settings.standby
    restarts = settings.restart_on and settings.max_restarts != 0
    replaces = settings.nproc_per_node is not None and "rank" in settings.recover
    return mode if mode != "auto" or restarts or replaces else None


def _is_python(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")
    except OSError:  # it has ended, or runs as another user, and would not report its imports
        return False


def tidy(beat_folder: str) -> None:
    """Work that can wait until the command has started."""
    gc.enable()
    gc.collect()  # empties CPython's free lists, which each tuple() of a generator grows, up to 2,000 per size
    beat_folders.remove_stale(beat_folder)
    beat_folders.keep_bytecode()
