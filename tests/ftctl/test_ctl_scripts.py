"""What a script needs of `ftctl`: exit codes, waiting, filtered records, the output of the command; and what
`--on-exit` is given."""

import json
import os
import subprocess
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ftctl.verbs.events import moment
from ftctl.verbs.status import condition
from ftrun.records.present.snapshot import StalledRank
from support.runs import FTCTL, FTRUN, Runs, ftctl, wait_for
from support.snapshots import snapshot

NOW = datetime(2026, 11, 23, 3, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({}, 0),
        ({"phase": "starting"}, 0),
        ({"phase": "suspect"}, 3),
        ({"phase": "waiting"}, 3),
        ({"paused": 5.0}, 3),
        ({"stalled": StalledRank(3, 720.0)}, 3),
        ({"phase": "done", "alive": False, "exit_code": 0}, 0),
        ({"phase": "done", "alive": False, "exit_code": 195}, 4),
        ({"phase": "cut off", "alive": False}, 5),
    ],
)
def test_condition_of_a_run_is_an_exit_code(changed: dict[str, Any], code: int) -> None:
    assert condition(snapshot(**changed)) == code


def test_restart_and_stop_wait_for_their_end(runs: Runs) -> None:
    run = runs.spawned("--grace", "60s", "sleep", "3600")
    done = run.ftctl("restart", "--wait")
    assert (done.returncode, done.stdout) == (0, "attempt 2 was started\n")
    assert len(run.named("spawned")) == 2
    done = run.ftctl("stop", "--wait", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["why"].startswith("ended with 143 (stopped) in attempt 2")
    assert run.wait() == 143


def test_restart_waits_for_a_command_that_ends_at_once(runs: Runs) -> None:
    run = runs.start("sh", "-c", "[ -e again ] && exit; touch again; exec sleep 3600")
    wait_for((runs.folder / "again").exists, "the first start")
    done = run.ftctl("restart", "--wait")
    assert (done.returncode, done.stdout.partition(";")[0].strip()) == (0, "attempt 2 was started")
    assert run.wait() == 0


# --- records ----------------------------------------------------------------------------------------------------------


def test_moment_is_an_age_or_a_time() -> None:
    assert moment("10m", NOW) == NOW - timedelta(minutes=10)
    assert moment("2026-11-23T02:00", NOW) == NOW - timedelta(hours=1)
    assert moment("2026-11-23T04:00:00+02:00", NOW) == NOW - timedelta(hours=1)
    with pytest.raises(ValueError, match="neither a duration such as 10m nor a time"):
        moment("soon", NOW)


def test_records_are_filtered(runs: Runs) -> None:
    again = ("--restart-on", "failure", "--max-restarts", "1", "--backoff", "off")
    run = runs.run(*again, "sh", "-c", "exit 3")

    def events(*words: str) -> list[str]:
        done = run.ftctl("events", "--json", *words)
        assert (done.returncode, done.stderr) == (0, "")
        return [json.loads(line)["event"] for line in done.stdout.splitlines()]

    assert events("--event", "spawned,exited") == ["spawned", "exited"] * 2
    assert events("--event", "spawned", "--event", "ended", "--attempt", "2") == ["spawned", "ended"]
    assert events("--event", "exited", "--last", "1") == ["exited"]
    assert events("--since", "1h") == run.order
    assert events("--since", "2999-01-01") == []
    done = run.ftctl("events", "--since", "soon")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


# --- output -----------------------------------------------------------------------------------------------------------


def output_of(runs: Runs, *words: str) -> dict[str, str]:
    """What tells `ftctl` the run dir of an ftrun that has kept the output of this command, to its end."""
    folder = runs.folder / "logs"
    command = [*FTRUN, "--log-dir", str(folder), *words]
    subprocess.run(command, env=runs.environment, cwd=runs.folder, capture_output=True, timeout=180)
    (found,) = folder.glob("*_restartable")
    return {"FTRUN_RUN_DIR": str(found)}


def test_output_of_the_command_is_printed(runs: Runs) -> None:
    kept = output_of(runs, "sh", "-c", "echo one; echo two; printf three")
    done = ftctl("logs", **kept)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line for line in done.stdout.splitlines() if not line.startswith("---")] == ["one", "two", "three"]
    assert ftctl("logs", "-f", **kept).stdout == done.stdout, "until the end, which has come"
    assert len(ftctl("logs", "-n", "1", **kept).stdout.splitlines()) in (1, 2), "the last line has no end"
    assert "no output of local rank 3" in ftctl("logs", "--rank", "3", **kept).stderr


def test_a_reader_of_the_output_that_has_enough_is_no_error(runs: Runs) -> None:
    kept = output_of(runs, "sh", "-c", "echo one")
    reader, writer = os.pipe()
    os.close(reader)
    for words in (("logs",), ("logs", "-f"), ("timeline", "-o", "-"), ("timeline", "--json"), ("top", "--once")):
        command = [*FTCTL, *words, "--run-dir", *kept.values()]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, ""), words
    os.close(writer)


def test_output_of_each_rank_is_marked(runs: Runs) -> None:
    kept = output_of(runs, "--nproc-per-node", "2", "sh", "-c", "echo rank $RANK")
    done = ftctl("logs", **kept)
    assert {"[0] rank 0", "[1] rank 1"} <= set(done.stdout.splitlines())
    assert "rank 1" in ftctl("logs", "--rank", "1", **kept).stdout.splitlines()
    assert "rank 0" not in ftctl("logs", "--rank", "1", **kept).stdout


def test_report_of_a_failure(runs: Runs) -> None:
    again = ("--restart-on", "failure", "--max-restarts", "1", "--backoff", "off")
    kept = output_of(runs, *again, "sh", "-c", "echo in attempt $MA_PROC_START_CNT; exit 3")
    first, last = ftctl("report", "1", **kept), ftctl("report", **kept)
    assert (first.returncode, last.returncode, first.stderr + last.stderr) == (0, 0, "")
    assert first.stdout.startswith("Attempt 1 failed: exit code 3\n")
    assert "then     ftrun started attempt 2" in first.stdout
    assert "  in attempt 1\n" in first.stdout
    assert "in attempt 2" not in first.stdout
    assert last.stdout.startswith("Attempt 2 failed: exit code 3\n")
    assert "then     ftrun ended with 93 (failure-limit)" in last.stdout
    document = json.loads(ftctl("report", "--json", **kept).stdout)
    assert (document["attempt"], document["code"], document["output"][-1]) == (2, 3, "in attempt 2")


def test_output_that_is_not_kept_is_one_line(runs: Runs) -> None:
    run = runs.run("true")
    done = run.ftctl("logs")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "--log-dir" in done.stderr


# --- the end, and pauses ----------------------------------------------------------------------------------------------


def test_commands_at_the_end_know_how_it_ended(runs: Runs) -> None:
    hook = 'echo "hook: $FTRUN_VERDICT $FTRUN_EXIT_CODE $FTRUN_ATTEMPT $FTRUN_RUN_DIR"'
    again = ("--restart-on", "failure", "--max-restarts", "1", "--backoff", "off", "--on-exit", hook)
    run = runs.ends(93, *again, "sh", "-c", "exit 3")
    assert f"hook: failure-limit 93 2 {run.run_dir}" in (run.run_dir / "run.log").read_text(), "its output is kept"


def test_pause_says_who_and_until_when(runs: Runs) -> None:
    run = runs.spawned("sleep", "3600")
    done = run.ftctl("pause", "--for", "10m")
    assert done.returncode == 0, done.stderr
    paused = run.until("paused")
    assert paused["by"]
    wait_for(lambda: "PAUSED" in run.ftctl("status").stdout, "the pause to be shown")
    head = run.ftctl("status").stdout.splitlines()[0]
    assert head.startswith(f"PAUSED by {paused['by']} for ")
    assert " UTC, in " in head
    assert f"paused by {paused['by']}: no verdicts for 10m" in run.whole_stderr
