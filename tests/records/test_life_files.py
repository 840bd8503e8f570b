"""The file of one life in the state dir: what survives when its run dir does not."""

import json
from pathlib import Path
from typing import Any

from ftrun.records.past import schedules
from ftrun.records.past.history import History
from ftrun.records.past.lost_time import AttemptSpan, LostInterval
from ftrun.records.past.schedules import AttemptLine, RunLife
from support.scripted import BEGAN, Script, fold

LIFE = RunLife(1, "n-1-2", 3, 0, "n", "", "", "/run", "", 100.0)


def history(*spans: AttemptSpan, **more: Any) -> History:
    return History("/run", ("train",), ((100.0, 200.0),), spans, open=True)._replace(**more)


def test_attempts_of_an_earlier_ftrun_in_the_run_dir_are_left_out_and_the_end_is_kept() -> None:
    earlier, own = AttemptSpan(1, "first", 10.0, 20.0), AttemptSpan(2, "failure", 100.0, 200.0, run=1)
    lost = (LostInterval(90.0, 110.0, "startup"), LostInterval(150.0, 153.0, "hang"))
    found = history(earlier, own, open=False, verdict="hang-limit", exit_code=195, why="it hung", lost=lost)
    life = schedules.with_history(LIFE, found)
    assert [one.number for one in life.attempts] == [2]
    assert life.attempts[0].lost == {"startup": 10.0, "hang": 3.0}
    assert (life.verdict, life.exit_code, life.ended) == ("hang-limit", 195, 200.0)


def test_no_step_of_the_wall_clock_moves_an_attempt_to_another_ftrun(tmp_path: Path) -> None:
    early = history(AttemptSpan(1, "first", 500.0, 600.0), AttemptSpan(2, "first", 600.0, 700.0, run=1))
    assert [one.number for one in schedules.with_history(LIFE, early).attempts] == [2], "the first one had a fast clock"
    late = history(AttemptSpan(1, "first", 50.0, 60.0))
    assert [one.number for one in schedules.with_history(LIFE, late).attempts] == [1], "it was set back at the begin"
    waiting = schedules.with_history(LIFE, late._replace(verdict="succeeded", exit_code=0, open=False), waiting=True)
    assert (waiting.attempts, waiting.verdict) == ((), None), "both are of an earlier ftrun"
    short = Script().starts(step=None).after(0.2).ends().starts(step=None).after(0.2).ends()
    lives = schedules.of_run(short.written(tmp_path / "run"))
    assert [[one.number for one in life.attempts] for life in lives] == [[1], [2]]


def test_the_run_dir_of_a_killed_ftrun_says_that_it_was_cut_off(tmp_path: Path) -> None:
    lives = schedules.of_run(Script().starts().stepped(0, 3).after(2).written(tmp_path / "run"))
    assert schedules.lines(lives)[0].endswith(", cut off: ftrun is gone and left no verdict")
    (row,) = schedules.table(lives, "", "")
    assert (row["open"], row["ending"]) == (False, "cut off: ftrun is gone and left no verdict")


def test_files_that_no_ftrun_of_this_version_wrote_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / schedules.FOLDER
    folder.mkdir()
    (folder / schedules.file_name("../a b")).write_bytes(schedules.dump(LIFE))
    known = json.loads(schedules.dump(LIFE))
    (folder / "later.json").write_text(json.dumps(known | {"schema": 2}))
    (folder / "more.json").write_text(json.dumps(known | {"key": "more", "unknown": 1, "began": 50.0}))
    (folder / "torn.json").write_bytes(schedules.dump(LIFE)[:-20])
    (folder / "list.json").write_text("[]")
    (folder / "wrong.json").write_text(json.dumps(known | {"attempts": 7}))
    assert [life.key for life in schedules.read(str(tmp_path))] == ["more", "n-1-2"]
    assert schedules.read(str(tmp_path / "missing")) == []
    assert schedules.read("/\ud800") == [], "it cannot be encoded"


def test_an_attempt_that_was_ended_for_another_member_says_why() -> None:
    script = Script().record("group", what="run", epoch=1).starts().after(9)
    script.record("group", what="stop", epoch=1, cause="hang", node="b").record("stopping", by="SIGTERM").after(1)
    found = fold("/run", script.record("exited", signal=15).starts("peer").after(5).ends().records, [], BEGAN + 1e6)
    shown = "\n".join(schedules.lines([schedules.with_history(LIFE._replace(began=BEGAN), found)], "/state"))
    assert "stopped for a hang on b" in shown


def test_a_killed_container_does_not_run_beside_the_one_that_has_taken_its_place() -> None:
    attempt = AttemptLine(1, "first", 100.0, 105.0, open=True)
    killed = LIFE._replace(key="killed", member=2, attempts=(attempt,))
    alive = killed._replace(key="alive", began=200.0)
    shown = [line for line in schedules.lines([killed, alive]) if "run dir" not in line]
    assert [line.partition("UTC, ")[2] for line in shown if " UTC, " in line and "attempt" not in line] == [
        "no end was recorded, and another ftrun has taken its place",
        "running when last seen",
    ]
    spare = "\n".join(schedules.lines([LIFE._replace(attempts=(), verdict=None)]))
    assert spare.endswith("waiting for a start when last seen"), "nothing shows that it was killed"
    rows = schedules.table([killed, alive], "", "/run")
    assert [(row["open"], bool(row["ending"])) for row in rows] == [(False, True), (True, False)]
