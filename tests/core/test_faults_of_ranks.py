"""Which rank has a fault that the platform reports, where the ranks at work are not numbered as in the complete job."""

import pytest

from ftrun.core.machine.recovering import local_rank_of
from ftrun.core.machine.states import Job
from ftrun.core.machine.values import Attempt, Fault, Ledger, LocalRank, UsableDevice

# Member 2 of 3, with two ranks each: the platform calls them 4 and 5.  Without member 1 they work as 2 and 3.
FEWER = Attempt(1, processes=(LocalRank(2, 0, 70), LocalRank(3, 1, 71)))
ALONE = Attempt(1, processes=(LocalRank(2, 0, 70),))
CHIPS = (UsableDevice("npu0"), UsableDevice("npu1"))


def reported(rank: int, local: int | None) -> Fault:
    return Fault("npu0", "reset.json", "minor", retry="process", rank=rank, local=local)


@pytest.mark.parametrize("local", [0, 1])
def test_a_fault_is_that_of_the_same_rank_of_the_container_with_fewer_members(local: int) -> None:
    assert local_rank_of(Job(), FEWER, reported(4 + local, local)) == local


def test_a_fault_is_that_of_the_rank_on_the_same_device_where_another_device_was_taken_out() -> None:
    job = Job(devices=CHIPS, ledger=Ledger(removed=("npu0",)))
    assert local_rank_of(job, ALONE, reported(5, 1)) == 0
    assert local_rank_of(job, ALONE, reported(4, 0)) is None, "nothing runs there"


def test_without_the_number_in_the_container_that_in_the_job_counts() -> None:
    assert local_rank_of(Job(), FEWER, reported(3, None)) == 1
    assert local_rank_of(Job(), FEWER, reported(5, None)) is None
