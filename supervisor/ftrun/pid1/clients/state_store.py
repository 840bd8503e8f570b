"""Client of the state store (the helper `state_store`): what outlives the pod, in the state dir."""

import os
import time
from typing import Final

from ftrun.config.derived import state_dir
from ftrun.core.machine import events as ev
from ftrun.core.machine.values import Ledger
from ftrun.core.rules import exit_codes
from ftrun.core.rules.fault_history import Clock, Occurrence, Schedule
from ftrun.messages import state_store as messages
from ftrun.pid1.clients.base import Client

DRIFT: Final = 30.0  # s by which the clocks of two nodes may differ
SENT: Final = 64  # faults that the state store is told of: a pipe holds 64 KiB


class StateStore(Client[messages.Event]):
    """`loaded`: the history has come."""

    name = "state_store"
    requests, events = messages.REQUESTS, messages.EVENTS

    def start(self) -> None:
        self.loaded = False
        self._key = f"{os.uname().nodename}-{os.getpid()}-{time.time_ns()}"
        self._since = time.time()
        self._kept: object = None  # of the ledger, by the helper
        self._again: set[Occurrence] = set()  # sent once more
        self._final: str | None = None
        self._verdict: messages.Verdict | None = None  # until the helper has it: it may begin, or begin again
        self.context.helpers.add(self.name, str(state_dir(self.context.settings)))

    def handle(self, message: messages.Event, now: float) -> list[ev.Event]:
        match message:
            case messages.History():
                return [self._remember(message, now)]
            case messages.Shared(verdict):
                return [_shared(verdict, now)]
            case messages.Told():
                self._verdict = None
                self.awaited.discard("told")
        return []

    def keep(self, ledger: Ledger, final: str | None = None) -> None:
        """Have the helper keep what it has to know of this ledger; `final`: the verdict, at the end."""
        final = self._final = final or self._final  # a record may follow the last
        reached = ledger.reached and (self.loaded or final is not None)  # beyond what, is not known before
        kept = (ledger.start_cnt, ledger.occurrences, reached, ledger.faulted, ledger.best_checkpoint, final)
        if kept == self._kept or not self.context.helpers.is_running(self.name):
            return
        self._kept = kept
        schedule = messages.Schedule(
            key=self._key,
            count=ledger.schedule_cnt,
            node=self.context.policy.node,
            wall=self._since,
            best_step=ledger.best_step,
            best_checkpoint=ledger.best_checkpoint,
            progressed=reached,
            faulted=ledger.faulted,
            failed=_failed(final),
            phase=self.context.policy.phase,
            job=ledger.job,
        )
        self.tell(messages.Keep(tuple(map(_fault, ledger.occurrences[-SENT:])), schedule))

    def consult(self, ledger: Ledger, now: float) -> list[ev.Event]:
        """Whether another ftrun of this job has reached a verdict; answered by `VerdictShared`."""
        if not self.context.helpers.is_running(self.name):
            return [ev.VerdictShared(now)]
        self.tell(messages.GetVerdict(ledger.schedule_cnt, self._since - DRIFT))
        return []

    def end(self, verdict: messages.Verdict | None) -> None:
        """The last requests: `verdict` is for the other ftruns."""
        self.awaited.add("kept")
        if verdict is not None:
            self.awaited.add("told")
            self._verdict = verdict
            if self.loaded:
                self._tell_verdict()

    def _remember(self, history: messages.History, now: float) -> ev.Event:
        if self._verdict is not None:
            self._tell_verdict()
        ledger, final = self.context.ledger, self._final
        occurrences = tuple(_occurrence(one) for one in history.faults if max(one.wall, one.mono) <= messages.LATEST)
        schedules = tuple(Schedule(*one) for one in history.schedules)
        ours = next((one for one in schedules if one.key == self._key), None)
        newest = set(ledger.occurrences[-1:]) if ledger is not None else set()
        unheard = newest.difference(occurrences, self._again)  # told to one that was dying
        self._again |= unheard
        heard = ours is not None and (final is None or ours.failed == _failed(final))
        if ledger is not None and (not heard or unheard):
            self._kept = None  # it knows nothing of us, or not all: it has begun, or begun again
            self.keep(ledger, final)
        self.loaded = True
        if ours is not None and not unheard and final is not None and ours.failed == _failed(final):
            self.awaited.discard("kept")
        others = tuple(one for one in schedules if one.key != self._key)
        return ev.HistoryLoaded(now, occurrences, others)

    def _tell_verdict(self) -> None:
        assert self._verdict is not None
        self.tell(messages.TellVerdict(self._verdict, self._since - DRIFT))


def _failed(verdict: str | None) -> bool:
    return verdict not in (None, exit_codes.SUCCEEDED, exit_codes.STOPPED)


def _fault(one: Occurrence) -> messages.Fault:
    at = one.at
    return messages.Fault(one.node, one.device, one.code, one.severity, at.wall, at.boot, at.mono, one.job)


def _occurrence(one: messages.Fault) -> Occurrence:
    return Occurrence(one.node, one.device, one.code, one.severity, Clock(one.wall, one.boot, one.mono), one.job)


def _shared(found: messages.Verdict | None, now: float) -> ev.VerdictShared:
    if found is None:
        return ev.VerdictShared(now)
    why = f"{found.why} (on {found.node})"
    return ev.VerdictShared(now, found.exit_code, found.verdict, why, found.node, found.device or None)
