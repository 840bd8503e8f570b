"""What is excluded as an influence by windows, of which some may have missed what was used."""

from __future__ import annotations

import pytest

from ftrun.helpers.evidence.exclusion import Windows

FLAG, LIBRARY = {"1000": "uses memory that others may change"}, {"2000": "reads the mapped file /x"}


@pytest.mark.parametrize(
    ("seen", "left"),
    [
        ([(10, {})] * 2, None),
        ([(10, {})] * 3, ""),
        ([(10, FLAG)] * 9, FLAG["1000"]),
        ([(10, FLAG)] + [(10, {})] * 3, ""),
        ([(10, FLAG)] * 3 + [(10, {})] * 3, ""),
        ([(10, FLAG)] * 4 + [(10, {})] * 3, FLAG["1000"]),
        ([(10, LIBRARY), (10, FLAG), (10, {}), (10, {})], ""),
        ([(10, FLAG)] * 9 + [(7, {})] * 3, FLAG["1000"]),
        ([(10, FLAG)] * 5 + [(7, {})] * 3, None),
        ([(10, {})] * 5 + [(11, {})] * 2, ""),
        ([(4, {}), (7, {}), (6, {}), (10, FLAG), (8, {})], None),
        ([(0, {})] * 9, None),
    ],
    ids=[
        "too few windows",
        "nothing looks touched",
        "always touched",
        "touched by another process, once",
        "untouched in half of them",
        "untouched in fewer",
        "two that are touched by others",
        "untouched only where the bits were cleared",
        "the bits are cleared often",
        "more touched than usual, twice",
        "the bits are cleared in most windows",
        "always cleared",
    ],
)
def test_what_is_left(seen: list[tuple[int, dict[str, str]]], left: str | None) -> None:
    windows = Windows()
    for own, touched in seen:
        windows.add(own, touched)
    assert windows.left() == left


def test_windows_may_differ_by_the_slack() -> None:
    seen: list[tuple[int, dict[str, str]]] = [(10, {}), (13, {}), (8, {}), (12, {}), (9, {})]
    strict, loose = Windows(), Windows(0.2)
    for own, touched in seen:
        strict.add(own, touched)
        loose.add(own, touched)
    assert strict.left() is None
    assert loose.left() == ""
