"""A long text on the screen of `ftctl top`, and the rank that it is about."""

from __future__ import annotations

import pytest

from ftctl.top.keys import Chosen, LongText
from support.snapshots import ranks

TEXT = LongText("report", tuple(f"line {number}" for number in range(100)))


@pytest.mark.parametrize(
    ("keys", "at"), [("jj", 2), ("jjk", 1), (" ", 15), ("kk", 0), ("  b", 15), (" " * 9, 99), (" g", 0)]
)
def test_keys_move_the_text(keys: str, at: int) -> None:
    text: LongText | None = TEXT
    for key in keys:
        text = text and text.pressed(key)
    assert text is not None
    assert text.at == at


def test_any_other_key_closes_it() -> None:
    assert all(TEXT.pressed(key) is None for key in "qe\x1bx")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (20, 5), (1, 1)])
def test_it_fits_the_screen(width: int, height: int) -> None:
    wide = TEXT._replace(lines=("x" * 200, "a\x1b[2Jb", *TEXT.lines))
    shown = wide.render(width, height, unicode=False).plain.split("\n")
    assert len(shown) <= max(height, 3)
    assert max(map(len, shown)) <= width
    assert "\x1b" not in "".join(shown)


def test_a_rank_is_chosen_by_its_place_in_the_order() -> None:
    found = ranks(8)
    first = Chosen().rank(found)
    assert first is not None
    assert first.rank == 3  # nearest to its limit
    by_number = Chosen(order=1)
    assert [by_number._replace(skip=skip).rank(found).rank for skip in (0, 2, 99)] == [0, 2, 7]  # type: ignore[union-attr]
    assert Chosen().rank(()) is None
