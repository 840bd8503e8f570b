"""The records of one ftrun fed to the pure core: it must come to the same records again, and so to the same end.

A record is what the core answered to some event.  From each one that it has not just answered the event before it is
made up (`_cause`): `exited` was an `CommandExited`, `hang` a suspicion that evidence has proven.  What the records do
not tell is given beside them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.job import decide
from ftrun.core.machine.states import Healing, Job, Launching, Pending, Running, Starting, Stopping, Suspect
from ftrun.core.machine.values import Fault, Ledger, Rank
from ftrun.core.rules.crash_causes import RULES, CommandFailure, ExceptionRecord, Traceback
from ftrun.core.rules.fault_history import Clock
from ftrun.core.rules.policy import Policy

Record = Mapping[str, Any]
WATCHED = (Starting, Running, Suspect)
STOP = (2, 3, 15)
UNDECIDED = (
    "problem",
    "standby",
    "learned",
    "listening",
    "group",
)  # records not made by the core, or of events that it does not get
SAME = (
    "reason",
    "start_cnt",
    "consecutive",
    "verdict",
    "exit_code",
    "code",
    "signal",
    "by",
    "cause",
    "ok",
    "checkpoint",
)
POSTPONED = "; ftrun acts on it when the pause is over"  # ends a problem: a fault that is on record later
TURNS = 4  # events that one record may take
LITTLE = 1e-4  # s; what is rounded in a record
MOMENT = 2e-3  # s from an event to its record


class Beside(NamedTuple):
    """What the records do not contain: the `signals` sent to ftrun (when, which), and the starts in which the training
    reported itself that a restart is useless."""

    signals: Sequence[tuple[float, int]] = ()
    fatal: frozenset[int] = frozenset()


class Replayed(NamedTuple):
    """`wrong`: the first record that the core would not have written; the rest is as the core says.  `verdict` None: it
    did not end."""

    verdict: str | None
    code: int | None
    ledger: Ledger
    consecutive: int
    wrong: str | None = None


def replay(
    records: Iterable[Record], policy: Policy, ledger: Ledger | None = None, beside: Beside | None = None
) -> Replayed:
    """Of one ftrun, from its `started` on, with what it had from those before it."""
    return _Replay(policy, ledger or Ledger(), beside or Beside()).over([dict(record) for record in records])


def _fault(record: Record) -> Fault:
    return Fault(**{name: record[name] for name in Fault._fields if name in record})


class _Replay:
    def __init__(self, policy: Policy, ledger: Ledger, beside: Beside) -> None:
        self.job, self.policy, self.beside = Job(ledger=ledger), policy, beside
        self.pending: list[tuple[do.Persist, int]] = []  # each with the start that it is of
        self.end: do.Exit | None = None
        self.consecutive = 0
        self.launched = 0.0

    def over(self, records: list[dict[str, Any]]) -> Replayed:
        wrong = None
        for index, record in enumerate(records):
            if record["event"] in UNDECIDED:
                self._postpone(record, records[index + 1 :])
                continue
            wrong = self._next(record, records[index + 1 :])
            if wrong is not None:
                wrong = f"record {index}, {record['event']} of start {record['attempt']}: {wrong}"
                break
        if wrong is None and self.pending:
            wrong = f"after the last record the core would have written {self.pending[0][0].event}"
        code = self.end.code if self.end else None
        return Replayed(self.end.verdict if self.end else None, code, self.job.ledger, self.consecutive, wrong)

    def _next(self, record: dict[str, Any], rest: list[dict[str, Any]]) -> str | None:
        """Why the core would not have written that."""
        for _ in range(TURNS):
            if self.pending:
                break
            for event in self._cause(record, rest):
                self._feed(event)
        if not self.pending:
            return f"the core says nothing in {type(self.job.phase).__name__}"
        ours, start = self.pending.pop(0)
        if ours.event != record["event"]:
            return f"the core would have written {ours.event} {dict(ours.fields)}"
        fields = dict(ours.fields)
        if ours.event in ("started", "restart"):
            self.launched = record["mono"]
            self.consecutive = record.get("consecutive", 0)
        for name in SAME:
            if name in fields and name in record and fields[name] != record[name]:
                return f"{name} is {record[name]!r}, the core says {fields[name]!r}"
        if record["attempt"] != start:
            return f"it is of start {record['attempt']}, for the core of {start}"
        return None

    def _feed(self, event: ev.Event) -> None:
        before, (self.job, effects) = self.job.ledger.start_cnt, decide(self.job, event, self.policy)
        for effect, start in do.by_start(effects, before, self.job.ledger.start_cnt):
            if isinstance(effect, do.Persist) and effect.event not in UNDECIDED:
                self.pending.append((effect, start))
        for effect in effects:
            if isinstance(effect, do.Exit):
                self.end = effect

    def _postpone(self, record: Record, rest: list[dict[str, Any]]) -> None:
        """A fault that was reported in a pause becomes a record when the pause ends, or the command does."""
        what = str(record.get("what", ""))
        if not what.endswith(POSTPONED):
            return
        for later in rest:
            if later["event"] == "fault" and what == f"device {later['device']} reports {later['code']}{POSTPONED}":
                self._feed(ev.FaultReported(record["mono"], _fault(later), Clock(record["mono"])))
                return

    # --- from a record to the event before it -------------------------------------------------------------------------

    def _cause(self, record: dict[str, Any], rest: list[dict[str, Any]]) -> list[ev.Event]:
        now, phase = record["mono"], self.job.phase
        match record["event"]:
            case "started":
                # A first start with a state dir waits for what earlier schedules reached; here there are none.
                return [ev.Started(now), *([ev.HistoryLoaded(now, (), ())] if self.policy.membership.recalls else [])]
            case "spawned":
                return [*self._early(now, rest), ev.CommandSpawned(self._executed(now, rest), record["pid"])]
            case "first_beat":
                return [self._first(record, rest)]
            case "progress":
                return [self._progress(record)]
            case "suspect":
                return [self._suspicion(record)]
            case "cleared":
                return [self._cleared(record)]
            case "hang":
                seen = tuple((k, v) for k, v in record.items() if k in ("why", "evidence", "waits"))
                return [ev.EvidenceCollected(now, self._ranks, seen)]
            case "fault" if self.job.paused is not None and isinstance(phase, WATCHED):
                waits = bool(self.job.paused.faults)  # and is handled since the command has ended
                return next((self._exited(one) for one in rest if waits and one["event"] == "exited"), [])
            case "fault":
                return [ev.FaultReported(now, _fault(record), Clock(now))]
            case "order":
                return [self._order(record)]
            case "resumed":
                self._judge_nobody()
                return [ev.DeadlineReached(now)]
            case "stopping" if record["by"] == "outside":
                return [ev.SignalReceived(now, record["signal"], True)]
            case "stopping" if isinstance(phase, Stopping):
                return [ev.DeadlineReached(max(now, phase.deadline or 0.0))]
            case "exited":
                return self._exited(record)
            case "killed":
                by_us = isinstance(phase, Stopping) and phase.stage in ("kill", "inspect")
                return [ev.TreeEnded(now, record["processes"])] if by_us else []
        return self._onwards(record)

    def _onwards(self, record: dict[str, Any]) -> list[ev.Event]:
        """What is waited for, and is no record by itself, has come."""
        now, phase = record["mono"], self.job.phase
        match phase:
            case Healing() if record.get("verdict") != "stopped":
                return [ev.HealingFinished(now, "did not heal" not in record.get("why", ""))]
            case Stopping(stage="devices"):
                return [ev.DevicesReleased(now)]
            case Stopping(stage="verdict"):
                return [ev.VerdictShared(now)]
            case Stopping(stage="inspect"):
                return [ev.ProcessesSurvived(now, (record.get("why", ""),))]
            case Stopping() if record.get("cause") == "unkillable":
                return [ev.DeadlineReached(phase.deadline or now)]
            case Stopping():
                return [ev.TreeEnded(now)]
            case Pending() | Healing() if record["event"] == "ended":
                sent = [number for at, number in self.beside.signals if at <= now and number in STOP]
                return [ev.SignalReceived(now, number, True) for number in sent[-1:]]
            case Pending():
                return [ev.DeadlineReached(max(now, phase.deadline or 0.0))]
            case Launching() if record["event"] == "ended":
                return [ev.SpawnFailed(now, record["exit_code"], record["why"])]
        return []

    @property
    def _ranks(self) -> tuple[Rank, ...]:
        attempt = getattr(self.job.phase, "attempt", None)
        return attempt.ranks if attempt is not None else ()

    def _looked(self, now: float, **changed: Any) -> ev.BeatsRead:
        """One rank stands for all: these records tell no more."""
        rank = self._ranks[0] if self._ranks else Rank(0)
        return ev.BeatsRead(now, (rank._replace(**changed),))

    def _judge_nobody(self) -> None:
        """How long who was silent is not replayed: only what was found, and what became of it."""
        phase = self.job.phase
        if isinstance(phase, Starting | Running | Suspect):
            ranks = tuple(rank._replace(moved_at=rank.moved_at and float("inf")) for rank in phase.attempt.ranks)
            attempt = phase.attempt._replace(aways=(), ranks=ranks)
            self.job = self.job._replace(phase=phase._replace(attempt=attempt))

    def _executed(self, now: float, rest: list[dict[str, Any]]) -> float:
        """A moment before that is on record: a checkpoint seen in between is of this start."""
        seen: list[float] = [r["seen"] for r in rest if r["event"] == "progress" and "seen" in r]
        return min([now, *(at for at in seen if now - MOMENT < at)])

    def _early(self, now: float, rest: list[dict[str, Any]]) -> list[ev.Event]:
        """A signal that asked for the end before the exec leaves no record."""
        this = [r for r in rest if r["attempt"] == self.job.ledger.start_cnt]
        if any(r["event"] == "stopping" and r["by"] == "outside" for r in this):
            return []
        sent = [(at, number) for at, number in self.beside.signals if self.launched - 1 <= at <= now]
        return [ev.SignalReceived(now, number, True) for _, number in sent if number in STOP]

    def _first(self, record: dict[str, Any], rest: list[dict[str, Any]]) -> ev.Event:
        """A start that gets no record for its first step has not come beyond the earlier ones."""
        if not (rest and rest[0]["event"] == "progress" and rest[0]["by"] == "step"):
            self._reached(record.get("step"))
        now = record["mono"]
        return self._looked(now, rank=record["rank"], moved_at=now, step=record.get("step"))

    def _reached(self, step: int | None) -> None:
        """It is on record how far a start came only where that counts."""
        ledger = self.job.ledger
        if step is not None:
            self.job = self.job._replace(ledger=ledger._replace(best_step=max(step, ledger.best_step or 0)))

    def _describe(self, record: dict[str, Any]) -> dict[str, Any]:
        """The report of a checkpoint by the hooks.  One without a path has the path of the previous one."""
        path, ledger = record.get("checkpoint"), self.job.ledger
        number = int((re.findall(r"\d+", str(path).rpartition("/")[2]) or [0])[-1])
        if path is None or path == ledger.last_checkpoint:
            number, path = (ledger.best_checkpoint or 0) + 1, None
        return {"checkpoint_step": number, "checkpoint_path": path, "step": record.get("step")}

    def _progress(self, record: dict[str, Any]) -> ev.Event:
        now, path = record["mono"], record.get("checkpoint")
        if record["by"] == "step":
            return self._looked(now, step=record["step"], moved_at=now)
        if self.policy.files:
            return ev.CheckpointSaved(now, str(path), record["seen"])
        return self._looked(now, moved_at=now, **self._describe(record))

    def _suspicion(self, record: dict[str, Any]) -> ev.Event:
        now, phase = record["mono"], self.job.phase
        if not isinstance(phase, Starting | Running):
            return ev.DeadlineReached(now)
        since, attempt = now - record["age"] - LITTLE, phase.attempt._replace(aways=())
        if record["rank"] is None:
            attempt = attempt._replace(spawned_at=since, ranks=())
            self.job = self.job._replace(phase=phase._replace(attempt=attempt, deadline=now))
            return ev.DeadlineReached(now)
        self.job = self.job._replace(phase=phase._replace(attempt=attempt))
        self._reached(record.get("step"))
        moved = {"moved_at": since} if record["rule"] == "step" else {"claimed_at": since}
        return self._looked(now, rank=record["rank"], step=record.get("step"), **moved)

    def _cleared(self, record: dict[str, Any]) -> ev.Event:
        now, phase = record["mono"], self.job.phase
        age = phase.finding.age if isinstance(phase, Suspect) else 0.0
        match record["why"]:
            case "it moved":
                return self._looked(now, moved_at=now)
            case "frozen in the meantime":
                return ev.WokeLate(now, now - age)
            case "stopped by the user":
                return ev.CommandStopped(now, 20)
        return ev.EvidenceCollected(now, self._ranks, (), str(record["why"]))

    def _order(self, record: dict[str, Any]) -> ev.Event:
        now = record["mono"]
        requester = ev.Requester(
            record["id"], record["by"], float("-inf") if "too late" in record["why"] else float("inf")
        )
        match record["what"]:
            case "restart":
                return ev.RestartRequested(now, requester)
            case "stop":
                return ev.StopRequested(now, requester)
            case "pause":
                return ev.PauseRequested(now, requester)
        if self.job.paused is not None:
            self._judge_nobody()
        return ev.ResumeRequested(now, requester)

    def _exited(self, record: dict[str, Any]) -> list[ev.Event]:
        now, code, number = record["mono"], record.get("code"), record.get("signal")
        phase, start = self.job.phase, self.job.ledger.start_cnt
        found: list[ev.Event] = []
        if isinstance(phase, Launching | Starting | Running | Suspect):
            sent = [n for at, n in self.beside.signals if self.launched - 1 <= at <= now and n == number]
            found += [ev.SignalReceived(now, n, False) for n in sent if n not in STOP]
            if isinstance(phase, WATCHED) and (start in self.beside.fatal or self._incurable(record)):
                self._judge_nobody()
                moved = {"moved_at": now} if any(rank.moved_at is not None for rank in self._ranks) else {}
                found.append(self._looked(now, fatal=record.get("why", ""), **moved))
        ending = None
        if "rule" in record and isinstance(phase, WATCHED):
            why = str(record["why"])
            thrown = why.partition(", after ")[2] if "the command" in why[:40] else why
            cause = Traceback(1, ExceptionRecord((thrown,))) if thrown else None
            ending = CommandFailure(code, number, phase.attempt.moved, cause, pid=1)
        return [*found, ev.CommandExited(now, code, number, ending)]

    def _incurable(self, record: dict[str, Any]) -> bool:
        hopeless = {rule.name for rule in RULES if not rule.recoverable}
        return record.get("rule") in hopeless and "failure" in self.policy.restart_on
