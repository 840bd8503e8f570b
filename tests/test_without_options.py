"""ftrun without any option: hangs are found in a minute, and healthy jobs that stand still are left alone.

This is the short form of `bin/prove hangs` (tests/proof/hangs): some rows, all at once, with the real limits.  The slow
form has all of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from proof.hangs.hanging import PLAIN, PLAIN_MONITORED, SOON, Cell, Found, find
from proof.hangs.healthy import ROWS
from proof.hangs.meeting import Met, meet
from proof.hangs.server import serving

BEFORE, EARLY, LEARNED = "before the first step", "in the first ten steps", "after 125 steps"
HANGS = (
    Cell("lock-cycle", BEFORE, PLAIN),
    Cell("full-pipes", EARLY, PLAIN),
    Cell("lock-cycle", LEARNED, PLAIN_MONITORED),
)
PATIENCE = 240.0  # s
WAIT = 40.0  # s: a job is looked at after 15 and 30
HEALTHY = (
    ("a thread without an executor that sleeps, then sets an Event", "silent"),
    ("a SIGUSR1 from outside, whose handler sets an Event", "before"),
    ("a reader thread that fills the queue of the main thread", "early"),
    ("a feeder thread that looks for a new file every 40 s", "learned"),
    ("a barrier of processes, of which one downloads", "learned"),
    ("a FIFO that another process holds", "silent"),
)
Results = Mapping[object, Future[Found] | Future[Met]]


@pytest.fixture(scope="module")
def results() -> Iterator[Results]:
    with tempfile.TemporaryDirectory(prefix="ft-") as folder, serving() as ports, ThreadPoolExecutor(16) as pool:
        at = Path(folder)
        found = {cell: pool.submit(find, cell, PATIENCE, (), at / f"hang-{n}") for n, cell in enumerate(HANGS)}
        met = {
            row: pool.submit(meet, ROWS[row[0]], row[1], WAIT, ports, at / f"row-{n}") for n, row in enumerate(HEALTHY)
        }
        yield found | met  # type: ignore[operator]


@pytest.mark.parametrize("cell", HANGS, ids=str)
def test_a_hang_is_found_in_a_minute(results: Results, cell: Cell) -> None:
    found = results[cell].result()
    assert isinstance(found, Found)
    assert not found.wrong, found.wrong
    assert found.after is not None, found
    assert found.rule == "deadlock", found
    assert found.after < SOON, found


@pytest.mark.parametrize("row", HEALTHY, ids=", ".join)
def test_a_healthy_job_that_stands_still_is_left_alone(results: Results, row: tuple[str, str]) -> None:
    met = results[row].result()
    assert isinstance(met, Met)
    assert not met.wrong, met.wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.timeout(900)
def test_every_healthy_row(name: str, tmp_path: Path) -> None:
    row = ROWS[name]
    if lacking := row.lacks():
        pytest.skip(f"there is no {lacking} here")
    with serving() as ports:
        met = meet(row, row.moments[0], 75.0, ports, tmp_path / "run")
    assert not met.wrong, met.wrong
