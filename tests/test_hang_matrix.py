"""Every kind of `fthang` in every mode, told much or nothing: hangs are found, and nothing else is killed."""

from __future__ import annotations

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
    Seen,
    page,
    run_all,
    wrong,
)

# Of the healthy ones; of the others, and of those that nothing tells apart, a tenth.
REPEATS = int(os.environ.get("REPEATS", "20"))
HANGING = [Cell("deadlock", HOOKS), Cell("sleep", AUTO), Cell("chatty", NOTHING), Cell("stop", NOTHING)]
WORKING = [Cell("quiet-sleep", HOOKS), Cell("slow-step", HOOKS), Cell("long-checkpoint", AUTO)]
WORKING += [Cell("long-eval", NOTHING), Cell("first-batch", NOTHING)]


@pytest.fixture(scope="module")
def met(tmp_path_factory: pytest.TempPathFactory) -> Mapping[Cell, Seen]:
    return dict(run_all(HANGING + WORKING, tmp_path_factory.mktemp("matrix")))


@pytest.mark.torch
@pytest.mark.parametrize("cell", HANGING, ids=str)
def test_a_hang_is_found_and_restarted(met: Mapping[Cell, Seen], cell: Cell) -> None:
    assert wrong(cell, met[cell]) is None, met[cell].log


@pytest.mark.torch
@pytest.mark.parametrize("cell", WORKING, ids=str)
def test_what_only_looks_like_one_is_left_alone(met: Mapping[Cell, Seen], cell: Cell) -> None:
    assert wrong(cell, met[cell]) is None, met[cell].log


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(2 * 3600)
def test_all_of_them(tmp_path: Path) -> None:
    """The page is written anew after each round."""
    measured: Measured = {}
    mistakes = []
    for number in range(REPEATS):
        cells = FAILING + WELL if number % 10 == 0 else [cell for cell in WELL if cell not in FALSE_ALARMS]
        for cell, seen in run_all(cells, tmp_path / f"{number}"):
            measured.setdefault(cell, []).append(seen)
            why = wrong(cell, seen)
            print(number, cell, why or "as it should be", seen[2:6])
            if why:
                mistakes.append(f"{cell}: {why}\n{seen.log}")
        PAGE.write_text(page(measured))
    assert not mistakes, "\n\n".join(mistakes)


def test_the_page_names_every_kind() -> None:
    text = PAGE.read_text()
    assert [kind for kind in KINDS if f"| `{kind}` |" not in text] == []
