"""docs/seeds.md names tests that are there."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PAGE = (TESTS.parent / "docs" / "seeds.md").read_text(encoding="utf-8")
POLICIES = (
    "In-place recovery",
    "Unconditional job-level rescheduling",
    "Isolated job-level rescheduling",
    "Pod-level rescheduling",
    "Restart upon suspension",
)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([\w/]+\.py::\w+)`", PAGE))))
def test_a_test_that_is_named_exists(name: str) -> None:
    file, _, function = name.partition("::")
    assert f"\ndef {function}(" in (TESTS / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(scenarios/[\w.]+)`", PAGE))))
def test_a_scenario_that_is_named_exists(name: str) -> None:
    assert (TESTS / name).exists()


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_has_a_test_by_its_name(policy: str) -> None:
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {policy} |")]
    assert f"::test_{policy.lower().replace(' ', '_').replace('-', '_')}`" in row


def test_every_row_says_who() -> None:
    rows = [line.split("|") for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    assert len(rows) > 50
    assert [row[1] for row in rows if len(row) != 6 or not row[2].strip()] == []
