"""Where the time of a run goes: by examples, and under an adversary, where each instant is counted exactly once."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from core.test_decide_properties import Adversary, game
from ftrun.core.accounting.totals import TRACE, Account, Figures, LostTime, RestartCounts, figures, summary
from ftrun.core.machine import events as ev
from ftrun.core.machine.job import decide
from ftrun.core.machine.pause import NOTED
from ftrun.core.machine.states import (
    Done,
    Finish,
    Healing,
    Job,
    Launching,
    Pending,
    Running,
    Starting,
    Stopping,
    Suspect,
)
from ftrun.core.machine.values import Ledger, LocalRank, Rank
from ftrun.core.ranks.table import AskedRetry, HeldSnapshot, LeftRound, SaidHello
from ftrun.core.rules import exit_codes
from ftrun.core.rules.idle import Idle, TreeSample
from ftrun.core.rules.liveness import Limits
from ftrun.core.rules.policy import Policy

MINUTE = Policy(limits=Limits(hang=60.0, start=None, section=None))
FAILURES = MINUTE._replace(restart_on=frozenset({"hang", "fault", "failure"}), backoff=4.0)
EASE = 1e-6


class Run:
    """A job that gets events at the given times."""

    def __init__(self, policy: Policy = MINUTE, ledger: Ledger | None = None) -> None:
        self.policy, self.job = policy, Job(ledger=ledger or Ledger())

    def happens(self, *happened: ev.Event) -> "Run":
        for event in happened:
            self.job, _ = decide(self.job, event, self.policy)
        return self

    def starts(self, at: float, launching: float = 0.0) -> "Run":
        return self.happens(ev.Started(at), ev.CommandSpawned(at + launching, 100))

    def steps(self, *points: tuple[float, int], **also: Any) -> "Run":
        """Rank 0 moves at these times, to these steps, and that is seen."""
        return self.happens(*(ev.BeatsRead(at, (Rank(0, 100, moved_at=at, step=step, **also),)) for at, step in points))

    def hangs(self, silent: float, found: float, proven: float, step: int | None = None, **also: Any) -> "Run":
        ranks = (Rank(0, 100, moved_at=silent, step=step, **also),)
        self.happens(ev.BeatsRead(found, ranks))
        assert isinstance(self.job.phase, Suspect)
        return self.happens(ev.EvidenceCollected(proven, ranks))

    def dies(self, at: float, code: int = 1, dead: float = 0.0) -> "Run":
        return self.happens(ev.CommandExited(at, code), ev.TreeEnded(at + dead))

    def figures(self, now: float | None = None) -> Figures:
        return figures(self.job.ledger.account, now)

    def lost(self, now: float | None = None) -> dict[str, float]:
        """What was, in seconds."""
        return {why: round(lost, 6) for why, lost in self.figures(now).lost.items() if lost}

    def check(self, wall: float, kept: float, **lost: float) -> None:
        """All of it; the rest is pending."""
        found = self.figures()
        assert (round(found.wall, 6), round(found.kept, 6), self.lost()) == (wall, kept, lost)
        assert found.pending == pytest.approx(wall - kept - sum(lost.values()), abs=EASE)


# --- one attempt ------------------------------------------------------------------------------------------------------


def test_startup_ends_at_the_first_heartbeat() -> None:
    run = Run().starts(100.0, launching=1.0).steps((110.0, 0), (130.0, 5))
    run.check(wall=30.0, kept=0.0, startup=10.0)
    run.dies(140.0, 0, dead=2.0).check(wall=42.0, kept=30.0, startup=10.0, stopping=2.0)


def test_startup_ends_when_a_rank_moved_and_not_when_that_was_read() -> None:
    ranks = (Rank(0, 100, moved_at=9.0), Rank(1, 101, moved_at=6.0), Rank(2, 102))
    Run().starts(0.0).happens(ev.BeatsRead(10.0, ranks)).check(wall=10.0, kept=0.0, startup=6.0)


def test_a_command_without_heartbeats_has_no_startup() -> None:
    run = Run().starts(0.0, launching=1.0)
    run.happens(ev.BeatsRead(5.0, (Rank(0, 100),))).dies(20.0, 0).check(wall=20.0, kept=20.0)


def test_an_import_error_in_the_first_start_is_startup_and_redoes_nothing() -> None:
    Run().starts(0.0).dies(3.0, 1).check(wall=3.0, kept=0.0, startup=3.0)


def test_a_cleared_suspicion_costs_nothing() -> None:
    run = Run().starts(0.0).steps((0.0, 1)).happens(ev.BeatsRead(65.0, (Rank(0, 100, moved_at=0.0, step=1),)))
    assert isinstance(run.job.phase, Suspect)
    run.steps((70.0, 2)).dies(80.0, 0).check(wall=80.0, kept=80.0)


def test_a_hang_counts_from_the_last_movement_to_the_verdict() -> None:
    run = Run().starts(0.0).steps((10.0, 1), (100.0, 5)).hangs(100.0, 161.0, 170.0, step=5)
    run.check(wall=170.0, kept=0.0, startup=10.0, hang=70.0)
    assert run.figures().pending == pytest.approx(90.0)


# --- ranks that recover -----------------------------------------------------------------------------------------------

RECOVERS = FAILURES._replace(recover=frozenset({"retry", "rank"}))


class Ranks(Run):
    """Two ranks that can recover, and have moved at 10.0 to step 1 and at 100.0 to step 10."""

    def __init__(self, **also: Any) -> None:
        super().__init__(RECOVERS)
        spawned = ev.CommandSpawned(0.0, 100, (LocalRank(0, 0, 100), LocalRank(1, 1, 101)))
        self.happens(ev.Started(0.0), spawned, *(ev.RankReported(1.0, SaidHello(rank)) for rank in (0, 1)))
        self.move(10.0, 1).move(55.0, 5, **also).move(100.0, 10, **also)

    def move(self, at: float, step: int, read: float | None = None, **also: Any) -> "Ranks":
        ranks = tuple(Rank(rank, 100 + rank, moved_at=at, step=step, **also) for rank in (0, 1))
        self.happens(ev.BeatsRead(at if read is None else read, ranks))
        return self

    def leave(self, at: float, *held: int) -> "Ranks":
        number, kept = self.job.phase.attempt.rounds.number, tuple(map(HeldSnapshot, held))  # type: ignore[union-attr]
        self.happens(*(ev.RankReported(at, LeftRound(rank, number, kept)) for rank in (0, 1)))
        return self


def test_a_retry_costs_its_time_and_the_steps_since_the_snapshot() -> None:
    run = Ranks()
    run.happens(ev.RankReported(110.0, AskedRetry(0, 1, "a link")))
    run.leave(110.5, 5)
    assert run.lost() == {"startup": 10.0}
    run.move(112.0, 6, read=113.0).check(wall=113.0, kept=0.0, startup=10.0, recovery=2.0, redone=55.0)
    run.move(120.0, 10)
    run.dies(130.0, 0).check(wall=130.0, kept=63.0, startup=10.0, recovery=2.0, redone=55.0)


def test_a_recovery_with_the_checkpoint_costs_the_work_after_it() -> None:
    run = Ranks(checkpoint_step=5)
    run.happens(ev.RankReported(110.0, AskedRetry(0, 1, "a link")))
    run.leave(110.5)
    run.move(112.0, 6, checkpoint_step=5).check(wall=112.0, kept=45.0, startup=10.0, recovery=2.0, redone=55.0)


def test_a_hang_of_one_rank_counts_up_to_its_verdict_and_its_recovery_after_that() -> None:
    run = Ranks()
    ranks = tuple(Rank(rank, 100 + rank, moved_at=100.0, step=10) for rank in (0, 1))
    run.happens(ev.BeatsRead(161.0, ranks), ev.EvidenceCollected(170.0, ranks, (("culprits", (1,)),)))
    run.happens(ev.RankTreeEnded(171.0, 1), ev.RankStarted(171.0, 1, 201), ev.RankReported(175.0, SaidHello(1)))
    run.happens(ev.RankReported(176.0, LeftRound(0, 1, (HeldSnapshot(10),))))
    moved = (Rank(0, 100, moved_at=177.0, step=1), Rank(1, 201, moved_at=178.0, step=1))
    run.happens(ev.BeatsRead(178.0, moved))
    lost = {why: seconds for why, seconds in run.lost().items() if why != "redone"}
    assert lost == {"startup": 10.0, "hang": 70.0, "recovery": 8.0}


def test_a_recovery_that_fails_is_lost_and_the_restart_decides_about_the_steps() -> None:
    run = Ranks()
    run.happens(ev.RankExited(110.0, 1, None, 9), ev.RankTreeEnded(111.0, 1), ev.RankStarted(111.0, 1, 201))
    run.happens(ev.RankExited(114.0, 1, None, 9), ev.CommandExited(114.0, None, 9))
    assert run.lost() == {"startup": 10.0, "recovery": 4.0}


@pytest.mark.parametrize(
    "event", [ev.CommandExited(70.0, 9), ev.SignalReceived(70.0, 15, True), ev.RestartRequested(70.0)]
)
def test_a_suspect_that_ends_by_itself_did_not_hang(event: ev.Event) -> None:
    run = Run(FAILURES).starts(0.0).steps((0.0, 1)).happens(ev.BeatsRead(65.0, (Rank(0, 100, moved_at=0.0, step=1),)))
    run.happens(event)
    assert "hang" not in run.lost()


def test_each_suspect_is_counted_from_its_own_last_movement() -> None:
    run = Run().starts(0.0).steps((0.0, 1)).happens(ev.BeatsRead(65.0, (Rank(0, 100, moved_at=0.0, step=1),)))
    other = (Rank(0, 100, moved_at=66.0, step=2), Rank(1, 101, moved_at=20.0, step=1))
    run.happens(ev.BeatsRead(85.0, other))
    assert isinstance(run.job.phase, Suspect)
    assert run.job.phase.finding.rank == 1
    run.happens(ev.EvidenceCollected(90.0, other)).check(wall=90.0, kept=0.0, hang=70.0)


def test_an_idle_tree_hung_since_its_last_work() -> None:
    policy = MINUTE._replace(limits=MINUTE.limits._replace(idle=20.0, idle_given=True))
    run = Run(policy).starts(0.0)
    for at in (10.0, 20.0, 30.0, 40.0, 50.0):
        run.happens(ev.TreeSampled(at, TreeSample(at, 10.0, 1.0 if at == 10 else 0.0, 0.0)))
    assert isinstance(run.job.phase, Suspect)
    assert run.job.phase.attempt.idle == Idle(10.0, idle_samples=run.job.phase.attempt.idle.idle_samples)
    run.happens(ev.EvidenceCollected(55.0, ())).check(wall=55.0, kept=0.0, hang=45.0)


def test_a_missing_first_heartbeat_is_a_hang_and_no_startup() -> None:
    policy = MINUTE._replace(limits=MINUTE.limits._replace(start=30.0))
    run = Run(policy).starts(0.0, launching=1.0).happens(ev.BeatsRead(31.0, ()), ev.EvidenceCollected(35.0, ()))
    run.check(wall=35.0, kept=0.0, hang=34.0)
    run.happens(ev.TreeEnded(36.0)).check(wall=36.0, kept=0.0, hang=34.0, stopping=1.0, startup=1.0)


# --- what a restart throws away ---------------------------------------------------------------------------------------


def hung(*points: tuple[float, int]) -> Run:
    """Beats from 10 on, hangs from 100 on, for 70 s; the next start's exec is at 175, its first beat at 180."""
    run = Run().starts(0.0).steps(*points).hangs(100.0, 161.0, 170.0, step=points[-1][1])
    return run.happens(ev.TreeEnded(174.0), ev.CommandSpawned(175.0, 200))


POINTS = ((10.0, 0), (40.0, 30), (100.0, 60))
LOST = {"hang": 70.0, "stopping": 4.0}


@pytest.mark.parametrize(
    ("step", "redone"),
    [
        (0, 90.0),
        (15, 75.0),  # it was first reached at 25
        (30, 60.0),
        (45, 30.0),  # at 70
        (60, 0.0),
        (61, 0.0),
    ],
)
def test_repeated_steps_are_lost(step: int, redone: float) -> None:
    run = hung(*POINTS)
    run.check(wall=175.0, kept=0.0, startup=10.0, **LOST)
    run.steps((180.0, step))
    lost = LOST | ({"redone": redone} if redone else {})
    run.check(wall=180.0, kept=90.0 - redone, startup=16.0, **lost)


def test_work_before_the_first_step_is_kept_with_that_step() -> None:
    run = Run().starts(0.0).happens(ev.BeatsRead(10.0, (Rank(0, 100, moved_at=10.0),))).steps((30.0, 5))
    run.hangs(30.0, 91.0, 100.0, step=5).happens(ev.TreeEnded(100.0), ev.CommandSpawned(100.0, 200)).steps((100.0, 5))
    run.check(wall=100.0, kept=20.0, startup=10.0, hang=70.0)


def test_heartbeats_without_a_step_leave_earlier_work_undecided() -> None:
    run = hung(*POINTS).happens(ev.BeatsRead(190.0, (Rank(0, 200, moved_at=180.0),)))
    assert "redone" not in run.lost()
    run.steps((200.0, 60)).check(wall=200.0, kept=90.0, startup=16.0, **LOST)


def test_success_without_another_step_keeps_all_work() -> None:
    hung(*POINTS).dies(178.0, 0).check(wall=178.0, kept=94.0, startup=10.0, **LOST)


def test_all_work_is_lost_where_nothing_is_reported() -> None:
    run = Run(FAILURES).starts(0.0).dies(50.0, dead=1.0)
    run.happens(ev.DeadlineReached(55.0)).check(wall=55.0, kept=0.0, startup=50.0, stopping=1.0, waiting=4.0)
    run.happens(ev.CommandSpawned(56.0, 200)).dies(60.0, 0).check(
        wall=60.0, kept=5.0, startup=50.0, stopping=1.0, waiting=4.0
    )


def test_work_after_the_newest_checkpoint_is_lost() -> None:
    run = Run().starts(0.0).steps((10.0, 0), (40.0, 30)).steps((60.0, 40), checkpoint_step=40)
    run.check(wall=60.0, kept=50.0, startup=10.0)
    run.steps((100.0, 60), checkpoint_step=40).hangs(100.0, 161.0, 170.0, step=60, checkpoint_step=40)
    run.happens(ev.TreeEnded(174.0), ev.CommandSpawned(175.0, 200))
    run.check(wall=175.0, kept=50.0, startup=10.0, **LOST)
    run.steps((180.0, 50)).check(wall=180.0, kept=50.0, startup=16.0, redone=40.0, **LOST)


def test_a_checkpoint_of_another_rank_does_not_keep_the_silence_of_a_suspect() -> None:
    def ranks(checkpoint: int | None) -> tuple[Rank, ...]:
        return (Rank(0, 100, moved_at=60.0, step=9, checkpoint_step=checkpoint), Rank(1, 101, moved_at=0.0, step=1))

    run = Run().starts(0.0).steps((0.0, 1)).happens(ev.BeatsRead(60.0, ranks(None)), ev.BeatsRead(65.0, ranks(9)))
    run.check(wall=65.0, kept=0.0)
    run.happens(ev.EvidenceCollected(70.0, ranks(9))).check(wall=70.0, kept=0.0, hang=70.0)


def test_a_checkpoint_file_keeps_the_work_up_to_it() -> None:
    run = Run(FAILURES).starts(0.0).happens(ev.CheckpointSaved(50.0, "/c", 44.0)).dies(70.0)
    run.check(wall=70.0, kept=44.0)
    run.happens(ev.DeadlineReached(74.0), ev.CommandSpawned(74.0, 200), ev.CheckpointSaved(83.0, "/d", 83.0))
    run.check(wall=83.0, kept=53.0, waiting=4.0, redone=26.0)


def test_a_checkpoint_file_reported_late_keeps_the_work_of_the_attempt_before() -> None:
    run = Run(FAILURES).starts(0.0).steps((0.0, 5)).happens(ev.CheckpointSaved(10.0, "/c", 10.0)).dies(70.0)
    run.happens(ev.DeadlineReached(74.0), ev.CommandSpawned(74.0, 200), ev.CheckpointSaved(75.0, "/d", 69.0))
    run.check(wall=75.0, kept=70.0, waiting=4.0)
    run.steps((75.0, 6)).check(wall=75.0, kept=70.0, waiting=4.0, startup=1.0)


def test_a_file_cut_off_by_a_kill_keeps_nothing() -> None:
    run = Run().starts(0.0).steps((0.0, 1)).happens(ev.RestartRequested(50.0))
    run.happens(ev.CheckpointSaved(51.0, "/c", 51.0, renamed=False), ev.TreeEnded(52.0))
    assert run.figures().kept == 0


# --- between attempts, and at the end ---------------------------------------------------------------------------------


def test_work_after_the_last_checkpoint_is_lost_with_an_escalation() -> None:
    policy = MINUTE._replace(max_restarts=0)
    run = Run(policy).starts(0.0).steps((0.0, 0)).steps((30.0, 5), checkpoint_step=5).steps((40.0, 7))
    run.hangs(40.0, 101.0, 101.0, step=7).happens(ev.TreeEnded(102.0))
    assert isinstance(run.job.phase, Done)
    run.check(wall=102.0, kept=30.0, hang=61.0, discarded=10.0, stopping=1.0)
    assert run.figures(now=500.0) == run.figures()


def test_a_failure_without_a_restart_has_redone_nothing() -> None:
    Run().starts(0.0).steps((10.0, 0), (40.0, 7)).dies(50.0).check(wall=50.0, kept=0.0, startup=10.0, discarded=40.0)
    run = Run(FAILURES._replace(max_restarts=1)).starts(0.0).steps((10.0, 0), (40.0, 7)).dies(50.0)
    run.happens(ev.DeadlineReached(54.0), ev.CommandSpawned(54.0, 200)).steps((60.0, 0)).dies(80.0)
    run.check(wall=80.0, kept=0.0, startup=16.0, redone=40.0, waiting=4.0, discarded=20.0)


@pytest.mark.parametrize(("code", "kept"), [(0, 55.0), (3, 0.0)])
def test_a_stop_from_outside_counts_as_work_that_may_have_been_saved(code: int, kept: float) -> None:
    run = Run().starts(0.0).steps((0.0, 0)).happens(ev.SignalReceived(50.0, 15, True)).dies(55.0, code)
    run.check(wall=55.0, kept=kept)
    assert run.figures().goodput == 1


def test_only_the_time_without_movement_in_a_pause_is_lost() -> None:
    run = Run().starts(0.0).steps((10.0, 0)).happens(ev.PauseRequested(20.0)).steps((25.0, 9))
    run.happens(ev.ResumeRequested(40.0)).dies(50.0, 0, dead=5.0)
    run.check(wall=55.0, kept=25.0, startup=10.0, paused=15.0, stopping=5.0)


def test_time_in_which_ftrun_was_suspended_is_paused() -> None:
    run = Run().starts(0.0).steps((0.0, 1), (20.0, 2)).happens(ev.WokeLate(90.0, 30.0))
    run.check(wall=90.0, kept=0.0, paused=60.0)
    run.happens(ev.WokeLate(125.0, 120.0)).check(wall=125.0, kept=0.0, paused=60.0)  # a busy machine
    run.dies(130.0, 0).check(wall=130.0, kept=70.0, paused=60.0)


def test_an_exit_reported_late_counts_nothing_twice() -> None:
    run = Run(FAILURES).starts(0.0).steps((0.0, 0)).happens(ev.BeatsRead(11.0, (Rank(0, 100, moved_at=11.0, step=1),)))
    run.happens(ev.CommandExited(10.0, 1), ev.TreeEnded(12.0)).check(wall=12.0, kept=0.0, stopping=1.0)


# --- several ftruns on one run dir ------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [5.0, 5000.0], ids=["of another boot", "of this one"])
def test_the_next_ftrun_continues_the_account_without_the_time_between(start: float) -> None:
    first = Run().starts(1000.0).steps((1010.0, 0), (1060.0, 50))
    second = Run(ledger=first.job.ledger).happens(ev.Started(start))
    second.check(wall=60.0, kept=0.0, startup=10.0)
    assert second.figures().pending == pytest.approx(50.0)
    second.happens(ev.CommandSpawned(start + 1, 100)).steps((start + 2, 40))
    second.check(wall=62.0, kept=40.0, startup=12.0, redone=10.0)
    assert second.figures().restarts == RestartCounts()._asdict(), "no restart of ours"


# --- the trace --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("looks", [10, 64, 65, 129, 2000])
def test_a_bounded_trace_still_dates_each_step(looks: int) -> None:
    """Steps that take ever longer: what the trace tells of each is near to what was."""
    seen = [(7.0 * look + 0.002 * look * look, 3 * look) for look in range(looks)]
    run = Run(MINUTE._replace(limits=MINUTE.limits._replace(hang=None))).starts(0.0).steps(*seen)
    trace = run.job.ledger.account.trace
    assert len(trace) <= TRACE
    assert trace[0] == seen[0]
    assert trace[-1] == seen[-1]
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(trace))
    end = seen[-1][0]
    for at, step in seen[:: max(1, looks // 50)]:
        again = Run(run.policy, run.job.ledger).happens(ev.Started(0.0), ev.CommandSpawned(0.0, 1)).steps((0.0, step))
        assert again.figures().kept == pytest.approx(at, abs=end / 60)


def test_the_first_time_that_a_step_was_reached_counts() -> None:
    run = Run().starts(0.0).steps((0.0, 0), (20.0, 10), (30.0, 2), (40.0, 10), (50.0, 20))
    assert run.job.ledger.account.trace == ((0.0, 0), (20.0, 10), (50.0, 20))
    again = Run(ledger=run.job.ledger).starts(0.0).steps((0.0, 10))
    again.check(wall=50.0, kept=20.0, redone=30.0)


# --- the summary ------------------------------------------------------------------------------------------------------


def summarized(wall: float, kept: float, **lost: float) -> str:
    return summary(figures(Account(wall=wall, kept=kept, lost=LostTime(**lost), stepped=True)))


def test_summary_of_the_last_line() -> None:
    lost = {"hang": 300.0, "redone": 125.0, "startup": 60.0, "stopping": 30.0}
    text = summarized(7380.0, 6865.0, **lost)
    assert text == "goodput 93% of 2h 3m; lost 8m 35s: 5m hang, 2m 5s redone, 60s startup"
    assert summarized(720.0, 720.0) == "goodput 100% of 12m"
    assert summarized(720.0, 719.9, stopping=0.1) == "goodput 100% of 12m", "too little to mention"
    assert summarized(10000.0, 9980.0, hang=20.0) == "goodput >99% of 2h 46m; lost 20s: 20s hang"
    assert summarized(5.0, 0.0, redone=5.0) == "goodput 0% of 5s; lost 5s: 5s redone"
    assert summarized(0.02, 0.0, redone=0.02) == "goodput 0% of 0s"
    assert summarized(0.0, 0.0) == ""
    account = Account(wall=12.0, lost=LostTime(hang=12.0))
    assert summary(figures(account)) == "lost 12s", "there is none without a step"


def test_pending_work_counts_as_kept_while_it_runs() -> None:
    run = Run().starts(0.0).steps((10.0, 0))
    found = run.figures(now=40.0)
    assert (found.wall, found.kept, found.pending, found.goodput) == (40.0, 0.0, 30.0, 0.75)
    assert run.figures(now=5.0).wall == 10.0, "never before what is counted"


def test_a_job_that_never_stepped_has_no_goodput() -> None:
    hung = Run().starts(0.0).happens(ev.BeatsRead(10.0, (Rank(0, 100, moved_at=10.0),))).hangs(10.0, 71.0, 80.0)
    assert (hung.lost(), hung.figures().goodput) == ({"startup": 10.0, "hang": 70.0}, None)
    assert Run().starts(0.0).dies(5.0, 0).figures().goodput is None
    saves = Run().starts(0.0).happens(ev.CheckpointSaved(5.0, "/c", 4.0)).dies(5.0, 0)
    assert saves.figures().goodput == 1


# --- the adversary ----------------------------------------------------------------------------------------------------


class Auditor(Adversary):
    """Beside the account stands a book that is kept by the clock alone."""

    def __init__(self) -> None:
        super().__init__()
        self.book = dict.fromkeys(("stopping", "healing", "waiting", "paused", "attempt"), 0.0)
        self.blurred = self.stood = 0.0
        self.since: float | None = None
        self.last = self.account

    @property
    def account(self) -> Figures:
        return figures(self.job.ledger.account)

    @precondition(lambda self: not isinstance(self.job.phase, Done))
    @rule(now=st.sampled_from([0.0, 77.0, 1e7]), rarely=st.integers(0, 4))
    def ftrun_is_killed(self, now: float, rarely: int) -> None:
        """The next one, in this boot or in another, has what state.json had."""
        if rarely:
            return
        if self.since is not None:  # what nothing has happened in is not written down
            self.book[_column(self.job)] -= self.since - (self.job.ledger.account.at or 0.0)
        self.job, self.now, self.since = Job(ledger=self.job.ledger), now, None
        self.tree_alive = self.stop_asked = self.halted = False

    def happens(self, event: ev.Event) -> None:
        before = self.job
        self._note(before, event)
        self.job, _ = decide(before, event, self.policy)
        self._write(before, event)
        self._audit(before)

    def _write(self, before: Job, event: ev.Event) -> None:
        now = event.now
        if self.since is not None:
            suspended = 0.0
            runs = _column(before) == "attempt" and not isinstance(before.phase, Launching)
            if isinstance(event, ev.WokeLate) and before.paused is None and runs:
                suspended = now - max(event.since, self.since)
            self.book["paused"] += (suspended := suspended if suspended >= NOTED else 0.0)
            self.book[_column(before)] += now - self.since - suspended
            self.stood += 0.0 if before.paused is None else now - self.since
            if isinstance(before.phase, Launching):
                self.blurred += now - self.since  # what waited for the exec may be decided as of its own time
        unstarted = isinstance(self.job.phase, Pending) and self.job.phase.deadline is None
        self.since = None if unstarted or isinstance(self.job.phase, Done) else now

    def _audit(self, before: Job) -> None:
        now, last, account = self.account, self.last, self.job.ledger.account
        seen, wall = figures(account, self.since), sum(self.book.values())
        ease = EASE * (1 + wall)
        assert seen.wall == pytest.approx(wall, abs=ease), "from the start to the end"
        assert seen.kept + sum(seen.lost.values()) + seen.pending == pytest.approx(wall, abs=ease), "once"
        assert self.book["paused"] - ease <= seen.lost["paused"] <= self.book["paused"] + self.stood + ease
        for why in ("stopping", "healing", "waiting"):
            assert seen.lost[why] == pytest.approx(self.book[why], abs=ease + self.blurred), why
        assert min(now.wall, now.kept, now.pending, *now.lost.values()) >= 0
        assert now.wall >= last.wall
        assert now.kept >= last.kept
        assert all(now.lost[why] >= last.lost[why] for why in now.lost), "lost time only rises"
        assert now.goodput is None or 0 <= now.goodput <= 1
        if isinstance(self.job.phase, Done):
            want = self.job.want
            stopped = isinstance(want, Finish) and want.verdict == exit_codes.STOPPED
            assert now.pending == 0 or stopped, "at the end all is decided"
            assert figures(account, self.now + 100.0) == now
        for trace in (account.trace, account.past):
            steps = [step for _, step in trace]
            assert steps == sorted(set(steps)), "what state.json takes"
            assert len(trace) <= TRACE
        again = sum(now.restarts.values()) - sum(last.restarts.values())
        assert again in (0, self.job.ledger.start_cnt - before.ledger.start_cnt)
        self.last = now


def _column(job: Job) -> str:
    phase = job.phase
    match phase:
        case Stopping(stage="asked"):
            return "attempt"
        case Stopping(stage="verdict"):
            return "waiting"  # for others
        case Stopping():
            return "stopping"
        case Healing(fault) if fault is not None:
            return "healing"
        case Healing() | Pending():
            return "waiting"
        case Starting() | Running() | Suspect() if phase.attempt.stopped_at is not None:
            return "paused"
    return "attempt"


TestAuditor = Auditor.TestCase
TestAuditor.settings = game(40, 30)
