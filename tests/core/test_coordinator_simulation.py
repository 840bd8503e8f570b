"""A large group, simulated: what one message costs must not grow into minutes.

What one message costs grows with the group, and so the whole with its square: a group of 1,000 shows the same as one of
4,000 in a sixteenth of the time.
"""

import pytest

from core.many import Many
from ftrun.core.group.membership import Draining, Ended, SendOrder, Steady

SIZES = [1000, pytest.param(4000, marks=pytest.mark.slow)]
sizes = pytest.mark.parametrize("size", SIZES)


@sizes
def test_all_start_hang_lose_one_and_end_together(size: int) -> None:
    many = Many(size)
    effects = many.all("ready")
    assert [e.order.what for e in effects if isinstance(e, SendOrder)] == ["run"]  # one word for all, not one a member
    assert many.all("running", 1) == []
    assert isinstance(many.coordinator.phase, Steady)

    effects = many.fail(size // 3)
    assert [e.order.cause for e in effects if isinstance(e, SendOrder)] == [None]
    effects = many.all("ready", 1, but=(size // 3,)) + many.all("ready", 1, only=(size // 3,))
    assert [(e.order.what, e.order.cause) for e in effects if isinstance(e, SendOrder)] == [
        ("stop", "hang"),
        ("run", "hang"),
    ]
    many.all("running", 2)

    many.gone(77)
    many.all("ready", 2, but=(77,))
    assert isinstance(many.coordinator.phase, Draining)
    many.all("ready", 2, only=(77,), life="new")
    assert many.coordinator.order.epoch == 3
    many.all("running", 3)
    assert many.coordinator.order.what == "run"
    many.all("done", 3)
    assert isinstance(many.coordinator.phase, Ended)
    assert many.coordinator.order.end is not None
    assert many.coordinator.order.end.code == 0


@sizes
def test_one_that_has_forgotten_all_learns_them(size: int) -> None:
    many = Many(size)
    effects = many.all("running", 9)
    assert [e.order.what for e in effects if isinstance(e, SendOrder)] == ["wait", "run"]
    assert many.coordinator.order.epoch == 9


@sizes
def test_all_lost_at_once_is_few_words(size: int) -> None:
    many = Many(size)
    many.all("ready")
    many.all("running", 1)
    effects = [effect for rank in range(1, size) for effect in many.gone(rank)]
    assert len(effects) < 20
