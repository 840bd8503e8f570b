"""A template that is killed, which the kernel does first where memory is short, is no error of ftrun."""

import os
import select
from collections.abc import Iterator
from unittest import mock

import pytest

from ftrun.host.standby_process import StandbyProcess
from ftrun.pid1.standby_pool import Pool, Standby, Template


@pytest.fixture
def processes() -> Iterator[list[StandbyProcess]]:
    """A template and its standby, as PID 1 has them."""
    found = [StandbyProcess({}), StandbyProcess({})]
    yield found
    for one in found:
        one.close()


def test_a_template_that_is_killed_after_its_answer(processes: list[StandbyProcess]) -> None:
    template, standby = processes
    poll = select.poll()
    poll.register(template.answers)
    pool = Pool(mock.Mock(), mock.Mock(), poll, mock.Mock())
    pool._template = Template(template, {0: Standby(standby, ["python"], 0.0)}, 0.0)
    os.write(template.given[1], b"forked\0more\0%d\n" % os.getpid())
    template.close_given()  # as it dies
    pool.read(1.0)
    assert [*pool.waiting] == [0]
    assert standby.pid == os.getpid()
    standby.pid = 0
