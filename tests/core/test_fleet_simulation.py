"""A group of 4,000, simulated: what one message costs must not grow into minutes."""

from core.many import Many
from ftrun.core.fleet import Lost, Over, Steady, Told

SIZE = 4000


def test_four_thousand_start_hang_lose_one_and_end_together() -> None:
    many = Many(SIZE)
    effects = many.all("ready")
    assert [e.order.what for e in effects if isinstance(e, Told)] == ["run"]  # one word for all, not one a member
    assert many.all("running", 1) == []
    assert isinstance(many.fleet.phase, Steady)

    effects = many.trouble(1234)
    assert [e.order.cause for e in effects if isinstance(e, Told)] == [None]
    effects = many.all("ready", 1, but=(1234,)) + many.all("ready", 1, only=(1234,))
    assert [(e.order.what, e.order.cause) for e in effects if isinstance(e, Told)] == [
        ("stop", "hang"),
        ("run", "hang"),
    ]
    many.all("running", 2)

    many.gone(77)
    many.all("ready", 2, but=(77,))
    assert isinstance(many.fleet.phase, Lost)
    many.all("ready", 2, only=(77,), life="new")
    assert many.fleet.order.epoch == 3
    many.all("running", 3)
    assert many.fleet.order.what == "run"
    many.all("done", 3)
    assert isinstance(many.fleet.phase, Over)
    assert many.fleet.order.end is not None
    assert many.fleet.order.end.code == 0


def test_one_that_has_forgotten_four_thousand_learns_them() -> None:
    many = Many(SIZE)
    effects = many.all("running", 9)
    assert [e.order.what for e in effects if isinstance(e, Told)] == ["wait", "run"]
    assert many.fleet.order.epoch == 9


def test_all_lost_at_once_is_few_words() -> None:
    many = Many(SIZE)
    many.all("ready")
    many.all("running", 1)
    effects = [effect for rank in range(1, SIZE) for effect in many.gone(rank)]
    assert len(effects) < 20
