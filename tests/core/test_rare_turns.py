"""Rare turns that a first version of the core got wrong, of which a transcript shows nothing."""

from ftrun.core.machine import events as ev
from ftrun.core.machine.job import decide
from ftrun.core.machine.states import Job
from ftrun.core.machine.stopping import finish, finish_with
from ftrun.core.machine.values import Ledger
from ftrun.core.rules import exit_codes
from ftrun.core.rules.policy import Policy


def last_checkpoint(*saved: ev.CheckpointSaved) -> str | None:
    job = Job()
    events: list[ev.Event] = [ev.Started(0.0), ev.CommandSpawned(1.0, 7), *saved]
    for event in events:
        job, _ = decide(job, event, Policy())
    return job.ledger.last_checkpoint


def test_a_checkpoint_that_is_found_after_a_later_one_is_not_resumed_from() -> None:
    """The watcher of checkpoints was started again, and found them by listing."""
    for files in (("/c/step-45", "/c/step-36"), ("/c/last.pt", "/c/before.pt")):
        saved = [ev.CheckpointSaved(20.0 + n, file, 20.0 + n, False, 19.0 - n, n > 0) for n, file in enumerate(files)]
        assert last_checkpoint(*saved) == files[0]
    again = [ev.CheckpointSaved(20.0 + n, file, 20.0 + n) for n, file in enumerate(("/c/step-45", "/c/step-36"))]
    assert last_checkpoint(*again) == "/c/step-36", "a job that starts from scratch each time"


def test_a_schedule_that_ended_with_196_has_no_clear_fault() -> None:
    """Else a scheduler without a limit of its own would start the job again for ever."""
    job = Job(ledger=Ledger(start_cnt=1, faulted=True))
    for verdict, faulted in ((exit_codes.USER_FAULT_LIMIT, False), (exit_codes.NODE_FAULT, True)):
        assert finish(job, finish_with(verdict, "a fault"))[0].ledger.faulted is faulted
