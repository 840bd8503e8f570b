"""Merges the history of this job from the state dir into the ledger; it arrives shortly after the first start."""

from collections.abc import Sequence

from ftrun.core.machine import events as ev
from ftrun.core.machine.states import Job
from ftrun.core.rules.fault_history import Schedule, noted


def remember(job: Job, event: ev.HistoryLoaded, phase: str, name: str) -> Job:
    """The job with this history.  Progress that was made before it arrived counts only if it lies beyond all earlier
    progress.

    `name`: the platform's name of this job, empty if unknown.  Schedules and faults of another job are left out:
    ModelArts ("In-Place Recovery", degradation policies) counts faults within a single training.
    """
    ledger = job.ledger
    schedules = [s for s in event.schedules if not name or s.job == name]
    past = before([s for s in schedules if s.phase == phase], ledger.schedule_cnt)
    jobs = {ledger.job, *(s.job for s in _earlier(schedules, ledger.schedule_cnt))}
    faults = [one for one in event.occurrences if one.job in jobs]
    step = max((s.best_step for s in past if s.best_step is not None), default=None)
    checkpoint = max((s.best_checkpoint for s in past if s.best_checkpoint is not None), default=None)
    progressed = ledger.best_step is not None or ledger.best_checkpoint is not None
    further = _above(ledger.best_step, step) or _above(ledger.best_checkpoint, checkpoint)
    if progressed and not further:
        ledger = ledger._replace(reached=False)
    ledger = ledger._replace(
        best_step=step if _above(step, ledger.best_step) else ledger.best_step,
        best_checkpoint=checkpoint if _above(checkpoint, ledger.best_checkpoint) else ledger.best_checkpoint,
        occurrences=noted(faults, ledger.occurrences),
    )
    return job._replace(ledger=ledger, past=past)


def before(schedules: Sequence[Schedule], number: int) -> tuple[Schedule, ...]:
    """The schedules of this job before schedule `number`, joined by number, since the tasks of a job and restarted
    containers share it.  Where the numbers fall, another job has used the folder before."""
    grouped: list[Schedule] = []
    for schedule in _earlier(schedules, number):
        if grouped and schedule.number == grouped[-1].number:
            grouped[-1] = _joined(grouped[-1], schedule)
        else:
            grouped.append(schedule)
    return tuple(reversed(grouped))


def _earlier(schedules: Sequence[Schedule], number: int) -> list[Schedule]:
    """The schedules of the same job before schedule `number`, including those of other tasks, the latest first."""
    found: list[Schedule] = []
    for schedule in reversed(schedules):
        if schedule.number >= number and not found:
            continue  # part of the current schedule
        if found and schedule.number > found[-1].number:
            break
        found.append(schedule)
    return found


def _joined(one: Schedule, other: Schedule) -> Schedule:
    return one._replace(
        best_step=other.best_step if _above(other.best_step, one.best_step) else one.best_step,
        best_checkpoint=other.best_checkpoint
        if _above(other.best_checkpoint, one.best_checkpoint)
        else one.best_checkpoint,
        progressed=one.progressed or other.progressed,
        faulted=one.faulted or other.faulted,
        failed=one.failed or other.failed,
    )


def _above(value: int | None, other: int | None) -> bool:
    return value is not None and (other is None or value > other)
