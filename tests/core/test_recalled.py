"""The first start waits for what an earlier schedule has reached, but not for long."""

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.job import decide
from ftrun.core.machine.states import Job, Pending
from ftrun.core.machine.values import Ledger
from ftrun.core.rules.fault_history import Schedule
from ftrun.core.rules.policy import Membership, Policy

POLICY = Policy(membership=Membership(recalls=True))
EARLIER = Schedule("a", 1, "n", 1.0, 70, 60, last_step=70, last_checkpoint="/ckpt/60")


def waiting(policy: Policy = POLICY, ledger: Ledger | None = None) -> tuple[Job, tuple[do.Effect, ...]]:
    return decide(Job(ledger=ledger or Ledger(schedule_cnt=2)), ev.Started(5.0), policy)


def starts(effects: tuple[do.Effect, ...]) -> bool:
    return any(isinstance(effect, do.Spawn) for effect in effects)


def test_first_start_sees_the_last_step_and_checkpoint_of_the_earlier_schedule() -> None:
    job, effects = waiting()
    assert isinstance(job.phase, Pending)
    assert not starts(effects)
    job, effects = decide(job, ev.HistoryLoaded(5.1, (), (EARLIER,)), POLICY)
    assert starts(effects)
    assert (job.ledger.last_step, job.ledger.last_checkpoint) == (70, "/ckpt/60")


def test_state_dir_that_does_not_answer_delays_the_start_by_seconds_only() -> None:
    job, _ = waiting()
    deadline = job.phase.deadline
    assert deadline is not None
    assert deadline <= 15.0
    assert starts(decide(job, ev.DeadlineReached(deadline), POLICY)[1])


def test_ftrun_that_knows_where_it_was_waits_for_nothing_and_keeps_it() -> None:
    own = Ledger(schedule_cnt=2, start_cnt=4, last_step=80, last_checkpoint="/ckpt/80")
    job, effects = waiting(ledger=own)
    assert starts(effects)
    job, _ = decide(job, ev.HistoryLoaded(5.1, (), (EARLIER,)), POLICY)
    assert (job.ledger.last_step, job.ledger.last_checkpoint) == (80, "/ckpt/80")


def test_devices_that_are_checked_first_do_not_end_the_wait() -> None:
    policy = POLICY._replace(checks_devices=True, membership=Membership(recalls=True, shared=True))
    job, _ = waiting(policy)
    job, effects = decide(job, ev.DevicesChecked(5.1, ()), policy)
    assert not starts(effects)
    assert starts(decide(job, ev.HistoryLoaded(5.2, (), (EARLIER,)), policy)[1])


def test_another_phase_or_a_later_schedule_is_no_earlier_one() -> None:
    job, _ = waiting()
    others = (EARLIER._replace(phase="prepare"), EARLIER._replace(number=2))
    job, effects = decide(job, ev.HistoryLoaded(5.1, (), others), POLICY)
    assert starts(effects)
    assert job.ledger.last_checkpoint is None
