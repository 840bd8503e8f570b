"""Every kind of `fthang` in every mode: hangs are found and restarted, healthy jobs are not killed."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from ftrun.workload.kinds import KINDS
from support.matrix import (
    AUTO,
    FAILING,
    FALSE_ALARMS,
    HOOKS,
    NOTHING,
    PAGE,
    WELL,
    Cell,
    Measured,
    Result,
    page,
    run_all,
    wrong,
)

REPEATS = int(os.environ.get("REPEATS", "20"))  # of the healthy kinds; of the others a tenth
CELLS = [
    *(Cell("deadlock", HOOKS), Cell("sleep", AUTO), Cell("chatty", NOTHING), Cell("stop", NOTHING)),
    *(Cell("quiet-sleep", HOOKS), Cell("slow-step", HOOKS), Cell("long-checkpoint", AUTO)),
    *(Cell("long-eval", NOTHING), Cell("first-batch", NOTHING)),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Mapping[Cell, Result]:
    return dict(run_all(CELLS, tmp_path_factory.mktemp("matrix")))


@pytest.mark.torch
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_hang_is_found_and_a_healthy_job_is_not_killed(results: Mapping[Cell, Result], cell: Cell) -> None:
    assert wrong(cell, results[cell]) is None, results[cell].log


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(2 * 3600)
def test_all_cells(tmp_path: Path) -> None:
    """The page is written after each round."""
    measured: Measured = {}
    mistakes = []
    for number in range(REPEATS):
        cells = FAILING + WELL if number % 10 == 0 else [cell for cell in WELL if cell not in FALSE_ALARMS]
        for cell, seen in run_all(cells, tmp_path / f"{number}"):
            measured.setdefault(cell, []).append(seen)
            why = wrong(cell, seen)
            print(number, cell, why or "as expected", seen[2:6])
            if why:
                mistakes.append(f"{cell}: {why}\n{seen.log}")
        PAGE.write_text(page(measured))
    assert not mistakes, "\n\n".join(mistakes)


def test_the_page_names_every_kind() -> None:
    text = PAGE.read_text()
    assert [kind for kind in KINDS if f"| `{kind}` |" not in text] == []
