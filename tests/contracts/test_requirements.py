"""tests/requirements.md: each requirement that ftrun meets names tests that run, which look at what it promises."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from ftrun.config import option_table
from ftrun.core.rules import exit_codes

TESTS = Path(__file__).resolve().parents[1]
SOURCES = [*(TESTS.parent / "supervisor").rglob("*.py"), *(TESTS.parent / "hooks").rglob("*.py")]
PAGE = (TESTS / "requirements.md").read_text(encoding="utf-8")
CODES = {verdict.code: verdict.name for verdict in exit_codes.TABLE}
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


@cache
def functions(file: str) -> dict[str, tuple[str, bool]]:
    """The source of each test of a file with its decorators, and whether CI's gate passes over all of it."""
    text = (TESTS / file).read_text(encoding="utf-8")
    lines, found = text.splitlines(), {}
    whole_file = re.search(r"^pytestmark = .*\bslow\b", text, re.M) is not None
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            marks = [ast.unparse(one) for one in node.decorator_list]
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            left_out = whole_file or any(mark in ("pytest.mark.slow", "pytest.mark.skip") for mark in marks)
            left_out = left_out or any(mark.startswith("pytest.mark.skip(") for mark in marks)
            found[node.name] = ("\n".join(lines[first - 1 : node.end_lineno]), left_out)
    return found


def test_the_page_has_its_tables() -> None:
    assert len(ROWS) > 50


@by_row
def test_named_tests_exist(row: Row) -> None:
    for file, name in TEST.findall(row.tests):
        assert name in functions(file), f"{file}::{name}"
    for scenario in SCENARIO.findall(row.tests):
        assert (TESTS / scenario).is_file(), scenario
    assert not SCENARIO.sub("", TEST.sub("", row.tests)).strip(), "a test that is named in another form is not found"


@by_row
def test_what_ftrun_does_has_a_test_that_the_gate_runs(row: Row) -> None:
    if not row.who.startswith("ftrun"):
        return
    gate = [not functions(file)[name][1] for file, name in TEST.findall(row.tests)]
    assert any(gate) or SCENARIO.search(row.tests), "no test, or only slow ones"


@by_row
def test_options_and_variables_exist(row: Row) -> None:
    for text in row:
        for option in re.findall(r"`--([a-z-]+)", text):
            assert option in option_table.BY_NAME, f"--{option}"
        for variable in re.findall(r"`((?:FTRUN|MA|HCCL)_[A-Z_]+)`", text):
            assert any(variable in file.read_text(encoding="utf-8") for file in SOURCES), variable


@by_row
def test_an_exit_code_that_is_promised_is_one_that_a_named_test_looks_at(row: Row) -> None:
    if not row.who.startswith("ftrun"):
        return
    looked_at = " ".join(functions(file)[name][0] for file, name in TEST.findall(row.tests))
    for scenario in SCENARIO.findall(row.tests):
        looked_at += " " + (TESTS / scenario).read_text(encoding="utf-8")
    for code in map(int, re.findall(r"\b(9[34]|19[567])\b", row.handover)):
        assert code in CODES
        assert re.search(rf"\b{code}\b", looked_at), f"{code} ({CODES[code]})"


@pytest.mark.parametrize("scenario", sorted(set(SCENARIO.findall(PAGE))))
def test_a_scenario_ends_with_the_code_in_its_name(scenario: str) -> None:
    if found := re.search(r"(?<![a-z]_)_(9[34]|19[567])(?:_|\.)", scenario.replace("scenarios/", "scenarios/_")):
        text = (TESTS / scenario).read_text(encoding="utf-8")
        assert re.search(rf"\b{found[1]}\b", text), found[1]
