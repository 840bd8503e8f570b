"""Every kind of `fthang` with timeouts that a user gave: hangs are found and restarted, work is not."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.given_timeouts import CELLS, NOTHING, STEPS, Cell, Result, run_all, section, wrong
from support.measured import save

REPEATS = int(os.environ.get("REPEATS", "1"))
SOME = [
    *(Cell("deadlock", STEPS), Cell("chatty", NOTHING), Cell("stop", NOTHING), Cell("spin", STEPS)),
    *(Cell("quiet-sleep", STEPS), Cell("long-checkpoint", STEPS), Cell("long-eval", NOTHING)),
    Cell("first-batch", NOTHING),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Mapping[Cell, Result]:
    # They mostly wait, and nothing is measured here: four at once.
    return dict(run_all(SOME, tmp_path_factory.mktemp("given"), at_once=4))


@pytest.mark.parametrize("cell", SOME, ids=str)
def test_a_hang_is_found_and_a_healthy_job_is_not_killed(results: Mapping[Cell, Result], cell: Cell) -> None:
    assert wrong(cell, results[cell]) is None, results[cell].log


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(2 * 3600)
def test_all_cells(tmp_path: Path) -> None:
    """With PUBLISH=1, the result is written to docs/measured/hang-matrix."""
    measured: dict[Cell, list[Result]] = {}
    mistakes = []
    for number in range(REPEATS):
        for cell, seen in run_all(CELLS, tmp_path / f"{number}"):
            measured.setdefault(cell, []).append(seen)
            why = wrong(cell, seen)
            print(number, cell, why or "as expected", seen[2:6])
            if why:
                mistakes.append(f"{cell}: {why}\n{seen.log}")
    if os.environ.get("PUBLISH"):
        save("hang-matrix", section(measured))
    assert not mistakes, "\n\n".join(mistakes)
