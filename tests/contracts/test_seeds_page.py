"""docs/seeds.md names tests that are there."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PAGE = (TESTS.parent / "docs" / "seeds.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([\w/]+\.py::\w+)`", PAGE))))
def test_named_test_exists(name: str) -> None:
    file, _, function = name.partition("::")
    assert f"\ndef {function}(" in (TESTS / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(scenarios/[\w.]+)`", PAGE))))
def test_named_scenario_exists(name: str) -> None:
    assert (TESTS / name).exists()
