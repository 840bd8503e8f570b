"""An adversary plays against `decide`: late, lost, repeated and reordered events, freezes, events that make no sense.

Beside the job stands a simple model of the world (is a tree alive?  how many restarts in a row?  what was requested?),
and after each event the promises of the contract (docs/reference.md) are checked against it.  What the loop itself
guarantees is kept: Exited and TreeEnded are about the attempt under way, and a tree that was reported ended is dead.

`-m slow` plays at random and for longer.
"""

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.job import decide
from ftrun.core.machine.states import (
    Done,
    Finish,
    Healing,
    Job,
    Launching,
    Pending,
    Restart,
    Running,
    Starting,
    Stopping,
    Suspect,
)
from ftrun.core.machine.values import Fault, Ledger, Rank, Section, UsableDevice, UsualPauses
from ftrun.core.rules import exit_codes
from ftrun.core.rules.fault_history import Clock, Schedule
from ftrun.core.rules.idle import Thresholds
from ftrun.core.rules.liveness import Limits
from ftrun.core.rules.policy import Membership, Policy

WATCHED = (Starting, Running, Suspect)
PAUSES = st.sampled_from([0.0, 0.5, 1.0, 5.0, 30.0, 59.0, 61.0, 130.0, 1000.0, 40000.0])
SEVERITIES = ["warning", "user", "minor", "minor+user", "major", "critical", "unknown"]
ACTING = ("minor", "minor+user", "major", "critical")
STOPS = st.sampled_from([2, 3, 15])
AGES = st.sampled_from([0.0, 0.5, 10.0, 39.0, 41.0, 59.0, 61.0, 300.0])
STEPS = st.integers(0, 6)
# The digest of a rank: (intervals, usual, longest, slowest start).
LEARNING = st.sampled_from([(0, 0.0, 0.0, 0.0), (50, 0.0, 0.0, 15.0), (200, 0.5, 2.0, 4.0), (300, 5.0, 55.0, 200.0)])
INCIDENTS = ["hang", "hang", "works", "works", "deadlock", "failure", "fault", "order", "user", "file", "ended"]
LOOKS = 8  # looks, and reads of the heartbeats between them, after which a deadlock is proved
READS = 64  # more than any silence takes to become a suspicion
KNOWN = UsualPauses(usual=4.5, longest=6.0, steps=500)
POLICIES = st.builds(
    Policy,
    restart_on=st.frozensets(st.sampled_from(["hang", "fault", "failure"])),
    max_restarts=st.sampled_from([0, 1, 2, 3, None]),
    stable_after=st.sampled_from([None, 500.0]),
    backoff=st.sampled_from([0.0, 1.0, 50.0]),
    limits=st.builds(
        Limits,
        hang=st.sampled_from([60.0, 60.0, None]),
        start=st.sampled_from([40.0, None]),
        section=st.sampled_from([50.0, None]),
        auto=st.sampled_from([True, True, False]),
        idle=st.none(),
        idle_given=st.just(False),
        automatic=st.sampled_from([70.0, None]),
        device_timeout=st.sampled_from([None, None, 20.0]),
        grace=st.sampled_from([0.0, 10.0]),
        stop_grace=st.sampled_from([None, 20.0]),
        kill_timeout=st.sampled_from([0.0, 60.0]),
        heal_timeout=st.sampled_from([0.0, 300.0]),
        evidence_timeout=st.sampled_from([0.0, 30.0]),
    ),
    work=st.just(Thresholds()),
    checks_devices=st.booleans(),
    files=st.booleans(),
    min_devices=st.sampled_from([None, None, 1, 2]),
    scale_out=st.booleans(),
    unconditional=st.booleans(),
    asks_platform=st.booleans(),
    membership=st.builds(Membership, node=st.just("n"), shared=st.booleans()),
)
DEVICES = tuple(UsableDevice(f"gpu{i}", "CUDA_VISIBLE_DEVICES", str(i)) for i in range(3))
FAULTS = st.builds(
    Fault, st.sampled_from(["gpu0", "gpu0", "gpu1"]), st.sampled_from(["X", "X", "Y"]), st.sampled_from(SEVERITIES)
)


@st.composite
def _seen(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Heartbeats, with ages in place of times."""
    return draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "claimed": AGES,
                    "moved": st.none() | AGES,
                    "step": st.none() | STEPS,
                    "checkpoint": st.sampled_from([None, None, None, None, 1, 2, 3]),
                    "present": st.sampled_from([True, True, True, False]),
                    "done": st.sampled_from([False, False, False, True]),
                    "fatal": st.sampled_from([None] * 9 + ["because"]),
                    "credit": st.sampled_from([0.0, 0.0, 20.0]),
                    "sections": st.lists(
                        st.tuples(AGES, st.sampled_from([None, 30.0, 400.0]), st.booleans(), st.booleans()), max_size=2
                    ),
                    "broken": st.sampled_from([None, None, "eval"]),
                    "learning": LEARNING,
                }
            ),
            max_size=3,
        )
    )


def _ranks(seen: list[dict[str, Any]], now: float) -> tuple[Rank, ...]:
    return tuple(
        Rank(
            number,
            pid=1000 + number,
            present=one["present"],
            claimed_at=now - one["claimed"],
            alive_at=now,
            moved_at=None if one["moved"] is None else now - one["moved"],
            step=one["step"],
            credit=one["credit"],
            done=one["done"],
            fatal=one["fatal"],
            checkpoint_step=one["checkpoint"],
            checkpoint_path=None if one["checkpoint"] is None else f"/ckpt/{one['checkpoint']}",
            sections=tuple(Section(f"s{i}", now - age, *rest) for i, (age, *rest) in enumerate(one["sections"])),
            broken=one["broken"],
            **dict(zip(("intervals", "usual", "longest", "slowest_start"), one["learning"], strict=True)),
        )
        for number, one in enumerate(seen)
    )


class Adversary(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.job, self.policy, self.now = Job(), Policy(), 0.0
        self.tree_alive = self.stop_asked = self.halted = False
        self.exits = 0
        self.own_codes: set[int] = set()
        self.allowed_to_kill: str | None = None  # what, except a hang, justifies the end of this attempt
        self.ranks: tuple[Rank, ...] = ()
        self.moved = False
        self.aways: list[tuple[float, float]] = []
        self.halted_at = self.spawned_at = self.paused_at = 0.0
        self.in_a_row = {"hang": 0, "fault": 0, "failure": 0}
        self.best_step: int | None = None
        self.best_checkpoint: int | None = None
        self.held: str | None = None
        self.sick: set[tuple[str, str]] = set()  # faults that a start has to wait for
        self.removed_devices: set[str] = set()  # devices that were taken out since the last start
        self.returned: set[str] = set()  # that came back since then
        self.earlier = 0  # occurrences before the attempt under way
        self.left = ""  # which processes survived: refused, command or others
        self.looking = False  # a look is under way
        self.closed: list[tuple[str, int | None]] = []  # fingerprint and rank of the closed looks in a row

    @initialize(
        policy=POLICIES,
        hang=st.integers(0, 3),
        best_step=st.none() | STEPS,
        learned=st.sampled_from([None, KNOWN]),
        uptime=st.sampled_from([0.0, 1e6]),
    )
    def _begin(
        self, policy: Policy, hang: int, best_step: int | None, learned: UsualPauses | None, uptime: float
    ) -> None:
        self.policy, self.now = policy, uptime
        hang = min(hang, 3 if policy.max_restarts is None else policy.max_restarts)
        self.job = Job(ledger=Ledger(start_cnt=hang, hang=hang, best_step=best_step, learned=learned))
        self.in_a_row["hang"], self.best_step = hang, best_step

    # --- what would happen without an adversary: most of the time, or no run would get far --------------------------

    @rule(incidents=st.lists(st.sampled_from(INCIDENTS), max_size=5))
    def runs_through_failures(self, incidents: list[str]) -> None:
        """Attempts that each end in a restart, if the policy lets them."""
        for kind in incidents:
            if kind in ("ended", "file"):  # while the attempt is still being ended, or healed
                self._continue() if kind == "ended" else self.checkpoint_saved(61.0)
                continue
            self._continue_until(WATCHED)
            if not isinstance(self.job.phase, WATCHED):
                return
            if kind == "hang":
                self._falls_silent()
                self.evidence_confirms()
            elif kind == "works":
                self._falls_silent()
                self.evidence_of_the_suspect("it works")
            elif kind == "deadlock":
                self._is_deadlocked()
                self.evidence_confirms()
            elif kind == "failure":
                self.command_exited(1, 9)
            elif kind == "fault":
                self.fault_reported(Fault("gpu0", "X", "major"))
            elif kind == "user":
                self.fault_reported(Fault("gpu0", "X", "user"))
                self.command_exited(1, 9)
            else:
                self.restart_requested("manual")

    def _falls_silent(self) -> None:
        if not self.ranks:
            self.training_moves(1, None)
        for _ in range(READS):  # where no timeout holds now, it is read for ever
            if isinstance(self.job.phase, Starting | Running) and self.job.phase.deadline is not None:
                self.deadline_reached(0.0)

    def _is_deadlocked(self) -> None:
        for _ in range(LOOKS):
            if isinstance(self.job.phase, Starting | Running) and self.job.phase.deadline is not None:
                self.deadline_reached(0.0)
                self.looked("f")

    @rule()
    def starts_running(self) -> None:
        self._continue_until(WATCHED)

    @rule()
    def continues_running(self) -> None:
        self._continue()

    def _continue_until(self, phases: tuple[type, ...]) -> None:
        for _ in range(6):
            if not isinstance(self.job.phase, phases):
                self._continue()

    def _continue(self) -> None:
        match self.job.phase:
            case Pending(deadline):
                self.started() if deadline is None else self.deadline_reached(0.0)
            case Launching():
                self.spawned()
            case Starting(_, deadline) | Running(_, deadline) if deadline is not None:
                self.deadline_reached(0.0)
            case Suspect():
                self.evidence_confirms()
            case Stopping(_, "asked"):
                self.command_exited(0, 15)
            case Stopping(_, "devices"):
                self.devices_released(())
            case Stopping():
                self.tree_ended(0)
            case Healing():
                self.healing_finished(True)

    # --- what may happen ---------------------------------------------------------------------------------------------

    @rule(pause=PAUSES)
    def time_passes(self, pause: float) -> None:
        self.now += pause

    @rule()
    def started(self) -> None:
        self.happens(ev.Started(self.now))

    @rule()
    def spawned(self) -> None:
        self.happens(ev.CommandSpawned(self.now, 100))

    @rule(code=st.sampled_from([125, 126, 127]), rarely=st.integers(0, 4))
    def spawn_failed(self, code: int, rarely: int) -> None:
        if rarely and isinstance(self.job.phase, Launching):
            return
        self.own_codes.add(code)
        if isinstance(self.job.phase, Launching):
            self.tree_alive = False
        self.happens(ev.SpawnFailed(self.now, code, "no"))

    @precondition(lambda self: self.job.phase.deadline is not None)
    @rule(late=st.sampled_from([0.0, 0.0, 100.0]))
    def deadline_reached(self, late: float) -> None:
        self.now = max(self.now, self.job.phase.deadline or 0.0) + 1e-6 + late  # a clock always moves on
        self.happens(ev.DeadlineReached(self.now))

    @precondition(lambda self: self.job.phase.deadline is None or self.now < self.job.phase.deadline)
    @rule()
    def early_deadline_reached(self) -> None:
        before = self.job
        self.happens(ev.DeadlineReached(self.now))
        assert self.job == before, "a deadline of an earlier phase changes nothing"

    @rule(away=PAUSES)
    def woke_late(self, away: float) -> None:
        since, self.now = self.now, self.now + away
        if not isinstance(self.job.phase, Launching):  # nothing is measured before the exec
            self.aways.append((since, self.now))
        self.happens(ev.WokeLate(self.now, since))

    @rule(seen=_seen())
    def beats_read(self, seen: list[dict[str, Any]]) -> None:
        self.happens(ev.BeatsRead(self.now, _ranks(seen, self.now)))

    @rule(step=STEPS, checkpoint=st.sampled_from([None, None, 1, 2, 3]), learning=LEARNING)
    def training_moves(self, step: int, checkpoint: int | None, learning: Any = (200, 0.5, 2.0, 4.0)) -> None:
        rank = Rank(0, moved_at=self.now, step=step, checkpoint_step=checkpoint)
        figures = dict(zip(("intervals", "usual", "longest", "slowest_start"), learning, strict=True))
        self.happens(ev.BeatsRead(self.now, (rank._replace(**figures),)))

    @rule(age=st.sampled_from([0.0, 0.5, 61.0, 1000.0]))
    def checkpoint_saved(self, age: float) -> None:
        self.happens(ev.CheckpointSaved(self.now, "/ckpt/last.pt", self.now - age))

    @rule(cleared=st.sampled_from([None, "it works", "it works"]))
    def evidence_of_the_suspect(self, cleared: str | None) -> None:
        """As the loop reports it: the passing of a given timeout is never cleared."""
        if isinstance(self.job.phase, Suspect) and not self._is_proved(self.job):
            cleared = None
        self.happens(ev.EvidenceCollected(self.now, self.ranks, (("cpu", 1.0),), cleared))

    @rule(seen=_seen(), cleared=st.sampled_from([None, None, "the stacks move"]))
    def evidence_collected(self, seen: list[dict[str, Any]], cleared: str | None) -> None:
        self.happens(ev.EvidenceCollected(self.now, _ranks(seen, self.now), (("state", "S"),), cleared))

    @rule()
    def evidence_confirms(self) -> None:
        self.happens(ev.EvidenceCollected(self.now, self.ranks))

    @rule(fingerprint=st.sampled_from([None, "", "f", "f", "g"]), rank=st.sampled_from([None, 0, 0, 1]))
    def looked(self, fingerprint: str | None, rank: int | None = None) -> None:
        if self.looking and isinstance(self.job.phase, Starting | Running):
            self.looking, self.closed = False, self.closed if fingerprint else []
            self.closed += [(fingerprint, rank)] if fingerprint else []
        open_reason = "a server" if fingerprint is None else None
        self.happens(ev.Looked(self.now, open_reason, "it waits", fingerprint or "", rank, 7, 0.1))

    @rule()
    def command_stopped(self) -> None:
        if isinstance(self.job.phase, WATCHED) and not self.halted:
            self.halted, self.halted_at = True, self.now
        self.happens(ev.CommandStopped(self.now, 20))

    @rule()
    def command_continued(self) -> None:
        if self.halted:
            self.halted = False
            self.aways.append((self.halted_at, self.now))
        self.happens(ev.CommandContinued(self.now))

    @rule(code=st.sampled_from([0, 0, 1, 2, 42, 255]) | st.none(), signal=st.sampled_from([2, 9, 10, 11, 15]))
    def command_exited(self, code: int | None, signal: int) -> None:
        event = ev.CommandExited(self.now, code) if code is not None else ev.CommandExited(self.now, signal=signal)
        self.own_codes.add(128 + signal if code is None else code)
        self.allowed_to_kill = "its own end"
        self.happens(event)

    @precondition(lambda self: self.tree_alive or not isinstance(self.job.phase, Stopping))
    @rule(killed=st.integers(0, 3))
    def tree_ended(self, killed: int) -> None:
        if isinstance(self.job.phase, Stopping):
            self.tree_alive = False
        self.happens(ev.TreeEnded(self.now, killed))

    @rule(
        held=st.sampled_from([(), (), ("gpu0 by process 100",)]),
        silent=st.sampled_from([(), ("gpu1",)]),
        well=st.sampled_from([(), ("gpu0",), ("gpu0", "gpu1")]),
    )
    def devices_released(self, held: tuple[str, ...], silent: tuple[str, ...] = (), well: tuple[str, ...] = ()) -> None:
        self.happens(ev.DevicesReleased(self.now, held, silent, well, Clock(0.0, "boot", self.now)))

    @rule(well=st.sampled_from([(), ("gpu0",), ("gpu0", "gpu1")]))
    def devices_checked(self, well: tuple[str, ...] = ()) -> None:
        self.happens(ev.DevicesChecked(self.now, well, Clock(0.0, "boot", self.now)))

    @rule(severity=st.sampled_from(["user", "major"]))
    def preexisting_fault_reported(self, severity: str) -> None:
        """It is only recorded, in every phase."""
        before = self.job
        self.happens(ev.FaultReported(self.now, Fault("gpu0", "X", severity), preexisting=True))
        if before.paused is None:
            assert type(self.job.phase) is type(before.phase)
            assert self.job.want == before.want

    @rule(refused=st.booleans(), command=st.booleans())
    def processes_survived(self, refused: bool = False, command: bool = True) -> None:
        before = self.job.want
        phase = self.job.phase
        if not (isinstance(phase, Stopping) and phase.stage in ("devices", "verdict")):  # there it comes too late
            self.left = "refused" if refused else "command" if command else "others"
        self.happens(ev.ProcessesSurvived(self.now, ("100 (python) D nfs",), refused, command))
        if refused and self.job.want != before:
            assert isinstance(self.job.want, Finish)
            self.own_codes.add(self.job.want.code)
            assert self.job.want.code != exit_codes.NODE_FAULT.code, "a refused signal blames no node"

    @rule(signal=STOPS, rarely=st.integers(0, 4))
    def stop_signal_received(self, signal: int, rarely: int = 0) -> None:
        before = self.job
        if rarely and not isinstance(before.phase, Stopping):
            return
        if not isinstance(before.phase, Done):
            self.stop_asked, self.allowed_to_kill = True, "outside"
            self.own_codes.add(128 + signal)
        self.happens(ev.SignalReceived(self.now, signal, stop=True))
        if isinstance(before.want, Finish) and isinstance(before.phase, Stopping):
            assert self.job.want == before.want, "a final verdict is not replaced by a later SIGTERM"

    @rule()
    def signal_received(self) -> None:
        self.happens(ev.SignalReceived(self.now, 10, stop=False))

    @rule(fault=FAULTS, wall=st.sampled_from([0.0, 1e9, 0.5e9]))
    def fault_reported(self, fault: Fault, wall: float = 0.0) -> None:
        if fault.severity in ACTING:
            self.allowed_to_kill = "a fault"
            if isinstance(self.job.phase, (Launching, *WATCHED)) or isinstance(self.job.want, Restart):
                self.sick.add(fault.key)
        self.happens(ev.FaultReported(self.now, fault, Clock(wall, "boot", self.now)))

    @rule(cured=st.booleans())
    def healing_finished(self, cured: bool) -> None:
        if cured and isinstance(self.job.phase, Healing) and self.job.phase.fault is not None:
            self.sick = {place for place in self.sick if place[0] != self.job.phase.fault.device}
        self.happens(ev.HealingFinished(self.now, cured))

    @rule(why=st.sampled_from([None, None, "it flushes"]))
    def start_permission(self, why: str | None) -> None:
        self.held = why
        self.happens(ev.StartPermission(self.now, why))

    @rule()
    def platform_requests_the_end(self) -> None:
        self.held = "all are to end"
        if not isinstance(self.job.phase, Done):
            self.allowed_to_kill = "the platform"
        self.happens(ev.StartPermission(self.now, self.held, ends=True))

    @rule()
    def rescheduled(self) -> None:
        if isinstance(self.job.phase, WATCHED):
            self.allowed_to_kill = "the platform"
        self.happens(ev.Rescheduled(self.now, "a pod was scheduled again"))

    @rule(number=st.integers(0, 3), well=st.sampled_from([(), ("gpu0",), ("gpu0", "gpu1")]))
    def devices_found(self, number: int, well: tuple[str, ...] = ()) -> None:
        self.happens(ev.DevicesFound(self.now, DEVICES[:number], well, Clock(0.0, "boot", self.now)))

    @rule(step=st.none() | STEPS, failed=st.lists(st.booleans(), max_size=4), number=st.integers(-1, 3))
    def history_loaded(self, step: int | None, failed: list[bool], number: int) -> None:
        past = [Schedule(f"k{i}", i + number - 3, "n", 0.0, step, failed=f) for i, f in enumerate(failed)]
        self.happens(ev.HistoryLoaded(self.now, (), tuple(past)))
        self.best_step = self.job.ledger.best_step

    @rule(code=st.sampled_from([None, 195]))
    def verdict_shared(self, code: int | None) -> None:
        self.happens(ev.VerdictShared(self.now, code, "hang-limit", "it hung there", "n2"))

    @rule(by=st.sampled_from(["manual", "peer"]))
    def restart_requested(self, by: str) -> None:
        self.allowed_to_kill = "an order"
        self.happens(ev.RestartRequested(self.now, ev.Requester("1") if by == "manual" else None))

    @rule(rarely=st.integers(0, 4))
    def stop_requested(self, rarely: int = 0) -> None:
        if rarely:
            return
        if not isinstance(self.job.phase, Done):
            self.stop_asked, self.allowed_to_kill = True, "an order"
            self.own_codes.add(143)
        self.happens(ev.StopRequested(self.now, ev.Requester("2")))

    @rule(lasting=st.sampled_from([None, 100.0]))
    def pause_requested(self, lasting: float | None) -> None:
        if self.job.paused is None:
            self.paused_at = self.now
        self.happens(ev.PauseRequested(self.now, ev.Requester("3"), lasting))

    @rule()
    def resume_requested(self) -> None:
        self.happens(ev.ResumeRequested(self.now, ev.Requester("4")))

    # --- what must hold ----------------------------------------------------------------------------------------------

    def happens(self, event: ev.Event) -> None:
        before, still = self.job, self._still()
        progressed = self._note(before, event)
        frozen = isinstance(event, ev.WokeLate) or self.halted or self.job.paused is not None
        if frozen or self._still() != still:
            self.looking, self.closed = False, []
        self.job, effects = decide(before, event, self.policy)
        self._check_looks(effects)
        fields = [field for effect in effects if isinstance(effect, do.Persist) for field in effect.fields]
        if isinstance(event, ev.EvidenceCollected) and ("why", event.cleared) in fields and not self._is_proved(before):
            self.aways.append((self.spawned_at, event.now))
        if before.paused is not None and self.job.paused is None:
            self.aways.append((max(self.paused_at, self.spawned_at), event.now))
        if isinstance(before.phase, Done):
            assert self.job._replace(paused=None) == before._replace(paused=None), "Done is final"
            assert all(isinstance(effect, do.Persist | do.AnswerOperator) for effect in effects), "Done is final"
            return
        self._check_records(effects)
        self._check_returned(before, event, effects)
        self._check_budget(before, event, progressed)
        self._check_findings(before, effects)
        self._check_kills(before, event, effects)
        self._check_spawns(before, effects)
        self._check_end(effects)

    def _note(self, before: Job, event: ev.Event) -> bool:
        """What the model learns from the event; whether it shows progress."""
        if isinstance(event, ev.CommandSpawned) and isinstance(before.phase, Launching):
            self.spawned_at = event.now
        if isinstance(event, ev.CheckpointSaved):
            self._note_checkpoint(before, event)
            return False
        was_read = (isinstance(event, ev.BeatsRead) and isinstance(before.phase, (*WATCHED, Stopping))) or (
            isinstance(event, ev.EvidenceCollected) and isinstance(before.phase, Suspect)
        )
        if was_read:
            assert isinstance(event, ev.BeatsRead | ev.EvidenceCollected)
            moved = any(rank.moved_at is not None for rank in event.ranks)
            if self.moved and not moved and not isinstance(before.phase, Stopping):
                self.aways.append((self.spawned_at, event.now))  # others begin in their place
            self.ranks, self.moved = event.ranks, moved
        ended = isinstance(event, ev.CommandExited) and isinstance(before.phase, (Launching, *WATCHED))
        steps = [r.step for r in self.ranks if r.step is not None]
        checkpoints = [r.checkpoint_step for r in self.ranks if r.checkpoint_step is not None]
        if self.policy.files or checkpoints or self.best_checkpoint is not None:
            progressed = bool(checkpoints) and max(checkpoints) > (self.best_checkpoint or 0)
        elif steps or self.best_step is not None:
            progressed = bool(steps) and max(steps) > (-1 if self.best_step is None else self.best_step)
        else:
            stable = self.policy.stable_after
            progressed = stable is not None and self._time_to_last_movement() >= stable
        if not was_read and not ended:
            return False
        self.best_step = max([*steps, -1 if self.best_step is None else self.best_step])
        self.best_step = None if self.best_step < 0 else self.best_step
        self.best_checkpoint = max([*checkpoints, self.best_checkpoint or 0]) or None
        return progressed

    def _still(self) -> tuple[int | None, float] | None:
        """The rank that has not moved for the longest time, and since when."""
        ranks = self._awaited()
        since = [(r.rank, r.claimed_at if r.moved_at is None else r.moved_at) for r in ranks]
        return min(since, key=lambda one: one[1], default=None) if self.ranks else (None, self.spawned_at)

    def _check_looks(self, effects: tuple[do.Effect, ...]) -> None:
        """A look is taken only at a running job that stands still, under `--hang-timeout auto`."""
        if not any(isinstance(effect, do.Look) for effect in effects):
            return
        assert self.policy.limits.auto
        assert isinstance(self.job.phase, Starting | Running)
        assert not self.halted
        assert self.job.paused is None
        still = self._still()
        assert still is not None
        assert self._awake(still[1]) >= 15.0 - 1e-3
        self.looking = True

    @staticmethod
    def _is_proved(job: Job) -> bool:
        return isinstance(job.phase, Suspect) and job.phase.finding.rule == "deadlock"

    def _note_checkpoint(self, before: Job, event: ev.CheckpointSaved) -> None:
        """A file is progress of the attempt that wrote it, and the restart since then the first in a row."""
        if isinstance(before.phase, Done):
            return
        self.in_a_row = dict.fromkeys(self.in_a_row, 0)
        under_way = not isinstance(before.phase, Pending | Healing)
        if under_way and event.at < self.spawned_at and before.ledger.reason in self.in_a_row:
            self.in_a_row[before.ledger.reason] = 1

    def _time_to_last_movement(self) -> float:
        """Seconds from the spawn to its last movement; to now, where it need not move."""
        if not self.ranks and self.policy.limits.start is None:
            return self._awake(self.spawned_at)
        moved = [r.moved_at for r in self.ranks if r.moved_at is not None]
        return self._awake(self.spawned_at, max(moved, default=self.spawned_at))

    def _awake(self, since: float, until: float | None = None) -> float:
        """Seconds since then in which silence counts: the periods away are united, not added."""
        total, at, until = 0.0, since, self.now if until is None else until
        for start, end in sorted(self.aways):
            total += max(0.0, min(start, until) - at)
            at = max(at, end)
        return total + max(0.0, until - at)

    def _check_records(self, effects: tuple[do.Effect, ...]) -> None:
        records: list[do.Persist] = []
        for effect in effects:
            if isinstance(effect, do.Persist):
                records.append(effect)
            elif isinstance(effect, do.Investigate) and effect.due is not None:
                pass  # evidence in advance decides nothing, and is discarded without a second effect
            elif isinstance(
                effect, do.Spawn | do.Kill | do.Terminate | do.Exit | do.Heal | do.Investigate | do.AnswerOperator
            ):
                assert records, f"{effect} before any record"
            if isinstance(effect, do.Exit):
                assert records[-1].event == "ended"
                ordinary = effect.verdict in (exit_codes.SUCCEEDED, exit_codes.FAILED)
                assert records[-1].durable or ordinary, "a verdict of ftrun is on disk before it is acted on"
            if isinstance(effect, do.Kill | do.Terminate) and "hang" in [r.event for r in records]:
                assert next(r for r in records if r.event == "hang").durable

    def _check_budget(self, before: Job, event: ev.Event, progressed: bool) -> None:
        old, new = before.ledger, self.job.ledger
        if isinstance(self.job.phase, Done):
            return
        counts = (new.hang, new.fault, new.failure)
        if isinstance(event, ev.CheckpointSaved):
            wanted = self.job.want.reason if isinstance(self.job.want, Restart) else None
            assert counts == tuple(n + (cause == wanted) for cause, n in self.in_a_row.items())
            assert new.last_checkpoint == event.path
            assert _marked(self.job.phase) == _marked(before.phase), "nothing else changed"
            assert (new.best_step, new.learned) == (old.best_step, old.learned)
        elif progressed:
            self.in_a_row = dict.fromkeys(self.in_a_row, 0)
            assert sum(counts) <= 1, "progress starts every count anew"
        else:
            grown = [b - a for a, b in zip((old.hang, old.fault, old.failure), counts, strict=True)]
            assert sorted(grown) in ([0, 0, 0], [0, 0, 1]), (
                "a count falls only by progress, and one failure counts once"
            )
            if isinstance(event, ev.RestartRequested | ev.StopRequested | ev.SignalReceived):
                assert not any(grown), "requests cost no budget"

    def _check_findings(self, before: Job, effects: tuple[do.Effect, ...]) -> None:
        """A finding is about a silence of that age, beyond its limit."""
        for effect in effects:
            if not isinstance(effect, do.Persist) or effect.event not in ("suspect", "hang"):
                continue
            found = dict(effect.fields)
            age, limit = found["age"], found["limit"]
            assert isinstance(age, float)
            assert isinstance(limit, float)
            assert age >= limit
            if found["rule"] == "deadlock":
                assert len(self.closed) > 1, "one look proves nothing"
                assert self.closed[-1] == self.closed[-2], "looks that differ prove nothing"
                still = self._still()
                assert still is not None
                assert found["rank"] == (still[0] if self.closed[-1][1] is None else self.closed[-1][1])
            if found["rule"] != "step":
                continue
            (rank,) = (rank for rank in self.ranks if rank.rank == found["rank"])
            least = self.policy.limits.hang
            assert rank.moved_at is not None
            assert least is not None
            assert self._awake(rank.moved_at) - rank.credit + 1e-6 >= max(age, least), "it moved within its limit"

    def _check_kills(self, before: Job, event: ev.Event, effects: tuple[do.Effect, ...]) -> None:
        if self.halted:
            assert not isinstance(self.job.phase, Suspect), "a command that the user stopped is no suspect"
        if before.paused is not None and self.job.paused is not None:
            assert not isinstance(self.job.phase, Suspect), "a suspect in a pause"
            if isinstance(
                event,
                ev.FaultReported
                | ev.BeatsRead
                | ev.EvidenceCollected
                | ev.TreeSampled
                | ev.DeadlineReached
                | ev.WokeLate,
            ):
                watched = isinstance(before.phase, WATCHED)
                assert not (watched and isinstance(self.job.phase, Stopping)), "a verdict in a pause"
        if not isinstance(self.job.phase, Stopping) or not any(isinstance(e, do.Kill | do.Terminate) for e in effects):
            return
        if self.allowed_to_kill is None:
            assert not self.halted
            assert not (isinstance(event, ev.EvidenceCollected) and event.cleared), "evidence cleared it"
            if any(isinstance(e, do.Persist) and e.event == "regaining" for e in effects):
                self._check_regaining(before)
                self.allowed_to_kill = "a device that is well again"
                return
            hangs = [dict(e.fields)["rule"] for e in effects if isinstance(e, do.Persist) and e.event == "hang"]
            assert "deadlock" in hangs or self._is_any_rank_overdue(), "a healthy job is never killed"
            self.allowed_to_kill = "a hang"  # whatever is read while it is being stopped

    def _check_regaining(self, before: Job) -> None:
        """A checkpoint restarts a healthy command only for devices that are taken out, and for each of them once."""
        assert self.policy.scale_out
        assert before.paused is None
        assert not self.halted
        devices = set(self.job.ledger.regained) - set(before.ledger.regained)
        assert devices, "each device has one such restart"
        assert devices <= set(before.ledger.removed)

    def _awaited(self) -> list[Rank]:
        """While others train, a rank that is done may wait for them; then all have to end."""
        present = [rank for rank in self.ranks if rank.present]
        if not all(rank.done for rank in present):
            return [rank for rank in present if not rank.done]
        last = max((rank.moved_at for rank in self.ranks if rank.moved_at is not None), default=None)
        return [rank._replace(moved_at=last) for rank in present]

    def _is_any_rank_overdue(self) -> bool:
        limits = self.policy.limits
        for rank in self._awaited():
            for section in rank.sections:
                limit = limits.section if section.timeout is None else section.timeout
                if limit is not None and self._awake(section.started) >= limit:
                    return True
            if not all(section.side for section in rank.sections):
                continue
            since = rank.claimed_at if rank.moved_at is None else rank.moved_at
            limit = limits.start if rank.moved_at is None else limits.hang
            if limit is not None and self._awake(since) - rank.credit >= limit:
                return True
        nobody_moved = not any(r.moved_at is not None for r in self.ranks)
        due = limits.start is not None and self._awake(self.spawned_at) >= limits.start
        return nobody_moved and due

    def _check_spawns(self, before: Job, effects: tuple[do.Effect, ...]) -> None:
        spawns = [e for e in effects if isinstance(e, do.Spawn)]
        assert self.job.ledger.start_cnt - before.ledger.start_cnt == len(spawns) <= 1
        for spawn in spawns:
            assert spawn.number == self.job.ledger.start_cnt
            assert not self.tree_alive, "a start beside the tree of the earlier attempt"
            assert not self.stop_asked, "a start after a stop from outside"
            if isinstance(before.want, Restart):
                self._check_devices()
                assert self.held is None, "a start that the platform does not permit"
            reason = self.job.ledger.reason
            if isinstance(before.want, Restart) and reason in self.in_a_row:
                self.in_a_row[reason] += 1
                limit = self.policy.max_restarts
                assert limit is None or self.in_a_row[reason] <= limit, "more restarts in a row than allowed"
                assert self.in_a_row[reason] == before.want.consecutive
            self.tree_alive, self.allowed_to_kill, self.halted = True, None, False
            self.left, self.looking, self.closed = "", False, []
            self.ranks, self.moved, self.aways, self.spawned_at = (), False, [], self.now
            self.earlier, self.sick = len(self.job.ledger.occurrences), set()
            self.removed_devices, self.returned = set(), set()

    def _check_returned(self, before: Job, event: ev.Event, effects: tuple[do.Effect, ...]) -> None:
        """A device comes back, with a record, only if a check has found it healthy, later than the start that it was
        removed for, and not after its third fault within a day."""
        records = [effect for effect in effects if isinstance(effect, do.Persist)]
        self.removed_devices |= {str(dict(r.fields)["device"]) for r in records if r.event == "removed"}
        back = {str(dict(r.fields)["device"]) for r in records if r.event == "returned"}
        assert back == set(before.ledger.removed) - set(self.job.ledger.removed), "a device comes back on record"
        if not back:
            return
        assert isinstance(event, ev.DevicesReleased | ev.DevicesChecked)
        assert back <= set(event.well), "it was not reported as healthy"
        assert not back & self.removed_devices, "it comes back in the restart that it was taken out for"
        assert all(record.durable for record in records if record.event == "returned")
        self.returned |= back
        self.sick = {place for place in self.sick if place[0] not in back}
        for device in back:
            acted = [o for o in self.job.ledger.occurrences if o.device == device and o.severity in ACTING[-2:]]
            assert len([o for o in acted if o.at.mono >= self.now - 86400]) < 3, "it keeps failing"
        if not self.job.ledger.removed:
            assert not self.job.ledger.visible, "with all devices the command has what it was given"

    def _check_devices(self) -> None:
        ledger = self.job.ledger
        assert not [place for place in self.sick if place[0] not in ledger.removed], "a start beside a fault"
        if ledger.removed:
            assert self.policy.min_devices is not None
            assert ledger.visible is not None
            assert len(ledger.visible.names) >= self.policy.min_devices
            assert "fault" in self.policy.restart_on
        for number, last in enumerate(ledger.occurrences):
            if number < self.earlier or last.severity not in ACTING:
                continue
            if last.device in ledger.removed or last.device in self.returned:
                continue
            until = ledger.occurrences[: number + 1]  # what came in the same instant, and later, did not yet count
            here = [o for o in until if o[:2] == last[:2]]
            ends = next((n for n, o in enumerate(reversed(here)) if o.code != last.code), len(here))
            same = [o for o in here[len(here) - ends :] if last.at.mono - 86400 <= o.at.mono <= last.at.mono]
            assert len(same) < 3, "the same fault for the third time within a day"
            assert last.severity != "critical"

    def _check_end(self, effects: tuple[do.Effect, ...]) -> None:
        ends = [e for e in effects if isinstance(e, do.Exit)]
        self.exits += len(ends)
        assert self.exits <= 1
        assert bool(ends) == isinstance(self.job.phase, Done)
        for end in ends:
            assert end is effects[-1]
            assert isinstance(self.job.phase, Done)
            assert self.job.phase.code == end.code
            table = {v.name: v.code for v in exit_codes.TABLE}
            assert end.code in self.own_codes if end.verdict not in table else end.code == table[end.verdict]
            if self.tree_alive:
                by_command = end.verdict in (exit_codes.SUCCEEDED, exit_codes.FAILED, exit_codes.STOPPED)
                assert self.left, "an end beside a tree that is alive"
                if self.left == "command" or (self.left == "others" and not by_command):
                    assert end.verdict == exit_codes.NODE_FAULT.name, "an end beside a tree that is alive"

    @invariant()
    def deadlines(self) -> None:
        phase = self.job.phase
        assert phase.deadline is None or math.isfinite(phase.deadline)
        if isinstance(phase, Suspect | Healing) or (
            isinstance(phase, Stopping) and phase.stage in ("term", "kill", "devices", "verdict")
        ):
            assert phase.deadline is not None, "the phase could last for ever"

    def teardown(self) -> None:
        """From wherever the adversary left it, a stop from outside ends it."""
        self.stop_signal_received(15)
        if isinstance(self.job.phase, Launching):
            self.spawned()
        if isinstance(self.job.phase, Stopping):
            self.command_exited(0, 15)
            self.tree_ended(0)
            self.devices_released(())
            self.verdict_shared(None)
        assert isinstance(self.job.phase, Done)


def game(examples: int, steps: int, same: bool = True) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=same,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


class Patient(Adversary):
    """The same, for longer."""


TestAdversary = Adversary.TestCase
TestAdversary.settings = game(150, 30)
TestPatientAdversary = pytest.mark.slow(Patient.TestCase)
TestPatientAdversary.settings = game(3_000, 60, same=False)


def _marked(phase: Any) -> Any:
    """The phase, with an attempt that has progressed, however often it has saved."""
    attempt = getattr(phase, "attempt", None)
    return phase if attempt is None else phase._replace(attempt=attempt._replace(progressed=True, saves=0))
