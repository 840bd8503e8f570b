"""A group of 4,000, simulated: what one message costs must not grow into minutes."""

from core.many import Many
from ftrun.core.group.membership import Draining, Ended, SendOrder, Steady

SIZE = 4000


def test_four_thousand_start_hang_lose_one_and_end_together() -> None:
    many = Many(SIZE)
    effects = many.all("ready")
    assert [e.order.what for e in effects if isinstance(e, SendOrder)] == ["run"]  # one word for all, not one a member
    assert many.all("running", 1) == []
    assert isinstance(many.coordinator.phase, Steady)

    effects = many.fail(1234)
    assert [e.order.cause for e in effects if isinstance(e, SendOrder)] == [None]
    effects = many.all("ready", 1, but=(1234,)) + many.all("ready", 1, only=(1234,))
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


def test_one_that_has_forgotten_four_thousand_learns_them() -> None:
    many = Many(SIZE)
    effects = many.all("running", 9)
    assert [e.order.what for e in effects if isinstance(e, SendOrder)] == ["wait", "run"]
    assert many.coordinator.order.epoch == 9


def test_all_lost_at_once_is_few_words() -> None:
    many = Many(SIZE)
    many.all("ready")
    many.all("running", 1)
    effects = [effect for rank in range(1, SIZE) for effect in many.gone(rank)]
    assert len(effects) < 20
