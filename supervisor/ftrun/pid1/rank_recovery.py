"""What PID 1 does for single ranks: it ends the processes that they leave, exchanges messages with those that can
recover, ends them, and starts them again.

PID 1 relies on no rank: a connection to the control socket that is closed, silent or full changes nothing by itself,
and a rank that does not come to the next round in time is replaced.  A malformed packet, or one of a process that does
not belong to the rank that it names, ends its connection, with one `problem` record.
"""

import select
import time
from collections.abc import Callable, Iterator
from typing import Final

import ftrun.core.machine.ranks  # noqa: F401 - loaded in advance: after a failure the disk may not answer
from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.values import Ledger
from ftrun.core.ranks.table import AskedRetry, FenceRank, LeftRound, RankReport, SaidHello
from ftrun.core.rules.policy import Policy
from ftrun.host.rank_killer import RankKiller
from ftrun.host.rank_socket import RankConnection, RankSocket
from ftrun.host.tree import Tree
from ftrun.messages import ranks
from ftrun.messages.codec import Malformed
from ftrun.pid1.bootstrap import Setup
from ftrun.pid1.exit_cause import ExitCause, RankProcesses
from ftrun.pid1.launching import Launcher
from ftrun.pid1.rank_launching import RankLauncher
from ftrun_hooks import layout

MOST: Final = 1024  # connections
BATCH: Final = 16  # packets of one connection in a row
LONGEST_WHY: Final = 300  # characters
MOST_HELD: Final = 8  # snapshots of one rank


class RankRecovery:
    """`problem` records a problem, a line."""

    def __init__(
        self,
        setup: Setup,
        policy: Policy,
        poll: select.poll,
        launcher: Launcher,
        processes: RankProcesses,
        cause: ExitCause,
        problem: Callable[[str], None],
    ) -> None:
        assert isinstance(launcher, RankLauncher), "ftrun starts the ranks"
        self._recovers, self._shared = bool(policy.recover), policy.membership.group
        self._setup, self._poll, self._launcher, self._processes = setup, poll, launcher, processes
        self._cause, self._problem, self._killer = cause, problem, RankKiller(setup.tree)
        self._channel: RankChannel | None = None
        self._round = 1  # the round for which the last preparations were made

    @property
    def due(self) -> float | None:
        """When `receive` has to be called next, also without a message."""
        return self._killer.recheck_at

    def spawning(self, number: int) -> None:
        """The ranks are about to be started, for this round: they can reach PID 1 from now on."""
        self.close()
        self._round = number
        if not self._recovers:
            return
        try:
            self._channel = RankChannel(f"{self._setup.beats.path}/{layout.RANKS}", self._poll, self._setup.tree)
            self._setup.beats.access.grant()
        except OSError as error:
            self._problem(f"ranks cannot recover: {layout.RANKS}: {error.strerror}")

    def receive(self, ready: set[int] | None, now: float, watched: bool) -> list[ev.Event]:
        """What the ranks have reported, on the descriptors that are readable or (None) on all, and which of them have
        ended.  `watched`: no end of the whole tree is under way."""
        events: list[ev.Event] = []
        while self._launcher.restarted:
            local_rank, pid = self._launcher.restarted.pop(0)
            self._processes.started(local_rank, pid)
            events.append(ev.RankStarted(now, local_rank, pid))
        if self._channel is not None:
            events += [ev.RankReported(now, report) for report in self._channel.receive(ready)]
            while self._channel.problems:
                self._problem(self._channel.problems.pop(0))
        if not watched:
            self._killer.forget()
        elif self._killer.recheck_at is not None:
            events += self._killer.check()
        return events

    def perform(self, effect: do.RankEffect, ledger: Ledger) -> list[ev.Event]:
        now = time.monotonic()
        match effect:
            case do.EndRank(local_rank):
                self._killer.end(local_rank)
                return self._killer.check()
            case do.FindLeftovers(local_rank):
                self._killer.find_leftovers(local_rank)
            case do.EndLeftovers(local_rank, grace):
                self._killer.end_leftovers(local_rank, grace)
            case do.StartRank():
                return self._start(effect, ledger, now)
            case do.FenceRank() | do.BeginRound() | do.ReleaseSnapshot():
                if isinstance(effect, do.BeginRound):
                    self._prepare(effect.round, now)
                    self._launcher.master = effect.master
                    effect = effect._replace(variables=self._variables(ledger, effect.local_rank))
                if self._channel is not None:
                    self._channel.send(effect)
        return []

    def _start(self, effect: do.StartRank, ledger: Ledger, now: float) -> list[ev.Event]:
        self._prepare(effect.round, now)
        self._setup.starts.started(effect.start_cnt)
        own = {"MA_PROC_START_CNT": effect.start_cnt, "FTRUN_ROUND": effect.round}
        if not self._shared:  # in a group it is the same for all ranks
            own |= {"TORCHELASTIC_RESTART_COUNT": effect.start_cnt - 1}
        try:
            pid = self._launcher.start_rank(ledger, effect.local_rank, {name: str(own[name]) for name in own})
        except (OSError, ValueError) as error:
            self._problem(f"cannot start a process for local rank {effect.local_rank}: {error}")
            return []  # it does not report in time
        self._processes.started(effect.local_rank, pid)
        return [ev.RankStarted(now, effect.local_rank, pid)]

    def _prepare(self, number: int, now: float) -> None:
        """Prepare a round, once: reserve a port for it, and forget the failures of the round before.  In a group member
        0 offers the port."""
        if number == self._round:
            return
        self._round = number
        try:
            self._launcher.begin_round(own_port=not self._shared)
        except OSError as error:
            self._problem(f"no port for round {number}, which gets that of the round before: {error.strerror}")
        self._cause.spawning(now)
        self._cause.spawned()

    def _variables(self, ledger: Ledger, local_rank: int) -> dict[str, str]:
        return self._launcher.round_variables(ledger, local_rank) | {"FTRUN_ROUND": str(self._round)}

    def close(self) -> None:
        """The attempt is over: no rank can reach PID 1 any more."""
        self._killer.forget()
        if self._channel is not None:
            self._channel.close()
            self._channel = None


# --- the control socket -----------------------------------------------------------------------------------------------


class RankChannel:
    """Listens at `path` until `close`.  Raises OSError if it cannot.  `problems`: lines for records."""

    def __init__(self, path: str, poll: select.poll, tree: Tree) -> None:
        self._poll, self._tree = poll, tree
        self._socket = RankSocket(path)
        self._poll.register(self._socket.fd, select.POLLIN)
        self._peers: dict[int, RankConnection] = {}  # by descriptor
        self._ranks: dict[int, int] = {}  # local ranks, by the descriptor of those that have said hello
        self.problems: list[str] = []

    def receive(self, ready: set[int] | None) -> list[RankReport]:
        """What the ranks report on the descriptors that are readable; None: on all, new connections included."""
        reports = [] if ready is None else self._receive_all(ready)
        if ready is None or self._socket.fd in ready:
            while (peer := self._socket.accept()) is not None:
                self._peers[peer.fd] = peer
                self._poll.register(peer.fd, select.POLLIN)
                if len(self._peers) > MOST:
                    self._refuse(peer.fd, f"more than {MOST} connections")
        return self._receive_all({*self._peers}) if ready is None else reports

    def _receive_all(self, ready: set[int]) -> list[RankReport]:
        return [report for fd in sorted(ready & self._peers.keys()) for report in self._receive_from(fd)]

    def _receive_from(self, fd: int) -> Iterator[RankReport]:
        for _ in range(BATCH):
            if fd not in self._peers:  # another connection has taken its place
                return
            packet = self._peers[fd].receive(ranks.LARGEST + 1)
            if packet is None:
                return
            if not packet:
                self._close(fd)
                return
            try:
                if len(packet) > ranks.LARGEST:
                    raise Malformed(f"more than {ranks.LARGEST} bytes")
                report = self._checked(fd, ranks.FROM_RANK.load(packet))
            except Malformed as why:
                self._refuse(fd, str(why))
                return
            yield report

    def _checked(self, fd: int, report: RankReport) -> RankReport:
        """The report of a process of the rank that it names, with bounded texts and lists."""
        if isinstance(report, SaidHello):
            self._admit(fd, report.local_rank)
        elif self._ranks.get(fd) != report.local_rank:
            raise Malformed(f"a message of local rank {report.local_rank}, which has not said hello here")
        if isinstance(report, SaidHello | LeftRound):
            report = report._replace(held=tuple(one for one in report.held[-MOST_HELD:] if one.step >= 0))
        if isinstance(report, LeftRound):
            return report._replace(problem=report.problem and report.problem[:LONGEST_WHY])
        return report._replace(why=report.why[:LONGEST_WHY]) if isinstance(report, AskedRetry) else report

    def _admit(self, fd: int, local_rank: int) -> None:
        """The first message of a process.  A later connection of a rank replaces the earlier one."""
        if not self._tree.is_below(self._peers[fd].pid, local_rank):
            raise Malformed(f"process {self._peers[fd].pid} is not one of local rank {local_rank}")
        for other in [known for known, rank in self._ranks.items() if rank == local_rank and known != fd]:
            self._close(other)
        self._ranks[fd] = local_rank

    def send(self, act: ranks.ToRank) -> None:
        """Send it to the rank, if it is connected."""
        fd = next((fd for fd, rank in self._ranks.items() if rank == act.local_rank), None)
        if fd is None:
            return
        if isinstance(act, FenceRank):
            act = act._replace(why=act.why[:LONGEST_WHY])
        if not self._peers[fd].send(ranks.TO_RANK.dump(act)):
            self._close(fd)

    def _refuse(self, fd: int, why: str) -> None:
        self.problems.append(f"a connection to the control socket of the ranks was closed: {why}")
        self._close(fd)

    def _close(self, fd: int) -> None:
        self._poll.unregister(fd)
        self._peers.pop(fd).close()
        self._ranks.pop(fd, None)

    def close(self) -> None:
        """End all connections, and remove the socket."""
        for fd in [*self._peers]:
            self._close(fd)
        self._poll.unregister(self._socket.fd)
        self._socket.close()
