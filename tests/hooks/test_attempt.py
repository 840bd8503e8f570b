"""What a program can read about its own start."""

import pytest

import ftrun_hooks as ft

NAMES = (
    *("MA_PROC_START_CNT", "MA_SCHEDULE_CNT", "FTRUN_RESTART_REASON"),
    *("FTRUN_LAST_STEP", "FTRUN_LAST_CHECKPOINT", "FTRUN_LAST_SECTION"),
)
FIRST = ft.Attempt(1, 1, "first", None, None, None, False)


def given_environment(patch: pytest.MonkeyPatch, *values: str | None) -> None:
    for name, value in zip(NAMES, values, strict=True):
        patch.delenv(name, raising=False) if value is None else patch.setenv(name, value)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([None] * 6, FIRST),
        (["3", "2", "hang", "120", "/data/c-120", "evaluate"], (3, 2, "hang", 120, "/data/c-120", "evaluate", True)),
        (["1", "2", None, "0", None, None], (1, 2, "first", 0, None, None, True)),
    ],
    ids=["first", "restart", "second pod"],
)
def test_an_attempt_is_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, values: list[str | None], expected: tuple[object, ...]
) -> None:
    given_environment(monkeypatch, *values)
    assert ft.attempt() == expected


@pytest.mark.parametrize("garbage", ["", "x", "-3", "1.5", "0", "9" * 5000, "²", " 2"])
def test_an_invalid_value_counts_as_missing(monkeypatch: pytest.MonkeyPatch, garbage: str) -> None:
    given_environment(monkeypatch, garbage, garbage, "", "x" + garbage, "", "")
    assert ft.attempt() == FIRST
