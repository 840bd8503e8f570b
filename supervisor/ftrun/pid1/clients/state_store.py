"""Client of the state store, the helper that keeps in the state dir what outlives the pod."""

import json
import os
import time
from typing import Final

from ftrun.config.derived import state_dir
from ftrun.core.machine import events as ev
from ftrun.core.machine.values import Ledger
from ftrun.core.rules import exit_codes
from ftrun.core.rules.fault_history import Occurrence, Schedule
from ftrun.messages import state_store as messages
from ftrun.pid1.clients.base import Client

DRIFT: Final = 30.0  # s by which the clocks of two nodes may differ
SENT: Final = 64  # faults in one request: a pipe holds 64 KiB


class StateStoreClient(Client[messages.StoreEvent]):
    """`loaded`: the history was received."""

    name = "state_store"
    requests, events = messages.REQUESTS, messages.EVENTS

    def start(self) -> None:
        self.loaded = False
        self.imports = ""  # what an earlier ftrun may have left for `--preload`, as JSON
        self._key = f"{os.uname().nodename}-{os.getpid()}-{time.time_ns()}"
        self._since = time.time()
        self._kept: object = None  # the part of the ledger that was sent last
        self._again: set[Occurrence] = set()  # faults that were sent a second time
        self._final: str | None = None
        # Until the helper confirms it, because the helper may be restarted.
        self._verdict: messages.SharedVerdict | None = None
        self._alone = False
        self._warned = False  # the user was informed that nothing outlives the pod
        work_dir = self.context.work_dir
        self.context.helpers.add(self.name, str(state_dir(self.context.settings)), work_dir.path, work_dir.given)

    def handle(self, message: messages.StoreEvent, now: float) -> list[ev.Event]:
        match message:
            case messages.StoredHistory():
                return [self._merge(message, now)]
            case messages.StoredImports(content):
                self.imports = content
            case messages.Shared(verdict):
                return [_shared(verdict, now)]
            case messages.VerdictStored():
                self._verdict = None
                self.awaited.discard("verdict")
        return []

    def problem(self, what: str, printed: bool = False) -> None:
        """The first problem that means that nothing outlives the pod is printed, since the folder is there for that."""
        lost = what.endswith(messages.NOT_KEPT) and not self._warned
        self._warned = self._warned or lost
        super().problem(what, printed or lost)

    def keep(self, ledger: Ledger, final: str | None = None) -> None:
        """Send the parts of this ledger that outlive the pod.  `final`: the verdict, at the end."""
        final = self._final = final or self._final  # another record may follow
        reached = ledger.reached and (self.loaded or final is not None)  # before that, the earlier best is not known
        saved = ledger.best_checkpoint, ledger.last_checkpoint
        kept = (ledger.start_cnt, ledger.occurrences, reached, ledger.faulted, *saved, final)
        if kept == self._kept or not self.context.helpers.is_running(self.name):
            return
        self._kept = kept
        schedule = Schedule(
            key=self._key,
            number=ledger.schedule_cnt,
            node=self.context.policy.membership.node,
            wall=self._since,
            best_step=ledger.best_step,
            best_checkpoint=ledger.best_checkpoint,
            progressed=reached,
            faulted=ledger.faulted,
            failed=_failed(final),
            phase=self.context.policy.membership.phase,
            job=ledger.job,
            last_step=ledger.last_step,
            last_checkpoint=_path(ledger.last_checkpoint or ""),
            member=self.context.policy.membership.member,
        )
        self.send(messages.Keep(ledger.occurrences[-SENT:], schedule, ledger.start_cnt, final is not None))

    def keep_imports(self, imports: object) -> None:
        if self.context.helpers.is_running(self.name):
            self.send(messages.KeepImports(json.dumps(imports)))

    def consult(self, ledger: Ledger, now: float) -> list[ev.Event]:
        """Ask whether another ftrun of this job has reached a verdict; answered by `VerdictShared`."""
        if not self.context.helpers.is_running(self.name):
            return [ev.VerdictShared(now)]
        self.send(messages.GetVerdict(ledger.schedule_cnt, self._since - DRIFT))
        return []

    def end(self, verdict: messages.SharedVerdict | None, alone: bool) -> None:
        """Send the last requests; `verdict` is for the other ftruns.  `alone`: it is about this member of a group only;
        the others go on, and must not take it for the verdict on the job when they are stopped later."""
        self.awaited.add("history")
        if verdict is not None:
            self.awaited.add("verdict")
            self._verdict, self._alone = verdict, alone
            if self.loaded:
                self._store_verdict()

    def _merge(self, history: messages.StoredHistory, now: float) -> ev.Event:
        if self._verdict is not None:
            self._store_verdict()
        ledger, final = self.context.ledger, self._final
        own = next((one for one in history.schedules if one.key == self._key), None)
        newest = set(ledger.occurrences[-1:]) if ledger is not None else set()
        missing = newest.difference(history.faults, self._again)  # sent to a helper that was dying
        self._again |= missing
        stored = own is not None and (final is None or own.failed == _failed(final))
        if ledger is not None and (not stored or missing):
            self._kept = None  # a started or restarted helper lacks some of it: send it again
            self.keep(ledger, final)
        self.loaded = True
        if own is not None and not missing and final is not None and own.failed == _failed(final):
            self.awaited.discard("history")
        others = tuple(one for one in history.schedules if one.key != self._key)
        return ev.HistoryLoaded(now, history.faults, others)

    def _store_verdict(self) -> None:
        assert self._verdict is not None
        member = self.context.policy.membership.member if self._alone else None
        self.send(messages.StoreVerdict(self._verdict, self._since - DRIFT, member))


def _failed(verdict: str | None) -> bool:
    return verdict not in (None, exit_codes.SUCCEEDED, exit_codes.STOPPED)


def _path(path: str) -> str:
    return path if len(json.dumps(path)) <= messages.PATH else ""


def _shared(found: messages.SharedVerdict | None, now: float) -> ev.VerdictShared:
    if found is None:
        return ev.VerdictShared(now)
    why = f"{found.why} (on {found.node})"
    return ev.VerdictShared(now, found.exit_code, found.verdict, why, found.node, found.device or None)
