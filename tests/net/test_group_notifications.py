"""What happens to a group, and who notifies of it: one notification an incident, from one member."""

import os
import re
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from net.test_group_view import headed
from support.group_runs import Group
from support.hosts import Hosts
from support.runs import descendants, objects, state_of, wait_for

QUICK = ("--steps", "100000", "--step-time", "0.02")


def notified(here: Hosts, *options: str) -> tuple[Group, Path]:
    """A group at work of which each member notifies, and the file with all notifications."""
    seen = here.folder / "seen"
    group = Group(here, *QUICK, wait="5m", options=(*options, "--on-event", f"cat >> {seen}; echo >> {seen}"))
    group.begin()
    group.until_step(20)
    return group, seen


def reported(file: Path) -> list[dict[str, Any]]:
    return objects(file)


def reports(file: Path, number: int) -> bool:
    return len(reported(file)) == number


@pytest.mark.slow
def test_each_incident_of_a_group_is_one_notification(hosts: Callable[[int], Hosts]) -> None:
    here = hosts(3)
    group, seen = notified(here, "--peer-timeout", "5s")

    for count, rank in enumerate((2, 0), 1):
        group.rank(rank).kill()
        wait_for(partial(reports, seen, count), "the notification of the loss")
        for other in {0, 1, 2} - {rank}:
            words = rf"^member {rank} .host-{rank}. is (lost|missing).* more.* with 195"
            wait_for(partial(headed, group.rank(other), words), "who is missing, until when")
            assert "loss in attempt" in group.rank(other).ftctl("status").stdout
        group.start(rank)
        group.until_started(count + 1)
    os.kill(group.rank(1).command, signal.SIGKILL)
    group.until_started(4)
    group.must_succeed(epochs=[1, 2, 3, 4])
    found = reported(seen)
    hosts_of = ["lost host-0", "lost host-1", "restart host-0", "ended host-0"]
    assert [f"{one['event']} {one['node']}" for one in found] == hosts_of, [one["text"] for one in found]
    abouts = [(one["incident"]["cause"], one["incident"]["node"]) for one in found[:3]]
    assert abouts == [("loss", "host-2"), ("loss", "host-0"), ("failure", "host-1")]
    waits = r"it is waited for (5m|4m \d+s), then the job ends with 195; look after host-"  # less on a busy machine
    assert all(re.search(waits, one["text"]) for one in found[:2]), [one["text"] for one in found[:2]]


@pytest.mark.slow
def test_a_group_that_is_suspended_as_a_whole_is_one_notification(hosts: Callable[[int], Hosts]) -> None:
    here = hosts(3)
    group, seen = notified(here, "--hang-timeout", "60s")
    pids = sorted({pid for one in here.last for pid in (one.pid, *descendants(one.pid))})
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: all(state_of(pid) in "TZ" for pid in pids), "the suspension")
    time.sleep(25)  # that much of time is what the test is about: NOTED after the next time that they would have woken
    for pid in reversed(pids):
        os.kill(pid, signal.SIGCONT)
    step = group.book.step
    group.until_step(step + 100)
    wait_for(lambda: all(one.named("frozen") for one in here.last), "the records of all members")
    wait_for(lambda: bool(reported(seen)), "the notification")
    group.must_succeed(epochs=[1])
    assert [(one["event"], one["node"]) for one in reported(seen)] == [("frozen", "host-0"), ("ended", "host-0")]
