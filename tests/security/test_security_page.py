"""docs/security.md names tests that are there."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PAGE = (TESTS.parent / "docs" / "security.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`([\w/]+\.py::\w+)`", PAGE)


@pytest.mark.parametrize("name", sorted(set(NAMED)))
def test_a_named_test_exists(name: str) -> None:
    file, _, function = name.partition("::")
    assert f"\ndef {function}(" in (TESTS / file).read_text(encoding="utf-8")


def test_all_attacks_are_on_the_page() -> None:
    """But those on details."""
    files = [path for path in (TESTS / "security").glob("test_*.py") if path.name != "test_security_page.py"]
    assert len(files) == 6
    assert {f"security/{path.name}" for path in files} <= {name.partition("::")[0] for name in NAMED}


def test_every_claim_has_a_test() -> None:
    holds = PAGE.split("## What holds")[1].split("## What does not hold")[0]
    for paragraph in re.split(r"\n\n|\n- ", holds.strip()):
        assert "::test_" in paragraph or paragraph.endswith(":"), paragraph
