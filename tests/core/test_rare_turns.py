"""Rare turns that a first version of the core got wrong, and that are no transcript."""

import pytest

from ftrun.core.group.messages import GroupEnd, GroupOrder
from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.job import decide
from ftrun.core.machine.states import Done, Job, Pending, Starting, Stopping, Suspect
from ftrun.core.machine.stopping import finish, finish_with
from ftrun.core.machine.values import Ledger, Rank
from ftrun.core.rules import exit_codes
from ftrun.core.rules.policy import Policy


def after(job: Job, policy: Policy, *events: ev.Event) -> Job:
    for event in events:
        job, _ = decide(job, event, policy)
    return job


def running(*events: ev.Event, policy: Policy | None = None) -> Job:
    return after(Job(), policy or Policy(), ev.Started(0.0), ev.CommandSpawned(1.0, 7), *events)


def test_a_checkpoint_that_is_found_after_a_later_one_is_not_resumed_from() -> None:
    """The watcher of checkpoints was started again, and found them by listing."""
    for files in (("/c/step-45", "/c/step-36"), ("/c/last.pt", "/c/before.pt")):
        saved = [ev.CheckpointSaved(20.0 + n, file, 20.0 + n, False, 19.0 - n, n > 0) for n, file in enumerate(files)]
        assert running(*saved).ledger.last_checkpoint == files[0]
    again = [ev.CheckpointSaved(20.0 + n, file, 20.0 + n) for n, file in enumerate(("/c/step-45", "/c/step-36"))]
    assert running(*again).ledger.last_checkpoint == "/c/step-36", "a job that starts from scratch each time"


def test_an_exit_before_the_exec_is_not_stable() -> None:
    """The attempt has no spawn time yet: on a machine up for an hour it looks as old as the machine."""
    policy = Policy(restart_on=frozenset({"failure"}))
    job = after(Job(ledger=Ledger(failure=2)), policy, ev.Started(9000.0), ev.CommandExited(9001.0, signal=9))
    assert job.ledger.failure == 3


def test_processes_that_a_launcher_started_again_begin_now() -> None:
    """A given start timeout is armed at the spawn; hours later it must not condemn who has not moved yet."""
    policy = Policy(limits=Policy().limits._replace(hang=60.0, start=600.0))
    moved, begins = (Rank(0, pid=7, moved_at=10.0, step=5),), (Rank(0, pid=9, claimed_at=9000.0),)
    reads = (ev.BeatsRead(10.0, moved), ev.BeatsRead(9000.0, begins), ev.BeatsRead(9599.0, begins))
    job = running(*reads, policy=policy)
    assert isinstance(job.phase, Starting)
    job = after(job, policy, ev.BeatsRead(9600.0, begins))
    assert isinstance(job.phase, Suspect)
    assert job.phase.finding.rule == "start"


def test_a_schedule_that_ended_with_196_has_no_clear_fault() -> None:
    """Else a scheduler without a limit of its own would start the job again for ever."""
    job = Job(ledger=Ledger(start_cnt=1, faulted=True))
    for verdict, faulted in ((exit_codes.USER_FAULT_LIMIT, False), (exit_codes.NODE_FAULT, True)):
        assert finish(job, finish_with(verdict, "a fault"))[0].ledger.faulted is faulted


def test_a_member_that_had_succeeded_says_why_it_starts_again() -> None:
    policy = Policy(membership=Policy().membership._replace(group=True, member=1, node="b"))
    order = ev.GroupOrderReceived(5.0, GroupOrder(1, "run"))
    ended = ev.CommandExited(7.0, 0), ev.TreeEnded(8.0)
    job = after(Job(), policy, ev.Started(0.0), order, ev.CommandSpawned(6.0, 7), *ended)
    open_stop = GroupOrder(1, "stop", "member 2 (c): rank 2 stopped", node="c")
    job, effects = decide(job, ev.GroupOrderReceived(9.0, open_stop), policy)
    assert (type(job.phase), [one for one in effects if isinstance(one, do.LogLine)]) == (Stopping, [])
    job, effects = decide(job, ev.GroupOrderReceived(10.0, open_stop._replace(cause="hang")), policy)
    lines = [one.text for one in effects if isinstance(one, do.LogLine)]
    assert (type(job.phase), lines) == (Pending, ["the first failure: member 2 (c): rank 2 stopped"])


def test_a_spare_does_not_promise_a_restart() -> None:
    """Its answer must not be that of a member whose command starts soon."""
    policy = Policy(membership=Policy().membership._replace(group=True, member=2))
    spare = Job(Pending(), places=((0, 2),))
    _, (_, answer) = decide(spare, ev.RestartRequested(5.0, ev.Requester("1", "root", 9.0)), policy)
    assert answer == do.AnswerOperator("1", False, "this member waits as a spare: restart one that works")


@pytest.mark.parametrize("stopping", [False, True])
def test_a_member_that_was_suspended_until_the_others_had_succeeded_without_it_succeeds_too(stopping: bool) -> None:
    """They are two epochs further.  `stopping`: it has found first that its own epoch is over."""
    policy = Policy(membership=Policy().membership._replace(group=True, member=2))
    run, over = GroupOrder(1, "run"), GroupOrder(1, "stop", "member 2 is lost", "peer")
    end = GroupOrder(3, "end", "all members have succeeded", end=GroupEnd(0, "succeeded", "all members have succeeded"))
    orders = [ev.GroupOrderReceived(5.0, one) for one in (run, *((over,) if stopping else ()), end)]
    job = after(Job(), policy, ev.Started(0.0), orders[0], ev.CommandSpawned(6.0, 7), *orders[1:])
    assert isinstance(job.phase, Stopping)
    job = after(job, policy, ev.CommandExited(7.0, signal=15), ev.TreeEnded(8.0, 1))
    assert job.phase == Done(0)
