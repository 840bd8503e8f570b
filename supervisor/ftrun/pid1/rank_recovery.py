"""What PID 1 does for single ranks: it ends what they leave, and those that can recover it talks to, ends and starts
again."""

import select
import time
from collections.abc import Callable
from typing import Final

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine import ranks
from ftrun.core.machine.values import Ledger
from ftrun.core.rules.policy import Policy
from ftrun.host.rank_killer import Ended, RankKiller
from ftrun.pid1.bootstrap import Setup
from ftrun.pid1.exit_cause import ExitCause
from ftrun.pid1.launching import Launcher
from ftrun.pid1.rank_channel import RankChannel
from ftrun.pid1.rank_launching import RankLauncher
from ftrun.pid1.ranks import RankProcesses
from ftrun_hooks import layout

LOADED_EARLY: Final = ranks  # the decisions about ranks: when one has failed is no time to read a disk


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
        self._round = 1  # for which the last preparations were made

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
            events += self._check(now)
        return events

    def _check(self, now: float) -> list[ev.Event]:
        return [
            ev.RankTreeEnded(now, *found) if isinstance(found, Ended) else ev.LeftoversFound(now, *found)
            for found in self._killer.check()
        ]

    def perform(self, effect: do.RankEffect, ledger: Ledger) -> list[ev.Event]:
        now = time.monotonic()
        match effect:
            case do.EndRank(local_rank):
                self._killer.end(local_rank)
                return self._check(now)
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
        """Once a round: a port of its own, and a fresh account of failures.  In a group member 0 offers the port."""
        if number == self._round:
            return
        self._round = number
        self._launcher.begin_round(own_port=not self._shared)
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
