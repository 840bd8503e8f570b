"""tests/requirements.md and tests/rank_faults.md: the tests, options and variables that they name exist."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ftrun.config import option_table

TESTS = Path(__file__).resolve().parents[1]
SOURCES = [*(TESTS.parent / "supervisor").rglob("*.py"), *(TESTS.parent / "hooks").rglob("*.py")]
PAGE = (TESTS / "requirements.md").read_text(encoding="utf-8")
FAULTS = (TESTS / "rank_faults.md").read_text(encoding="utf-8")
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
SCENARIO = re.compile(r"`(scenarios/[\w.]+)`")


class Row(NamedTuple):
    """`rule`: of the sources.  `who` implements it.  `handover`: what reaches others."""

    rule: str
    who: str
    handover: str
    tests: str


def rows() -> Iterator[Row]:
    for line in PAGE.splitlines():
        if line.startswith("| ") and not line.startswith("| ---") and not line.endswith("| tests |"):
            found = [cell.strip(" |") for cell in line.removeprefix("|").removesuffix("|").split(" |")]
            assert len(found) == 4, line
            yield Row(*found)


ROWS = list(rows())
by_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rule[:60])


@by_row
def test_named_tests_exist(row: Row) -> None:
    for file, name in TEST.findall(row.tests):
        assert f"\ndef {name}(" in (TESTS / file).read_text(encoding="utf-8"), f"{file}::{name}"
    for scenario in SCENARIO.findall(row.tests):
        assert (TESTS / scenario).is_file(), scenario
    assert not SCENARIO.sub("", TEST.sub("", row.tests)).strip(), "a test that is named in another form is not found"


@pytest.mark.parametrize(("file", "name"), sorted(set(TEST.findall(FAULTS))))
def test_tests_of_the_faults_of_ranks_exist(file: str, name: str) -> None:
    assert f"\ndef {name}(" in (TESTS / file).read_text(encoding="utf-8")


@by_row
def test_options_and_variables_exist(row: Row) -> None:
    for text in row:
        for option in re.findall(r"`--([a-z-]+)", text):
            assert option in option_table.BY_NAME, f"--{option}"
        for variable in re.findall(r"`((?:FTRUN|MA|HCCL)_[A-Z_]+)`", text):
            assert any(variable in file.read_text(encoding="utf-8") for file in SOURCES), variable
