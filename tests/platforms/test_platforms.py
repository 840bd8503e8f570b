"""A platform is one record, of which every field is required, and one entry of a table."""

import inspect
import re

import pytest

from ftrun.platforms import table
from ftrun.platforms.base import Platform, Surroundings


def test_no_field_of_a_record_has_a_default() -> None:
    assert Platform._field_defaults == {}


@pytest.mark.parametrize("one", table.PLATFORMS, ids=lambda one: str(one.name))
def test_a_record_is_complete(one: Platform) -> None:
    assert one.name
    assert one.variables
    assert one.membership(Surroundings({}, "h", "", "auto")) is None, "an empty environment is no platform"
    assert one.task is None or not one.task.startswith("FTRUN_")


@pytest.mark.parametrize("one", table.PLATFORMS, ids=lambda one: str(one.name))
def test_every_variable_that_is_read_is_listed(one: Platform) -> None:
    assert set(re.findall(r'"([A-Z]+_[A-Z_]+)"', inspect.getsource(one.membership))) <= set(one.variables)


def test_variables_are_read_in_this_order() -> None:
    assert table.SCHEDULES == (("MA_SCHEDULE_CNT", 0), ("SLURM_RESTART_COUNT", 1), ("JOBSET_RESTART_ATTEMPT", 1))
    assert table.JOBS == ("SLURM_JOB_ID", "MINDX_TASK_ID")
    assert table.TASKS == ("SLURM_PROCID", "JOB_COMPLETION_INDEX", "VC_TASK_INDEX", "NODE_RANK")
    assert table.NODES == ("NODE_NAME", "SLURMD_NODENAME")
