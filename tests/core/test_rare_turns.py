"""Rare turns that a first version of the core got wrong."""

from typing import Any

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.job import decide
from ftrun.core.machine.states import Done, Finish, Job, Running, Starting, Stopping, Suspect
from ftrun.core.machine.stopping import finish, finish_with
from ftrun.core.machine.values import Fault, Ledger, Rank
from ftrun.core.rules import exit_codes
from ftrun.core.rules.idle import TreeSample
from ftrun.core.rules.liveness import Limits
from ftrun.core.rules.policy import Policy

MINUTE = Policy(limits=Limits(hang=60.0, start=None, section=3600.0))
MOVED = (Rank(0, pid=7, moved_at=10.0, step=5),)


def run(policy: Policy, *events: ev.Event, ledger: Ledger | None = None) -> tuple[Job, list[do.Effect]]:
    """The job after these, and all that was to be done."""
    job, done = Job(ledger=ledger or Ledger()), list[do.Effect]()
    for event in (ev.Started(0.0), ev.CommandSpawned(1.0, 7), *events):
        job, effects = decide(job, event, policy)
        done += effects
    return job, done


def fields(effects: list[do.Effect], event: str) -> list[dict[str, Any]]:
    return [dict(e.fields) for e in effects if isinstance(e, do.Persist) and e.event == event]


def test_a_checkpoint_that_is_found_after_a_later_one_is_not_resumed_from() -> None:
    """The watcher of checkpoints was started again, and found them by listing."""
    for files in (("/c/step-45", "/c/step-36"), ("/c/last.pt", "/c/before.pt")):
        saved = [ev.CheckpointSaved(20.0 + n, file, 20.0 + n, False, 19.0 - n, n > 0) for n, file in enumerate(files)]
        job, _ = run(MINUTE, *saved)
        assert job.ledger.last_checkpoint == files[0]
    job, _ = run(MINUTE, ev.CheckpointSaved(20.0, "/c/step-45", 20.0), ev.CheckpointSaved(21.0, "/c/step-36", 21.0))
    assert job.ledger.last_checkpoint == "/c/step-36", "a job that starts from scratch each time"


def test_a_deadline_of_an_earlier_phase_does_not_kill() -> None:
    """The loop appends Ticked behind what came in the same wake-up: a SIGTERM, then the tick of the suspicion."""
    job, effects = run(
        MINUTE,
        ev.BeatsRead(10.0, MOVED),
        ev.BeatsRead(70.0, MOVED),
        ev.SignalReceived(100.0, 15, True),
        ev.DeadlineReached(100.0),
    )
    assert not any(isinstance(e, do.Kill) for e in effects)
    assert isinstance(job.phase, Stopping)
    assert job.phase.stage == "asked"


def test_a_deadline_of_an_earlier_phase_leaves_the_grace() -> None:
    """The command ends in the wake-up in which the stop grace does: what it left has a grace of its own."""
    policy = MINUTE._replace(limits=MINUTE.limits._replace(stop_grace=20.0))
    stop = ev.BeatsRead(10.0, MOVED), ev.SignalReceived(20.0, 15, True)
    _, effects = run(policy, *stop, ev.CommandExited(40.0, 0), ev.DeadlineReached(40.0))
    assert not any(isinstance(e, do.Kill) for e in effects)


def test_an_exit_before_the_exec_is_not_stable() -> None:
    """The attempt has no spawn time yet: on a machine up for an hour it looks as old as the machine."""
    policy = Policy(restart_on=frozenset({"failure"}))
    job = Job(ledger=Ledger(failure=2))
    for event in (ev.Started(9000.0), ev.CommandExited(9001.0, signal=9)):
        job, _ = decide(job, event, policy)
    assert job.ledger.failure == 3


def test_silence_is_not_stable() -> None:
    """One beat without a step, then nothing for the default limit of an hour: that hour must not pay for itself."""
    job = Job(ledger=Ledger(hang=3))
    beat = (Rank(0, pid=7, claimed_at=1.0, moved_at=2.0),)
    for event in (ev.Started(0.0), ev.CommandSpawned(1.0, 7), ev.BeatsRead(2.0, beat), ev.BeatsRead(3602.0, beat)):
        job, _ = decide(job, event, Policy())
    job, _ = decide(job, ev.EvidenceCollected(3603.0, beat), Policy())
    assert isinstance(job.want, Finish)


def test_a_checkpoint_while_stopping_makes_this_restart_the_first() -> None:
    """The count was raised before the progress: the restart under way must still be counted, as the first in a row."""
    saved = (MOVED[0]._replace(checkpoint_step=5, checkpoint_path="/c"),)
    job, effects = run(
        MINUTE,
        ev.BeatsRead(10.0, MOVED),
        ev.BeatsRead(70.0, MOVED),
        ev.EvidenceCollected(70.0, MOVED),
        ev.BeatsRead(71.0, saved),
        ev.TreeEnded(72.0),
        ledger=Ledger(hang=2, best_checkpoint=4),
    )
    assert fields(effects, "restart") == [{"reason": "hang", "start_cnt": 2, "consecutive": 1}]
    assert job.ledger.hang == 1


def test_the_hang_names_the_rank_that_hangs() -> None:
    """Rank 0 raised the suspicion and moved on; rank 1 is suspected now, and what proves it is its own evidence."""
    both = (Rank(0, pid=7, moved_at=10.0, step=5), Rank(1, pid=8, moved_at=11.0, step=5))
    later = (both[0]._replace(moved_at=70.5), both[1])
    asked = ev.BeatsRead(10.0, both), ev.BeatsRead(70.0, both), ev.EvidenceCollected(71.0, later, (("state", "S"),))
    _, effects = run(MINUTE, *asked, ev.EvidenceCollected(71.0, later, (("state", "D"),)))
    assert [suspect["rank"] for suspect in fields(effects, "suspect")] == [0, 1]
    assert [(hang["rank"], hang["state"]) for hang in fields(effects, "hang")] == [(1, "D")]


def test_the_suspect_is_named_though_another_rank_is_later_still() -> None:
    """Rank 1 comes to light while rank 0 is looked at, and it has been silent for longer."""
    later = MOVED[0], Rank(1, pid=8, moved_at=5.0)
    _, effects = run(MINUTE, ev.BeatsRead(10.0, MOVED), ev.BeatsRead(70.0, MOVED), ev.EvidenceCollected(71.0, later))
    assert [hang["rank"] for hang in fields(effects, "hang")] == [0]


def test_a_suspect_that_moves_before_its_evidence_came_is_not_named() -> None:
    """A look shows it; when no evidence comes in time the one that is named is the one that is overdue."""
    both = (Rank(0, pid=7, moved_at=10.0, step=5), Rank(1, pid=8, moved_at=11.0, step=5))
    later = (both[0]._replace(moved_at=71.5), both[1])
    _, effects = run(
        MINUTE, ev.BeatsRead(10.0, both), ev.BeatsRead(70.0, both), ev.BeatsRead(72.0, later), ev.DeadlineReached(102.0)
    )
    assert [hang["rank"] for hang in fields(effects, "hang")] == [1]


def test_processes_that_a_launcher_started_again_begin_now() -> None:
    """A given start timeout is armed at the spawn; hours later it must not condemn who has not moved yet."""
    policy = MINUTE._replace(limits=MINUTE.limits._replace(start=600.0))
    begins = (Rank(0, pid=9, claimed_at=9000.0),)
    job, _ = run(policy, ev.BeatsRead(10.0, MOVED), ev.BeatsRead(9000.0, begins), ev.BeatsRead(9599.0, begins))
    assert isinstance(job.phase, Starting)
    job, effects = decide(job, ev.BeatsRead(9600.0, begins), policy)
    assert [found["rule"] for found in fields(list(effects), "suspect")] == ["start"]


def test_no_silence_is_a_hang_where_nobody_gave_a_time() -> None:
    """A person is told once of it, when it is a hundred times as long as usual, at least ten minutes."""
    limits = Limits(hang=None, start=None, section=None, auto=True, idle=1800.0)
    for usual, told in ((1.0, 600.0), (20.0, 2000.0)):
        silent = (Rank(0, pid=7, moved_at=10.0, intervals=200, usual=usual, longest=usual),)
        job, effects = run(Policy(limits=limits), ev.BeatsRead(10.0, silent))
        while (at := job.phase.deadline) is not None and at < 9_000.0:
            job, later = decide(job, ev.BeatsRead(at, silent), Policy(limits=limits))
            effects += later
        assert fields(effects, "suspect") == []
        (stalled,) = fields(effects, "stalled")
        assert (stalled["rank"], stalled["age"]) == (0, told)
        assert isinstance(job.phase, Running)


def test_the_idle_rule_ends_nothing_by_itself_unless_its_time_was_given() -> None:
    """Whether somebody waits at a terminal only the evidence can say."""
    limits = Limits(hang=None, start=None, section=None, auto=True, idle=4.0)
    for given in (False, True):
        policy = Policy(limits=limits._replace(idle_given=given))
        quiet = [ev.TreeSampled(float(at), TreeSample(float(at), 1.0, 0.0, 0.0)) for at in range(11, 17)]
        job, _ = run(policy, ev.BeatsRead(10.0, MOVED), *quiet)
        assert isinstance(job.phase, Suspect), "a job that has given heartbeats, without an accelerator"
        assert job.phase.deadline is not None
        job, late = decide(job, ev.DeadlineReached(job.phase.deadline), policy)
        assert bool(fields(list(late), "hang")) == given
        assert bool(fields(list(late), "cleared")) != given


def test_a_checkpoint_from_before_two_hangs_leaves_them_two() -> None:
    """The file was written by the first attempt, and found while the second is ended for its hang."""
    job, effects = run(
        MINUTE._replace(files=True),
        ev.BeatsRead(10.0, MOVED),
        ev.BeatsRead(70.0, MOVED),
        ev.EvidenceCollected(70.0, MOVED),
        ev.TreeEnded(71.0),
        ev.CommandSpawned(72.0, 8),
        ev.BeatsRead(80.0, (MOVED[0]._replace(moved_at=80.0),)),
        ev.BeatsRead(140.0, (MOVED[0]._replace(moved_at=80.0),)),
        ev.EvidenceCollected(140.0, (MOVED[0]._replace(moved_at=80.0),)),
        ev.CheckpointSaved(141.0, "/c/1", 60.0),
        ev.TreeEnded(142.0),
    )
    assert [restart["consecutive"] for restart in fields(effects, "restart")] == [1, 2]
    assert job.ledger.hang == 2


def test_a_cleared_suspicion_restarts_the_silence() -> None:
    """Evidence that takes longer than the limit clears nothing: it is a suspect again in the same breath."""
    policy = MINUTE._replace(limits=MINUTE.limits._replace(hang=2.0))
    job, _ = run(
        policy,
        ev.BeatsRead(10.0, MOVED),
        ev.BeatsRead(12.0, MOVED),
        ev.EvidenceCollected(15.0, MOVED, (), "stacks move"),
    )
    assert isinstance(job.phase, Running)


def test_a_critical_fault_while_stopping_is_not_lost() -> None:
    """The GPU falls off the bus: the hang comes first, the Xid while the tree is being ended."""
    job, effects = run(
        MINUTE,
        ev.BeatsRead(10.0, MOVED),
        ev.BeatsRead(70.0, MOVED),
        ev.EvidenceCollected(70.0, MOVED),
        ev.FaultReported(71.0, Fault("gpu0", "Xid79", "critical")),
        ev.TreeEnded(72.0),
    )
    assert fields(effects, "fault")
    assert job.phase == Done(197)


def test_a_users_fault_that_does_not_heal_does_not_isolate_the_node() -> None:
    job, _ = run(
        MINUTE,
        ev.BeatsRead(10.0, MOVED),
        ev.FaultReported(11.0, Fault("npu0", "80C98002", "user")),
        ev.CommandExited(12.0, 1),
        ev.TreeEnded(13.0),
        ev.HealingFinished(14.0, False),
    )
    assert job.phase != Done(197)


def test_with_no_restarts_wanted_a_failure_after_a_users_fault_keeps_its_own_code() -> None:
    job, _ = run(
        MINUTE._replace(restart_on=frozenset()),
        ev.BeatsRead(10.0, MOVED),
        ev.FaultReported(11.0, Fault("npu0", "80C98002", "user")),
        ev.CommandExited(12.0, 1),
        ev.TreeEnded(13.0),
    )
    assert job.phase == Done(1)


def test_a_record_comes_before_its_log_line() -> None:
    _, effects = run(MINUTE, ev.BeatsRead(10.0, MOVED), ev.RestartRequested(11.0))
    order = [type(e) for e in effects[effects.index(do.LogLine("restart requested by the operator")) - 1 :]]
    assert order[0] is do.Persist
    assert fields(effects, "stopping")
    assert effects.index(do.LogLine("restart requested by the operator")) > effects.index(
        do.Persist("stopping", (("by", "SIGTERM"), ("grace", 10.0)))
    )


def test_a_late_answer_of_an_earlier_inspection_is_ignored() -> None:
    job, _ = run(
        MINUTE,
        ev.BeatsRead(10.0, MOVED),
        ev.BeatsRead(70.0, MOVED),
        ev.EvidenceCollected(70.0, MOVED),
        ev.ProcessesSurvived(71.0, ("x",)),
    )
    assert not isinstance(job.phase, Done)


def test_a_schedule_that_ended_with_196_has_no_clear_fault() -> None:
    """Else a scheduler without a limit of its own would start the job again for ever."""
    job = Job(ledger=Ledger(start_cnt=1, faulted=True))
    ended, _ = finish(job, finish_with(exit_codes.USER_FAULT_LIMIT, "different faults"))
    assert not ended.ledger.faulted
    isolated, _ = finish(job, finish_with(exit_codes.NODE_FAULT, "a critical fault"))
    assert isolated.ledger.faulted
