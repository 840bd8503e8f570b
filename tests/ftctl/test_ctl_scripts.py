"""What a script needs of `ftctl`: exit codes, waiting, filtered records, the output of the command; and what
`--on-exit` is given."""

import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ftctl.verbs.events import Filter, moment
from ftctl.verbs.status import condition
from support.runs import FTCTL, FTRUN, Runs, wait_for
from support.snapshots import snapshot

NOW = datetime(2026, 11, 23, 3, 0, tzinfo=UTC)


def ftctl(verb: str, run_dir: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*FTCTL, verb, "--run-dir", str(run_dir), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=180)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({}, 0),
        ({"phase": "starting"}, 0),
        ({"phase": "suspect"}, 3),
        ({"phase": "waiting"}, 3),
        ({"paused": 5.0}, 3),
        ({"phase": "done", "alive": False, "exit_code": 0}, 0),
        ({"phase": "done", "alive": False, "exit_code": 195}, 4),
        ({"phase": "cut off", "alive": False}, 5),
    ],
)
def test_condition_of_a_run_is_an_exit_code(changed: dict[str, Any], code: int) -> None:
    assert condition(snapshot(**changed)) == code


def test_exit_code_of_status_is_for_scripts(runs: Runs) -> None:
    run = runs.run("sh", "-c", "exit 3")
    assert ftctl("status", run.run_dir).returncode == 0, "unless it is asked for"
    assert ftctl("status", run.run_dir, "--exit-code").returncode == 4
    assert ftctl("status", run.run_dir / "none", "--exit-code").returncode == 1


def test_restart_and_stop_wait_for_their_end(runs: Runs) -> None:
    run = runs.start("--grace", "60s", "sleep", "3600")
    run.until("spawned")
    done = ftctl("restart", run.run_dir, "--wait")
    assert (done.returncode, done.stdout) == (0, "attempt 2 was started\n")
    assert len(run.named("spawned")) == 2
    done = ftctl("stop", run.run_dir, "--wait", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["why"].startswith("ended with 143 (stopped) in attempt 2")
    assert run.wait() == 143


# --- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        (Filter(), True),
        (Filter(events=("hang", "restart")), True),
        (Filter(events=("hang",)), False),
        (Filter(attempt=2), True),
        (Filter(attempt=1), False),
        (Filter(since=NOW), True),
        (Filter(since=NOW + timedelta(seconds=2)), False),
        (Filter(("restart",), NOW, 1), False),
    ],
)
def test_filter_of_records(wanted: Filter, fits: bool) -> None:
    record = {"event": "restart", "attempt": 2, "time": "2026-11-23T03:00:01.000Z"}
    assert wanted.wants(record) is fits
    assert not Filter(since=NOW).wants({**record, "time": "torn"})


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
        done = ftctl("events", run.run_dir, "--json", *words)
        assert (done.returncode, done.stderr) == (0, "")
        return [json.loads(line)["event"] for line in done.stdout.splitlines()]

    assert events("--event", "spawned,exited") == ["spawned", "exited"] * 2
    assert events("--event", "spawned", "--event", "ended", "--attempt", "2") == ["spawned", "ended"]
    assert events("--event", "exited", "--last", "1") == ["exited"]
    assert events("--since", "1h") == run.order
    assert events("--since", "2999-01-01") == []
    done = ftctl("events", run.run_dir, "--since", "soon")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


# --- output -----------------------------------------------------------------------------------------------------------


def kept(runs: Runs, *words: str) -> Path:
    """The run dir of an ftrun that keeps the output of this command, to its end."""
    folder = runs.folder / "logs"
    command = [*FTRUN, "--log-dir", str(folder), *words]
    subprocess.run(command, env=runs.environment, cwd=runs.folder, capture_output=True, timeout=180)
    (found,) = folder.glob("*_restartable")
    return found


def test_output_of_the_command_is_printed(runs: Runs) -> None:
    run_dir = kept(runs, "sh", "-c", "echo one; echo two; printf three")
    done = ftctl("logs", run_dir)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line for line in done.stdout.splitlines() if not line.startswith("---")] == ["one", "two", "three"]
    assert ftctl("logs", run_dir, "-f").stdout == done.stdout, "until the end, which has come"
    assert len(ftctl("logs", run_dir, "-n", "1").stdout.splitlines()) in (1, 2), "the last line has no end"
    assert "no output of local rank 3" in ftctl("logs", run_dir, "--rank", "3").stderr


def test_output_of_each_rank_is_marked(runs: Runs) -> None:
    run_dir = kept(runs, "--nproc-per-node", "2", "sh", "-c", "echo rank $RANK")
    done = ftctl("logs", run_dir)
    assert {"[0] rank 0", "[1] rank 1"} <= set(done.stdout.splitlines())
    assert "rank 1" in ftctl("logs", run_dir, "--rank", "1").stdout.splitlines()
    assert "rank 0" not in ftctl("logs", run_dir, "--rank", "1").stdout


def test_report_of_a_failure(runs: Runs) -> None:
    again = ("--restart-on", "failure", "--max-restarts", "1", "--backoff", "off")
    run_dir = kept(runs, *again, "sh", "-c", "echo in attempt $MA_PROC_START_CNT; exit 3")
    first, last = ftctl("report", run_dir, "1"), ftctl("report", run_dir)
    assert (first.returncode, last.returncode, first.stderr + last.stderr) == (0, 0, "")
    assert first.stdout.startswith("Attempt 1 failed: exit code 3\n")
    assert "then     ftrun started attempt 2" in first.stdout
    assert "  in attempt 1\n" in first.stdout
    assert "in attempt 2" not in first.stdout
    assert last.stdout.startswith("Attempt 2 failed: exit code 3\n")
    assert "then     ftrun ended with 93 (failure-limit)" in last.stdout
    document = json.loads(ftctl("report", run_dir, "--json").stdout)
    assert (document["attempt"], document["code"], document["output"][-1]) == (2, 3, "in attempt 2")


def test_a_stop_has_no_report(runs: Runs) -> None:
    run = runs.start("sleep", "3600")
    run.until("spawned")
    assert ftctl("stop", run.run_dir, "--wait").returncode == 0
    assert "no report was written" in ftctl("report", run.run_dir).stderr
    run.wait()


def test_output_that_is_not_kept_is_one_line(runs: Runs) -> None:
    run = runs.run("true")
    done = ftctl("logs", run.run_dir)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "--log-dir" in done.stderr


# --- the end, and pauses ----------------------------------------------------------------------------------------------


def test_commands_at_the_end_know_how_it_ended(runs: Runs) -> None:
    hook = 'echo "hook: $FTRUN_VERDICT $FTRUN_EXIT_CODE $FTRUN_ATTEMPT $FTRUN_RUN_DIR"'
    again = ("--restart-on", "failure", "--max-restarts", "1", "--backoff", "off", "--on-exit", hook)
    run = runs.run(*again, "sh", "-c", "exit 3")
    assert run.wait() == 93
    assert f"hook: failure-limit 93 2 {run.run_dir}" in (run.run_dir / "run.log").read_text(), "its output is kept"


def test_pause_says_who_and_until_when(runs: Runs) -> None:
    run = runs.start("sleep", "3600")
    run.until("spawned")
    done = ftctl("pause", run.run_dir, "--for", "10m")
    assert done.returncode == 0, done.stderr
    paused = run.until("paused")
    assert paused["by"]
    wait_for(lambda: "PAUSED" in ftctl("status", run.run_dir).stdout, "the pause to be shown")
    head = ftctl("status", run.run_dir).stdout.splitlines()[0]
    assert head.startswith(f"PAUSED by {paused['by']} for ")
    assert " UTC, in " in head
    assert f"paused by {paused['by']}: no verdicts for 10m" in run.whole_stderr
