"""The reports of attempts that failed, made from the files of a run dir."""

import json
import os
import tracemalloc
from pathlib import Path

import pytest

from ftrun.records.files import reports
from ftrun.records.past import history
from support.made_run import MadeRun
from support.scripted import Script


def test_output_in_a_file_is_read_up_to_the_end_of_the_attempt_and_of_the_same_user_alone(tmp_path: Path) -> None:
    out = tmp_path / "job.out"
    out.write_text("[ftrun] attempt 1 started\nloading\nbad batch\nof the next attempt\n")
    size = len("[ftrun] attempt 1 started\nloading\nbad batch\n")
    record = {"event": "exited", "attempt": 1, "code": 3, "output": {str(out): size, "/proc/self/status": 9, "": 4}}
    (tmp_path / "events.jsonl").write_text(json.dumps(record) + "\n")
    found = reports.failure(str(tmp_path), 1)
    assert found is not None
    assert found["output"] == ["loading", "bad batch"]
    if os.getuid() == 0:
        os.chown(tmp_path / "events.jsonl", 12345, 12345)
        found = reports.failure(str(tmp_path), 1)
        assert found is not None
        assert found["output"] == []


def test_the_report_of_a_hang_says_that_it_comes_again(tmp_path: Path) -> None:
    script = Script()
    for reason in ("first", "hang", "hang"):
        script.starts(reason).hangs(101)
    run_dir = script.written(tmp_path / "run")
    for attempt in (1, 3):
        file = Path(reports.path(run_dir, attempt))
        file.parent.mkdir(parents=True)
        file.write_text("# Rank 3 stopped\n\nAttempt of train.\n")
    assert reports.text(run_dir, 1) == "# Rank 3 stopped\n\nAttempt of train.\n"
    assert reports.text(run_dir, 3) == (
        "# Rank 3 stopped\n\n**Third hang at x.py:1, step 101.**\n\nAttempt of train.\n"
    )


def test_the_report_of_a_hang_takes_as_much_memory_after_many_hangs_as_after_a_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state store makes a copy of each, and does not return the memory that it needed once."""
    monkeypatch.setattr(reports, "LIMIT", 4096)  # of the report itself: so much is allocated, and not used
    few, many = (peak_of_a_report(tmp_path / str(hangs), hangs) for hangs in (1_000, 4_000))
    assert many < 1.1 * few


def peak_of_a_report(folder: Path, hangs: int) -> int:
    """Bytes that Python has at most while it reads the last report of a run with so many hangs."""
    script = Script()
    for _ in range(hangs):
        script.starts("hang").hangs(101)
    run_dir = script.written(folder)
    file = Path(reports.path(run_dir, hangs))
    file.parent.mkdir(parents=True)
    file.write_text("# Rank 3 stopped\n\nAttempt of train.\n")
    tracemalloc.start()
    try:
        text = reports.text(run_dir, hangs)
        assert text is not None
        assert f"{hangs}th hang" in text
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_end_of_the_output_is_that_of_the_attempt(tmp_path: Path) -> None:
    script = Script()
    for number in range(3):
        script.starts("failure" if number else "", startup=1)
        script.after(1).record("exited", code=3, why="the command exited with 3").record("stopping", by="SIGTERM")
    (tmp_path / "events.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in script.records))
    output = [[f"{number}:{i}" for i in range(40)] for number in (1, 2, 3)]
    lines = [*output[0], "--- attempt 2 ---", *output[1], "--- attempt 3 ---", *output[2]]
    (tmp_path / "output.log").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "output-1.log").write_text("--- attempt 2 ---\nof the rank\n")
    for number in (1, 2, 3):
        found = reports.failure(str(tmp_path), number)
        assert found is not None
        assert found["output"] == (["[1] of the rank"] if number > 1 else []) + output[number - 1][-reports.LINES :]


@pytest.mark.parametrize(
    ("verdict", "code", "advice"),
    [
        ("failed", 1, "with `--restart-on hang,fault,failure`"),
        ("failure-limit", 93, "started again as often as is"),
        ("non-recoverable", 94, "mend the cause, and start the job again"),
        ("", 0, "nothing yet: `ftctl status` shows what follows"),
    ],
)
def test_no_restarts_are_advised_once_they_are_used_up(tmp_path: Path, verdict: str, code: int, advice: str) -> None:
    run = MadeRun(tmp_path / "run")
    run.record("exited", code=1, why="it failed")
    if verdict:
        run.record("ended", verdict=verdict, exit_code=code, why="it failed")
    found = reports.failure(run.write(), 1)
    run.close()
    assert found is not None
    assert advice in "\n".join(reports.failure_lines(found))


def test_a_program_that_handles_ctrl_c_needs_no_mending(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    run.record("exited", code=130, why="the command exited with 130")
    run.record("ended", verdict="failed", exit_code=130, why="the command exited with 130")
    found = reports.failure(run.write(), 1)
    run.close()
    assert found is not None
    assert "do       nothing, if somebody ended it by Ctrl-C; else mend the cause" in reports.failure_lines(found)


def test_ctrl_c_is_no_failure(tmp_path: Path) -> None:
    """The terminal sends it to the command as well, which may end before ftrun has passed it on."""
    run = MadeRun(tmp_path / "run")
    run.record("started", reason="first")
    run.record("exited", signal=2)
    run.record("stopping", by="SIGTERM")
    run.record("ended", verdict="stopped", exit_code=130, why="signal 2 (SIGINT) ended the command")
    path = run.write()
    run.close()
    assert (reports.failed(path), reports.failure(path, 1)) == ([], None)
    assert [attempt.cause for attempt in history.read(path).attempts] == [None]
