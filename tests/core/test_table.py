"""Every phase meets every event.  Nothing raises, and an empty cell of TABLE changes nothing."""

import itertools

import pytest

from ftrun.core.group.messages import EpochRanks, GroupEnd, GroupOrder
from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.job import TABLE, UNEXPECTED, decide
from ftrun.core.machine.states import (
    PHASES,
    Done,
    Finish,
    Healing,
    Job,
    KeepRunning,
    Launching,
    Paused,
    Pending,
    Phase,
    Restart,
    Running,
    Starting,
    Stopping,
    Suspect,
    Want,
)
from ftrun.core.machine.values import (
    Attempt,
    ClosedLook,
    Fault,
    Finding,
    Ledger,
    LocalRank,
    LookState,
    Rank,
    Section,
    Standstill,
    UsableDevice,
    UsualPauses,
)
from ftrun.core.ranks.table import AskedRetry, FunctionFinished, HeldSnapshot, LeftRound, RankMember, Rounds, SaidHello
from ftrun.core.rules.fault_history import Clock, Occurrence, Schedule
from ftrun.core.rules.idle import TreeSample
from ftrun.core.rules.policy import Membership, Policy

FAULT = Fault("gpu0", "Xid48", "major")
GPU = UsableDevice("gpu0", "CUDA_VISIBLE_DEVICES", "0")
OCCURRENCE = Occurrence("", "gpu0", "x", "major", Clock(1.0))
REQUESTER = ev.Requester("7", "root")
RANKS = (
    Rank(0, pid=7, claimed_at=1.0, alive_at=9.0, moved_at=8.0, step=3, checkpoint_step=2, checkpoint_path="/c"),
    Rank(1, pid=8, claimed_at=1.0, sections=(Section("a", 2.0, 5.0), Section("b", 3.0, side=True))),
    Rank(2, pid=9, done=True, present=False, fatal="because"),
    Rank(3, pid=6, moved_at=9.0, intervals=200, usual=0.5, longest=70.0, slowest_start=9.0, broken="a"),
)
LOOK = LookState(Standstill(3, 9.0), 5.0, closed=ClosedLook(4.0, "f", "it waits for itself", 3, 6))
TWO = (RankMember(0, 0, "working"), RankMember(1, 1, "working"))
MEETING = (RankMember(0, 0, "leaving", due=9.0), RankMember(1, 1, "ending", replaced=1, due=70.0))
ROUNDS = (
    Rounds(TWO, "working"),
    Rounds(TWO, "settling", 2, why="a collective failed", since=8.0, settles=8.1),
    Rounds(MEETING, "meeting", 1, "rank", frozenset({1}), "rank 1 died", since=8.0),
    Rounds(
        (MEETING[0]._replace(state="waiting", due=None), RankMember(1, 1, "starting", due=70.0)), "meeting", 1, "rank"
    ),
    Rounds(TWO, "proving", 2, "rank", frozenset({1}), "rank 1 died", since=5.0, began=6.0),
)
ATTEMPTS = (
    *(Attempt(7, 7, 1.0, RANKS[:2], processes=(LocalRank(0, 0, 7), LocalRank(1, 1, 8)), rounds=one) for one in ROUNDS),
    Attempt(1, pid=7, spawned_at=1.0, processes=(LocalRank(0, 0, 7), LocalRank(1, 1, 8, 9.0, 0))),
    Attempt(2, pid=7, spawned_at=1.0, ranks=RANKS[:2], aways=((2.0, 3.0),), fault=FAULT._replace(severity="user")),
    Attempt(3, pid=7, spawned_at=1.0, ranks=RANKS, stopped_at=5.0, forwarded=frozenset({10, 15}), progressed=True),
    Attempt(4, pid=7, spawned_at=1.0, ranks=RANKS[3:], stalled=Standstill(3, 2.0)),
    Attempt(5, pid=7, spawned_at=1.0, ranks=RANKS[3:], look=LOOK),
    Attempt(6, pid=7, spawned_at=1.0, ranks=RANKS[3:], look=LOOK._replace(begun=None, proved=True)),
)
FINDING = Finding("step", 0, 61.0, 60.0, 3, None, 7)
PROVED = (FINDING._replace(rank=3, rule="spin"), Finding("deadlock", 3, 15.0, 15.0, 3, None, 6, "it waits"))
PHASE_VALUES: dict[type[Phase], list[Phase]] = {
    Pending: [
        *(Pending(), Pending(10.0), Pending(10.0, frozenset({"platform", "devices", "history"}))),
        Pending(10.0, frozenset({"history"}), (ev.FaultReported(9.0, FAULT, preexisting=True),)),
    ],
    Launching: [Launching(a) for a in ATTEMPTS],
    Starting: [Starting(a, d) for a in ATTEMPTS for d in (None, 10.0)],
    Running: [Running(a, d) for a in ATTEMPTS for d in (None, 10.0)],
    Suspect: [Suspect(a, f, 10.0) for a in ATTEMPTS for f in (FINDING, *PROVED)],
    Stopping: [
        *(Stopping(a, stage, 10.0) for a in ATTEMPTS for stage in ("asked", "term", "kill")),
        Stopping(ATTEMPTS[0], "asked"),
        Stopping(ATTEMPTS[0], "inspect"),
        Stopping(ATTEMPTS[0], "devices", 10.0),
        Stopping(ATTEMPTS[0], "verdict", 10.0),
    ],
    Healing: [Healing(FAULT, 10.0), Healing(FAULT, 10.0, ATTEMPTS[0]), Healing(None, 10.0, ATTEMPTS[0])],
    Done: [Done(0), Done(195)],
}
EVENT_VALUES: dict[type[ev.Event], list[ev.Event]] = {
    ev.Started: [ev.Started(10.0)],
    ev.CommandSpawned: [
        ev.CommandSpawned(10.0, 7),
        ev.CommandSpawned(10.0, 7, (LocalRank(0, 0, 7), LocalRank(1, 1, 8))),
    ],
    ev.RankExited: [
        ev.RankExited(10.0, 1, code=0),
        ev.RankExited(10.0, 0, signal=9),
        ev.RankExited(10.0, 5, 1, None, "E: e"),
    ],
    ev.RankReported: [
        ev.RankReported(10.0, SaidHello(1, (HeldSnapshot(3, "a"),))),
        *(
            ev.RankReported(10.0, AskedRetry(0, number, "why", collective))
            for number in (1, 2)
            for collective in (False, True)
        ),
        ev.RankReported(10.0, LeftRound(0, 1)),
        ev.RankReported(10.0, LeftRound(0, 2, (), "its device is lost")),
        ev.RankReported(10.0, FunctionFinished(0, 2)),
        ev.RankReported(10.0, FunctionFinished(5, 2)),
    ],
    ev.RankTreeEnded: [ev.RankTreeEnded(10.0, 1, 3), ev.RankTreeEnded(10.0, 0)],
    ev.LeftoversFound: [ev.LeftoversFound(10.0, 1, ("9 (worker) S -",)), ev.LeftoversFound(10.0, 5, ("9 (x) S -",))],
    ev.RankStarted: [ev.RankStarted(10.0, 1, 9), ev.RankStarted(10.0, 5, 9)],
    ev.SpawnFailed: [ev.SpawnFailed(10.0, code, "no") for code in (125, 126, 127, 1)],
    ev.DeadlineReached: [ev.DeadlineReached(10.0), ev.DeadlineReached(1e6)],
    ev.WokeLate: [ev.WokeLate(1e6, 10.0), ev.WokeLate(10.0, 10.0)],
    ev.BeatsRead: [ev.BeatsRead(10.0, ()), ev.BeatsRead(10.0, RANKS), ev.BeatsRead(1e6, RANKS[:2])],
    ev.CheckpointSaved: [ev.CheckpointSaved(10.0, "/c/1", 9.0), ev.CheckpointSaved(10.0, "/c/1", 0.0)],
    ev.EvidenceCollected: [
        ev.EvidenceCollected(1e6, RANKS[:2], (("state", "D"),)),
        ev.EvidenceCollected(10.0, (), (), "it moves"),
        ev.EvidenceCollected(1e6, RANKS, (), "it works"),
    ],
    ev.CommandStopped: [ev.CommandStopped(10.0, 20)],
    ev.CommandContinued: [ev.CommandContinued(10.0)],
    ev.CommandExited: [
        ev.CommandExited(10.0, code=0),
        ev.CommandExited(10.0, code=3),
        ev.CommandExited(10.0, signal=9),
        ev.CommandExited(10.0, code=7, rank=1),
        ev.CommandExited(10.0, code=1, rank=1, began=9.0, symptom=True),
        ev.CommandExited(10.0, code=1, rank=0, began=9.0, taken_port=4000),
        ev.CommandExited(10.0),
    ],
    ev.TreeEnded: [ev.TreeEnded(10.0), ev.TreeEnded(10.0, 4)],
    ev.ProcessesSurvived: [
        ev.ProcessesSurvived(10.0, ("7 (python) D nfs",)),
        ev.ProcessesSurvived(10.0, (), command=False),
        ev.ProcessesSurvived(10.0, ("7 (sleep) S - of user 0",), refused=True, killed=2),
    ],
    ev.TreeSampled: [
        ev.TreeSampled(10.0, TreeSample(10.0, 5.0, 0.0, 0.0)),
        ev.TreeSampled(10.0, TreeSample(10.0, 5.0, 9.0, 1e9)),
    ],
    ev.Looked: [
        ev.Looked(10.0, "it waits for a server"),
        ev.Looked(10.0, None, "it waits for itself", "f", 3, 6, 0.1),
        ev.Looked(10.0, None, "it waits for another one", "g", None, 7, 0.1),
    ],
    ev.DevicesReleased: [
        ev.DevicesReleased(10.0),
        ev.DevicesReleased(10.0, ("gpu0 by process 7",)),
        ev.DevicesReleased(10.0, (), ("gpu0",), ("gpu1",)),
    ],
    ev.SignalReceived: [ev.SignalReceived(10.0, 15, True), ev.SignalReceived(10.0, 10, False)],
    ev.FaultReported: [
        ev.FaultReported(10.0, Fault("gpu0", "x", severity), preexisting=preexisting)
        for preexisting in (False, True)
        for severity in ("warning", "user", "minor", "minor+user", "major", "critical", "unknown", "never heard of")
    ],
    ev.DevicesChecked: [ev.DevicesChecked(10.0), ev.DevicesChecked(10.0, ("gpu1",))],
    ev.HealingFinished: [ev.HealingFinished(10.0, True), ev.HealingFinished(10.0, False)],
    ev.StartPermission: [
        ev.StartPermission(10.0),
        ev.StartPermission(10.0, "it flushes"),
        ev.StartPermission(10.0, "all are to end", ends=True),
    ],
    ev.Rescheduled: [ev.Rescheduled(10.0, "a pod was scheduled again")],
    ev.DevicesFound: [ev.DevicesFound(10.0, (GPU,)), ev.DevicesFound(10.0, ())],
    ev.InputSpent: [ev.InputSpent(10.0)],
    ev.HistoryLoaded: [
        ev.HistoryLoaded(10.0, (), ()),
        ev.HistoryLoaded(10.0, (OCCURRENCE,), (Schedule("a", 0, "n", 1.0, 7, 3, failed=True),)),
    ],
    ev.VerdictShared: [ev.VerdictShared(10.0), ev.VerdictShared(10.0, 195, "hang-limit", "it hung there")],
    ev.RestartRequested: [ev.RestartRequested(10.0, REQUESTER), ev.RestartRequested(10.0)],
    ev.StopRequested: [ev.StopRequested(10.0, REQUESTER), ev.StopRequested(10.0)],
    ev.PauseRequested: [ev.PauseRequested(10.0, REQUESTER), ev.PauseRequested(10.0, REQUESTER, 60.0)],
    ev.ResumeRequested: [ev.ResumeRequested(10.0, REQUESTER), ev.ResumeRequested(10.0)],
    ev.GroupOrderReceived: [
        *(
            ev.GroupOrderReceived(10.0, GroupOrder(epoch, what))
            for epoch in (0, 1, 2)
            for what in ("wait", "run", "stop")
        ),
        ev.GroupOrderReceived(10.0, GroupOrder(2, "run", world=EpochRanks("a", 4000, ((1, 2), (1, 1))))),
        ev.GroupOrderReceived(10.0, GroupOrder(1, "run", progressed=True, devices_unchanged=True, paused=60.0)),
        ev.GroupOrderReceived(10.0, GroupOrder(1, "stop", "rank 1 fell", "failure", "b", 1, 5, (0, 0, 1), paused=0.0)),
        ev.GroupOrderReceived(10.0, GroupOrder(1, "end", end=GroupEnd(0, "succeeded", ""))),
        ev.GroupOrderReceived(
            10.0, GroupOrder(1, "end", end=GroupEnd(197, "node-fault", "it fell off the bus", "b", "gpu0"))
        ),
        ev.GroupOrderReceived(
            10.0, GroupOrder(1, "end", end=GroupEnd(195, "hang-limit", "rank 0 left", "b", asked=True))
        ),
        ev.GroupOrderReceived(10.0, GroupOrder(1, "end")),
    ],
    ev.CoordinatorSilent: [ev.CoordinatorSilent(10.0, "nothing was heard of rank 0", 610.0)],
    ev.CoordinatorLost: [
        ev.CoordinatorLost(10.0, "nothing was heard of rank 0"),
        ev.CoordinatorLost(10.0, "another version", True),
    ],
}
WANTS: list[Want] = [
    KeepRunning(),
    Restart("hang", 1),
    Restart("failure", 2, 4.0),
    Restart("failure", 2, 4.0, own=3),
    Restart("fault", 1, 0.0, (FAULT,)),
    Restart("fault", 1, 0.0, (FAULT, FAULT._replace(device="gpu1"))),
    Finish(195, "hang-limit", "why"),
    Finish(143, "stopped", "why", own=True),
    Finish(143, "stopped", "why", own=True, asked=True),
    Finish(0, "succeeded", "why"),
]
LIMITS = Policy().limits
POLICIES = [
    Policy(),
    Policy(files=True, limits=LIMITS._replace(auto=True)),
    Policy(restart_on=frozenset({"hang", "fault", "failure"}), max_restarts=None, limits=LIMITS._replace(grace=0.0)),
    Policy(
        min_devices=1,
        membership=Membership(shared=True),
        unconditional=True,
        limits=LIMITS._replace(device_timeout=60.0),
        max_restarts=1,
    ),
    Policy(membership=Membership(group=True)),
    Policy(membership=Membership(group=True, member=1), ranks=1),
]


# Every 61st combination has each value of a phase with each one of an event; `-m slow` has all of them.
@pytest.mark.parametrize("every", [61, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
def test_each_event_in_this_phase(phase: type[Phase], every: int) -> None:
    for event in ev.EVENTS:
        check_cell(phase, event, every)


def check_cell(phase: type[Phase], event: type[ev.Event], every: int) -> None:
    empty = (phase, event) not in TABLE
    assert empty or (phase, event) not in UNEXPECTED
    ledger = Ledger(start_cnt=1, hang=1, reason="hang", learned=UsualPauses(1.0, 2.0, 100))
    jobs = [
        Job(ledger=ledger),
        Job(ledger=ledger._replace(occurrences=(OCCURRENCE,)), held="why", devices=(GPU, GPU._replace(id="b"))),
    ]
    late = Paused(1.0, 5.0, (ev.FaultReported(2.0, FAULT),))
    jobs += [jobs[0]._replace(paused=Paused(1.0)), jobs[0]._replace(paused=late, order=GroupOrder(1, "run"))]
    cases = itertools.product(PHASE_VALUES[phase], EVENT_VALUES[event], WANTS, POLICIES, jobs)
    for a_phase, an_event, want, policy, a_job in itertools.islice(cases, 0, None, every):
        job = a_job._replace(phase=a_phase, want=want)
        after, effects = decide(job, an_event, policy)
        assert isinstance(after.phase, PHASES), (job, an_event)
        if isinstance(getattr(an_event, "requester", None), ev.Requester) and phase is not Launching:
            answers = [effect for effect in effects if isinstance(effect, do.AnswerOperator)]
            assert [answer.id for answer in answers] == ["7"], ("a request that nobody answers", job, an_event)
        if (phase, event) in UNEXPECTED and job.paused is None:
            assert after == job._replace(unexpected=after.unexpected, ledger=after.ledger), an_event
            assert [effect.event for effect in effects if isinstance(effect, do.Persist)] == ["unexpected"], an_event
        elif empty and job.paused is None:
            assert after is job, an_event
            assert effects == (), an_event


def test_the_lists_are_complete() -> None:
    assert set(PHASE_VALUES) == set(PHASES)
    assert set(EVENT_VALUES) == set(ev.EVENTS)
    assert set(TABLE) <= set(itertools.product(PHASES, ev.EVENTS))
    assert {event for _, event in TABLE} == set(ev.EVENTS), "an event without a cell changes nothing"
