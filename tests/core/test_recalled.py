"""What an earlier schedule has reached is known at the first start; scenarios show how long that is waited for."""

import pytest

from ftrun.core.machine import events as ev
from ftrun.core.machine.job import decide
from ftrun.core.machine.states import Job
from ftrun.core.machine.values import Ledger
from ftrun.core.rules.fault_history import Schedule
from ftrun.core.rules.policy import Membership, Policy

EARLIER = Schedule("a", 1, "n", 1.0, 70, 60, last_step=70, last_checkpoint="/ckpt/60")
NEW = Ledger(schedule_cnt=2)


@pytest.mark.parametrize(
    ("ledger", "history", "reached"),
    [
        (NEW, (EARLIER,), (70, "/ckpt/60")),
        (NEW._replace(start_cnt=4, last_step=80, last_checkpoint="/ckpt/80"), (EARLIER,), (80, "/ckpt/80")),
        (NEW, (EARLIER._replace(phase="prepare"), EARLIER._replace(number=2)), (None, None)),
    ],
    ids=["new", "one that knows where it was", "another phase, and a later schedule"],
)
def test_the_first_start_is_told_the_last_step_and_checkpoint(
    ledger: Ledger, history: tuple[Schedule, ...], reached: tuple[int | None, str | None]
) -> None:
    job = Job(ledger=ledger)
    for event in (ev.Started(5.0), ev.HistoryLoaded(5.1, (), history)):
        job, _ = decide(job, event, Policy(membership=Membership(recalls=True)))
    assert job.ledger.start_cnt == ledger.start_cnt + 1
    assert (job.ledger.last_step, job.ledger.last_checkpoint) == reached
