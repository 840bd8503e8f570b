"""The program that measures the matrix: its schedule, its rows, and the tables that it makes."""

import json
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from proof.hangs import meeting, sections
from proof.hangs.hanging import CELLS, HANGS, MOMENTS, RANKS, SINGLE, STARTED, TORCHRUN, Cell, Found
from proof.hangs.healthy import ROWS
from proof.hangs.meeting import UNENDED, Met, meet
from proof.hangs.rows import Row
from proof.hangs.schedule import Job, run_all
from support.measured import save


def test_jobs_run_side_by_side_within_the_cores_and_the_number() -> None:
    running, most, used = list[float](), list[int](), list[float]()
    lock = threading.Lock()

    def job(cores: float) -> Job:
        def do() -> None:
            with lock:
                running.append(cores)
                most.append(len(running))
                used.append(sum(running))
            time.sleep(0.05)
            with lock:
                running.remove(cores)

        return Job(cores, do)

    run_all([job(cores) for cores in (0.1, 5.0, 0.1, 1.0, 1.0, 0.1, 0.1)], 3, 1.5, 0.0, threading.Event())
    assert len(most) == 7
    assert max(most) <= 3
    assert sorted(used)[-1] == 5.0, "a job that needs more than there is runs alone"
    assert sorted(used)[-2] <= 1.5


def test_no_job_starts_after_the_stop() -> None:
    stop, done = threading.Event(), []

    def do() -> None:
        done.append(1)
        stop.set()

    run_all([Job(1.0, do)] * 5, 1, 1.0, 0.0, stop)
    assert done == [1]


def test_each_cell_is_another_one_and_each_kind_has_one() -> None:
    assert len(set(CELLS)) == len(CELLS)
    assert {cell.kind for cell in CELLS} == set(HANGS)
    assert len(ROWS) > 400


def test_the_ranks_of_a_cell_are_started_by_ftrun_or_by_torchrun(tmp_path: Path) -> None:
    alone, started, ranks = (
        Cell("deadlock", next(iter(MOMENTS)), shape).command(tmp_path) for shape in (SINGLE, STARTED, RANKS)
    )
    assert started == ["--nproc-per-node", "2", *alone]
    assert ranks == [*TORCHRUN, *alone[1:]]


def runs() -> list[dict[str, Any]]:
    learned, before = "after 125 steps", "before the first step"
    found = [
        Found(
            "deadlock", learned, SINGLE, 21.0, 20.4, "deadlock", "process 4242 (python) waits at /tmp/x/y/train.py:1"
        ),
        Found("deadlock", learned, SINGLE, 24.0, 23.6, "deadlock", "process 4711 (python) waits at /tmp/z/train.py:1"),
        Found("deadlock", before, SINGLE, 70.0, 61.0, "deadlock", "process 1 (python) waits", wrong="code 1"),
        Found("sleep", learned, SINGLE, 180.2, open=("rank 0 waits for a timer",)),
        Found("stop", learned, RANKS, 12.0, 11.0, "deadlock", "stopped"),
    ]
    row = next(iter(ROWS))
    met = [
        Met(row, "learned", 75.0, 80.0, "", ("step",), ("a timer that ends in 4s",)),
        Met(row, "before", 75.0, 81.0, "x"),
    ]
    return [
        *({"what": "hang", "load": 1.0} | one._asdict() for one in found),
        *({"what": "healthy", "load": 2.0} | one._asdict() for one in met),
    ]


def test_the_tables(monkeypatch: Any, tmp_path: Path) -> None:
    saved = list[Any]()
    monkeypatch.setattr(sections, "save", lambda page, one: saved.append(one))
    monkeypatch.setattr(sections, "RESULTS", tmp_path)
    sections.publish(runs())
    single, ranks, healthy = saved
    rows = {row[0]: row[1:] for row in single.rows}
    assert rows["`deadlock`"][:3] == ("`deadlock` 61 s", "", "`deadlock` 24 s")
    assert "process N (python) waits at …/train.py:1" in rows["`deadlock`"][3]
    assert rows["`sleep`"] == ("", "", "not within 180 s", "rank 0 waits for a timer")
    assert single.after[0].startswith("In 4 runs, 3 hangs were found, 2 of them within 60 s. 2 of these 3 jobs")
    assert "`stop`" in {row[0] for row in ranks.rows}
    name, number, wrong, suspected, why = healthy.rows[0]
    assert (number, wrong, suspected, why) == ("2", "1", "1", "a timer that ends in Ns")
    assert name in ROWS


def test_a_row_without_a_new_run_stays(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(sections, "RESULTS", tmp_path)
    monkeypatch.setattr(sections, "save", partial(save, folder=tmp_path))
    sections.publish(runs())
    others = [run | {"kind": "pipe"} if run["kind"] == "deadlock" else run for run in runs()[:3]]
    healthy = [run | {"row": list(ROWS)[1]} for run in runs() if run["what"] == "healthy"]
    single, stands = (json.loads(path.read_text()) for path in sections.publish([*others, *healthy]))
    rows = {row[0]: row[1:] for row in single["rows"]}
    assert rows["`pipe`"][:3] == ["`deadlock` 61 s", "", "`deadlock` 24 s"]
    assert rows["`deadlock`"][:3] == ["`deadlock` 61 s", "", "`deadlock` 24 s"]
    assert single["after"][1].startswith("2 rows were not measured in these runs")
    assert [row[0] for row in stands["rows"]] == list(ROWS)[:2]
    assert (tmp_path / "hang-matrix" / "13-hangs.json").exists(), "a table without new runs stays"


def test_a_run_that_is_not_given_its_time_is_no_verdict(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(meeting, "PATIENCE", 1.0)
    met = meet(Row("time", "a long sleep", "time.sleep(500)"), "silent", 1.0, (0, 0), tmp_path / "run")
    assert met.wrong.startswith(UNENDED)
