"""A large group, simulated: the coordinator sends few orders, and what one message costs does not grow into minutes.

The whole costs as much as the square of the group: the slow form, of 4,000 members, has a time limit.
"""

from typing import Any

import pytest

from core.test_coordinator import Group
from ftrun.core.group.membership import Draining, SendOrder, Steady
from ftrun.core.group.messages import NodeFailure

sizes = pytest.mark.parametrize("size", [200, pytest.param(4000, marks=pytest.mark.slow)])


def orders(group: Group) -> list[Any]:
    """Those that were sent since the last call."""
    found = [(effect.order.what, effect.order.cause) for effect in group.effects if isinstance(effect, SendOrder)]
    group.effects.clear()
    return found


@sizes
def test_all_start_hang_lose_one_and_end_together(size: int) -> None:
    group, hangs = Group(size), size // 3
    group.all("ready")
    assert orders(group) == [("run", "first")], "one order for all, not one a member"
    group.all("running")
    assert (group.effects, group.phase) == ([], Steady)

    group.reports(hangs, "stopping", failure=NodeFailure("hang", "no step for 60s", 0.0, hangs, 7))
    group.ready(*(rank for rank in range(size) if rank != hangs))
    group.ready(hangs)
    assert orders(group) == [("stop", None), ("stop", "hang"), ("run", "hang")]
    group.all("running")

    group.now += 100.0
    group.gone(77)
    group.ready(*(rank for rank in range(size) if rank != 77))
    assert group.phase is Draining
    group.reports(77, "ready", life="new")
    assert group.did == ("run", 3, "peer")
    for rank in range(size):
        group.reports(rank, "running", life="new" if rank == 77 else "")
    for rank in range(size):
        group.reports(rank, "done", life="new" if rank == 77 else "")
    assert group.end == (0, "all members have succeeded")


@sizes
def test_one_that_has_forgotten_all_learns_them(size: int) -> None:
    group = Group(size)
    group.all("running", 9)
    assert ([what for what, _ in orders(group)], group.order.epoch) == (["wait", "run"], 9)


@sizes
def test_all_lost_at_once_is_few_orders(size: int) -> None:
    group = Group(size)
    group.all("ready")
    group.all("running")
    group.effects.clear()
    for rank in range(1, size):
        group.gone(rank)
    assert len(group.effects) < 20
