"""tests/rank_faults.md: each kind that has to be recovered has a row, and its tests are collected."""

import re
import subprocess
import sys

import pytest

from support.runs import HOUSE

TEST = re.compile(r"`([\w/]+\.py)::(\w+)(\[[^`]+\])?`|`(\[[^`]+\])`")
RUNGS = ("retry", "rank", "tree", "that of the fault")
# The faults that issue 18 names; a word or two that is only in the row of that fault.
MUST_HOLD = (
    "`kill -9` of any one rank",
    "SIGSTOP of a rank |",
    "keeps the GIL",
    "waits for a lock",
    "an exception",
    "`os._exit`",
    "a daemon behind",
    "two ranks at once",
    "inside `run.keep`",
    "inside `run.restore`",
    "during the fence",
    "during the go",
    "the store of",
    "a helper of ftrun is killed",
    "too small for snapshots",
    "full when a rank dies",
    "`except Exception`",
    "DataLoader with workers",
    "a side thread",
    "two nodes with two ranks each",
)


def rows() -> list[str]:
    text = (HOUSE / "tests" / "rank_faults.md").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line.startswith("| ")][2:]


def named(row: str) -> list[str]:
    """The tests of a row; a name in brackets alone is a further case of the test before it."""
    found, last = [], ""
    for file, name, first, further in TEST.findall(row.split(" | ")[2]):
        last = f"tests/{file}::{name}" if file else last
        found.append(last + (first or further))
    return found


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    files = sorted({test.partition("::")[0] for row in rows() for test in named(row)})
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(words, cwd=HOUSE, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line for line in done.stdout.splitlines() if "::" in line}


@pytest.mark.parametrize("kind", MUST_HOLD)
def test_each_kind_of_fault_has_one_row(kind: str) -> None:
    assert sum(kind in row for row in rows()) == 1


def test_each_row_names_a_rung_and_tests_that_are_collected(collected: set[str]) -> None:
    without_cases = {test.partition("[")[0] for test in collected}
    for row in rows():
        assert row.split(" | ")[1].startswith(RUNGS), row
        assert named(row), row
        assert not TEST.sub("", row.split(" | ")[2]).strip(" |"), f"a test that is named in another form: {row}"
        for test in named(row):
            assert test in (collected if "[" in test else without_cases), f"{test} is not collected"


def test_the_cases_with_gloo_are_all_in_the_table(collected: set[str]) -> None:
    ours = {test for test in collected if test.startswith("tests/test_recover_faults.py::")}
    assert ours == {test for row in rows() for test in named(row) if test.startswith("tests/test_recover_faults.py::")}
