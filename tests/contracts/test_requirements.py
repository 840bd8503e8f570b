"""tests/requirements.tsv and tests/rank_faults.tsv: the tests, options and variables that they name exist.

requirements.tsv has every rule of five documents, rephrased: ModelArts' "Recovering a Training Job" (2026-04-28),
"Training Job Restart Upon Suspension" (2025-08-18) and "Enabling Unconditional Auto Restart" (2024-10-29), Cerebras'
"Automatic Job Restart", and MindCluster's "Fault Handling Description"; who implements it (`outer`: the outer
scheduler); how ftrun hands over what it cannot do itself; and the tests that show it.  rank_faults.tsv has the faults
of a rank in a job whose ranks recover, the rung that cures each, and its tests."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ftrun.config import option_table

TESTS = Path(__file__).resolve().parents[1]
SOURCES = [*(TESTS.parent / "supervisor").rglob("*.py"), *(TESTS.parent / "hooks").rglob("*.py")]
FAULTS = (TESTS / "rank_faults.tsv").read_text(encoding="utf-8")
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
SCENARIO = re.compile(r"`(scenarios/[\w.]+)`")


class Row(NamedTuple):
    """`rule`: of the sources.  `who` implements it.  `handover`: what reaches others."""

    source: str
    section: str
    rule: str
    who: str
    handover: str
    tests: str


def rows() -> Iterator[Row]:
    _, *lines = (TESTS / "requirements.tsv").read_text(encoding="utf-8").splitlines()
    for line in lines:
        yield Row(*line.split("\t"))


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
