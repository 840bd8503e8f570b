"""`ftctl history` and `list`: what a person sees of schedules and runs that are over."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from ftctl.verbs.list import read
from ftrun.records.past import schedules
from support.helper_process import HelperProcess
from support.made_run import MadeRun
from support.runs import FTCTL, Run, Runs, python, wait_for

FIRST = """
ft.beat(0)
ft.checkpoint(10, "/ckpt/10")
ft.beat(17)
if ft.attempt().start_cnt == 1:
    raise RuntimeError("boom")
"""
SECOND = "import os; print(os.environ['FTRUN_LAST_CHECKPOINT'], os.environ['FTRUN_LAST_STEP'])"


def schedule(runs: Runs, number: int, code: str) -> Run:
    options = ["--state-dir", str(runs.folder / "state"), "--restart-on", "failure", "--backoff", "10ms"]
    run_dir = runs.folder / f"pod-{number}"
    return runs.run(*options, *python(code), run_dir=run_dir, MA_SCHEDULE_CNT=str(number), NODE_NAME=f"node-{number}")


def ftctl(runs: Runs, *words: str) -> str:
    done = subprocess.run(
        [*FTCTL, *words], env=runs.environment, cwd=runs.folder, capture_output=True, text=True, timeout=90
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def lives(runs: Runs, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ftctl(runs, "history", "--json", *words))["lives"]
    return found


def test_a_run_without_a_state_dir_has_no_schedule(runs: Runs) -> None:
    run = runs.ends(0, "true")
    (life,) = lives(runs, "--run-dir", str(run.run_dir))
    assert (life["schedule"], life["exit_code"]) == (None, 0)


def test_schedules_outlive_their_containers_and_the_next_one_sees_the_last_checkpoint(runs: Runs) -> None:
    assert schedule(runs, 1, FIRST).wait() == 0
    second = schedule(runs, 2, SECOND)
    assert second.wait() == 0, second.log()
    assert second.stdout.split() == ["/ckpt/10", "17"]

    first, last = lives(runs, "--state-dir", "state")
    assert [life["schedule"] for life in (first, last)] == [1, 2]
    assert [life["node"] for life in (first, last)] == ["node-1", "node-2"]
    assert [life["verdict"] for life in (first, last)] == ["succeeded", "succeeded"]
    assert (first["last_step"], first["last_checkpoint"]) == (17, "/ckpt/10")
    failed, again = first["attempts"]
    assert (failed["cause"], failed["why"].partition(" (")[0]) == ("failure", "RuntimeError: boom")
    assert failed["place"].startswith("<string>:")
    assert again["cause"] is None
    assert failed["until"] >= failed["since"]
    assert failed["lost"]
    shutil.rmtree(runs.folder / "pod-1")
    copy = Path(schedules.report_copy(str(runs.folder / "state"), first["key"], 1))
    assert copy.read_text().startswith("# Attempt 1 failed: exit code 1\n")
    assert f"report: {copy}" in ftctl(runs, "history", "--state-dir", "state")

    text = ftctl(runs, "history", "--state-dir", "state")
    assert "schedule 1\n" in text
    assert "RuntimeError: boom" in text
    assert lives(runs, "--run-dir", "pod-2") == [first, last], "of a run the whole job, by its state dir"
    assert lives(runs, "--state-dir", "state", "-n", "1") == [last]


def test_a_report_whose_records_come_after_the_next_start_is_copied_too(runs: Runs) -> None:
    """The request that announces the next attempt may reach the state store before the records do."""
    options = ("--restart-on", "failure", "--backoff", "10ms")
    assert runs.run(*options, *python(FIRST), run_dir=runs.folder / "whole").wait() == 0
    whole, seen, state = runs.folder / "whole", runs.folder / "seen", runs.folder / "state"
    records = (whole / "events.jsonl").read_text().splitlines(keepends=True)
    begun = 1 + next(n for n, line in enumerate(records) if json.loads(line)["event"] == "spawned")
    seen.mkdir()
    (seen / "events.jsonl").write_text("".join(records[:begun]))
    schedule = {"key": "k", "number": 1, "node": "n", "wall": 1.5, "best_step": None, "best_checkpoint": None}
    schedule |= {"progressed": False, "faulted": False, "failed": False, "phase": "", "job": "", "last_step": None}
    with HelperProcess("state_store", str(state), str(seen), str(seen)) as store:
        store.event("stored_history")
        store.ask(ask="keep", faults=[], schedule=schedule | {"last_checkpoint": "", "member": 0}, attempt=2)
        store.event("stored_history")
        copy = Path(schedules.report_copy(str(state), "k", 1))
        assert not copy.exists()
        (seen / "events.jsonl").write_text("".join(records))
        wait_for(copy.exists, "the copy of the report")
    (life,) = schedules.read(str(state))
    assert [attempt.cause for attempt in life.attempts] == ["failure", None]


def test_run_without_a_state_dir_has_a_history_and_every_run_is_listed(runs: Runs) -> None:
    ended = runs.run("--restart-on", "failure", "--backoff", "10ms", *python(FIRST), run_dir=runs.folder / "in" / "a")
    living = runs.spawned("sleep", "3600", run_dir=runs.folder / "in" / "b")
    (life,) = lives(runs, "--run-dir", "in/a")
    assert [attempt["cause"] for attempt in life["attempts"]] == ["failure", None]
    assert life["verdict"] == "succeeded"

    def listed() -> dict[str, dict[str, Any]]:
        found = json.loads(ftctl(runs, "list", "--json", "in"))["runs"]
        return {one["run_dir"]: one for one in found}

    shown = wait_for(lambda: (found := listed()).get(str(living.run_dir), {}).get("phase") == "starting" and found)
    assert [shown[str(run.run_dir)]["alive"] for run in (ended, living)] == [False, True]
    assert (shown[str(ended.run_dir)]["verdict"], shown[str(ended.run_dir)]["step"]) == ("succeeded", 17)
    assert str(ended.run_dir) not in json.dumps(json.loads(ftctl(runs, "list", "--living", "--json", "in")))
    assert str(living.run_dir) in ftctl(runs, "list", "in")


def test_a_state_dir_and_a_run_dir_are_not_both_given(runs: Runs) -> None:
    words = ["history", "--state-dir", "/nonexistent", "--run-dir", str(runs.folder)]
    done = subprocess.run([*FTCTL, *words], env=runs.environment, capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ftctl: --state-dir cannot be given with --run-dir: each names what is read\n"
    run = schedule(runs, 1, "ft.beat(1)")
    assert run.wait() == 0
    runs.environment["FTRUN_STATE_DIR"] = "/nonexistent"
    assert len(lives(runs, "--run-dir", str(run.run_dir))) == 1


def test_a_listed_run_has_its_state_in_a_word_and_what_to_do(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    try:
        run.rank(0, moved=90.0)
        path = run.write()
        (row,) = [one for one in read([str(tmp_path)]) if one.run_dir == path]
    finally:
        run.close()
    assert (row.word, row.step) == ("quiet", 7)
    assert row.do.startswith("`ftctl stacks --run-dir ")


def test_a_suspended_and_a_stalled_run_are_listed_as_such(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    try:
        run.rank(0, moved=45.0)
        run.attempt["stopped_at"] = run.now - 40
        path = run.write()
        words = [one.word for one in read([str(tmp_path)]) if one.run_dir == path]
        run.attempt |= {"stopped_at": None, "stalled": {"rank": 0, "since": run.now - 45}}
        run.write()
        words += [one.word for one in read([str(tmp_path)]) if one.run_dir == path]
    finally:
        run.close()
    assert words == ["suspended", "stalled"]


def test_a_history_without_a_run_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").touch()
    for words in (["--run-dir", str(tmp_path)], ["--state-dir", str(tmp_path)]):
        done = subprocess.run([*FTCTL, "history", *words], capture_output=True, text=True, timeout=90)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"ftctl: {tmp_path}: no run was recorded there\n"
