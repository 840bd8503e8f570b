"""Kinds of `fthang` with timeouts that a user gave: hangs are found and restarted, work is not."""

from collections.abc import Mapping

import pytest

from support.given_timeouts import NOTHING, STEPS, Cell, Result, run_all, wrong

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
