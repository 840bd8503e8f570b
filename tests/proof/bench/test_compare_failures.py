"""The benchmark of known failures, for ftrun alone: it works, and ftrun behaves as the table states."""

from __future__ import annotations

import pytest

from proof.bench.compare import known_failures
from proof.bench.compare.again import WAYS
from proof.bench.compare.known_failures import TRIED, Seen, Tried, cell
from proof.bench.compare.peers import OURS
from proof.bench.compare.survivors import living
from support.runs import need_pid1

QUICK = (known_failures.monitor_killed, known_failures.launcher_killed)


def _tried(tried: Tried) -> object:
    quick = tried.by in QUICK or tried.title.startswith("the command")
    return pytest.param(tried, id=tried.title, marks=() if quick else pytest.mark.slow)


@pytest.mark.pid1
@pytest.mark.parametrize("tried", [_tried(tried) for tried in TRIED])
def test_ftrun_handles_the_failure(tried: Tried) -> None:
    need_pid1()
    seen = tried.by(OURS)
    assert seen.right, cell([seen])


@pytest.mark.pid1
@pytest.mark.slow
def test_nothing_survives() -> None:
    need_pid1()
    way = next(way for way in WAYS if way.peer is OURS)
    assert living(way) == []


def test_a_cell_lists_the_results_that_differ() -> None:
    seen = [Seen(True, "killed after {} s", 0.52), Seen(True, "killed after {} s", 0.71), Seen(False, "not noticed")]
    assert cell(seen[:2]) == "✓ killed after 0.5 to 0.7 s"
    assert cell(seen) == "✓ killed after 0.5 to 0.7 s, 2 of 3 times; ✗ not noticed, 1 of 3 times"
