"""End to end: what outlives the container, and what the platform says of the job."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.runs import DEADLINE, FTRUN, Run, Runs, python, wait_for

HANG = ("--hang-timeout", "300ms", "--max-restarts", "0", "--grace", "off")
HANGS = "import time; ft.beat(); time.sleep(3600)"
FAILS = python("ft.beat(); sys.exit(7)")


def schedule(runs: Runs, number: int, *words: str, state: Path | None = None, pod: str = "", **more: Any) -> Run:
    """One life of a container, on a pod of its own: nothing but the state dir is what it was before."""
    run_dir = runs.folder / f"pod-{number}-{len(runs.started)}{pod}"
    kept = ["--state-dir", str(state or runs.folder / "state")]
    return runs.start(*kept, *words, run_dir=run_dir, MA_SCHEDULE_CNT=str(number), **more)


def codes(runs: Runs, *lives: tuple[int, list[str]], state: Path | None = None) -> list[int]:
    """Of schedules one after another: the number and the words of each."""
    return [schedule(runs, number, *words, state=state).wait() for number, words in lives]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def in_a_row(words: list[str]) -> list[tuple[int, list[str]]]:
    return [(number, words) for number in (1, 2, 3, 4)]


# --- the fourth in a row ----------------------------------------------------------------------------------------------


def test_the_fourth_schedule_in_a_row_that_hangs_is_the_last(runs: Runs) -> None:
    assert codes(runs, *in_a_row([*HANG, *python(HANGS)])) == [195, 195, 195, 93]
    assert runs.verdict["verdict"] == "failure-limit"
    assert runs.verdict["schedule_cnt"] == 4
    assert "this is the 4th schedule in a row, and it got no further than the first" in runs.verdict["message"]


@pytest.mark.parametrize("listed", [[], ["--restart-on", "failure", "--unconditional-retry", "--max-restarts", "0"]])
def test_the_fourth_schedule_in_a_row_that_fails_is_the_last(runs: Runs, listed: list[str]) -> None:
    assert codes(runs, *in_a_row([*listed, *FAILS])) == [7, 7, 7, 93]
    assert "this is the 4th schedule in a row, and it got no further than the first" in runs.verdict["message"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_group_that_never_comes_together_is_not_scheduled_for_ever(runs: Runs, rank: int) -> None:
    """The command was never started in any of them."""
    group = ["--group-size", "2", "--group-rank", str(rank), "--group-endpoint", f"127.0.0.1:{free_port()}"]
    assert codes(runs, *in_a_row([*group, "--wait-peer", "500ms", "true"])) == [195, 195, 195, 93]
    assert "this is the 4th schedule in a row, and it got no further than the first" in runs.verdict["message"]
    assert not runs.started[-1].named("started")


def test_a_size_that_does_not_fit_ends_at_once_and_whoever_is_right_waits(runs: Runs) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    zero = runs.start("--group-size", "2", "--group-rank", "0", "--group-endpoint", endpoint, "true")
    odd = runs.start(
        *("--group-size", "3", "--group-rank", "1", "--group-endpoint", endpoint, "true"), run_dir=runs.folder / "odd"
    )
    assert odd.wait() == 2
    assert "does not take this node: it is in a group of 3, and rank 0 in one of 2" in odd.stderr
    assert not odd.named("started")
    right = runs.start(
        *("--group-size", "2", "--group-rank", "1", "--group-endpoint", endpoint, "true"), run_dir=runs.folder / "one"
    )
    assert (zero.wait(), right.wait()) == (0, 0)


def test_trouble_with_the_work_at_the_end_does_not_hide_that_a_schedule_failed(runs: Runs) -> None:
    assert codes(runs, *in_a_row(["--on-exit", "exit 3", *FAILS])) == [7, 7, 7, 93]


def test_a_log_dir_is_where_schedules_are_counted_too(runs: Runs) -> None:
    folder = runs.folder / "logs"
    for number, code in enumerate((7, 7, 7, 93), 1):
        words = [*FTRUN, "--log-dir", str(folder), *FAILS]  # `Runs` would give it a run dir
        environment = runs.environment | {"MA_SCHEDULE_CNT": str(number)}
        process = subprocess.run(words, env=environment, cwd=runs.folder, capture_output=True, timeout=DEADLINE)
        assert process.returncode == code, process.stderr
    assert len(list(folder.glob("*_restartable"))) == 4
    assert (folder / "history.json").exists()


def test_progress_begins_a_new_row(runs: Runs) -> None:
    further = python("ft.beat(2); sys.exit(7)")
    assert codes(runs, (1, FAILS), (2, FAILS), (3, further), *[(n, FAILS) for n in (4, 5, 6)]) == [7] * 5 + [93]


def test_the_same_steps_over_again_are_none(runs: Runs) -> None:
    """Those of the first schedule are, but it is the first of the row all the same."""
    code = "import time\nfor step in range(9): ft.beat(step); time.sleep(0.01)\nsys.exit(7)"
    assert codes(runs, *in_a_row(python(code))) == [7, 7, 7, 93]


def test_a_success_or_a_stop_from_outside_does_not_count(runs: Runs) -> None:
    well = python("ft.beat()")
    assert codes(runs, (1, FAILS), (2, FAILS), (3, well)) == [7, 7, 0]
    stopped = schedule(runs, 4, "sleep", "3600")
    stopped.until("spawned")
    stopped.process.terminate()
    assert stopped.wait() == 143
    assert codes(runs, (5, FAILS), (6, FAILS)) == [7, 93]


def test_a_device_fault_speaks_for_another_node_and_begins_a_new_row(runs: Runs, tmp_path: Path) -> None:
    reset = tmp_path / "reset.json"
    assert codes(runs, (1, FAILS), (2, FAILS)) == [7, 7]
    faulty = ["--reset-file", str(reset), "--heal-timeout", "1s", "--grace", "off", *python(HANGS)]
    run = schedule(runs, 3, *faulty, RANK="0")
    run.until("first_beat")
    rank = {"RankId": 0, "LogicId": 0, "Status": "fault", "Policy": "", "ErrorCode": [1], "ErrorCodeHex": "80E01801"}
    content = {"RankList": [rank], "UpdateTime": 1, "RetryTime": 0, "FaultFlushing": False, "GracefulExit": 0}
    reset.with_suffix(".new").write_text(json.dumps(content))
    reset.with_suffix(".new").rename(reset)
    assert run.wait() == 197, run.log()
    assert codes(runs, *[(n, FAILS) for n in (4, 5, 6, 7)]) == [7, 7, 7, 93]


def test_another_job_in_the_same_folder_begins_a_new_row(runs: Runs) -> None:
    assert codes(runs, *in_a_row(FAILS)) == [7, 7, 7, 93]
    assert codes(runs, *in_a_row(FAILS)) == [7, 7, 7, 93]


def test_a_container_that_is_started_again_is_the_same_schedule(runs: Runs) -> None:
    assert codes(runs, *[(1, FAILS)] * 3, (2, FAILS), (2, FAILS), (3, FAILS)) == [7] * 6
    assert codes(runs, (4, FAILS)) == [93]


def test_two_tasks_are_one_schedule(runs: Runs) -> None:
    for number, code in ((1, 7), (2, 7), (3, 7), (4, 93)):
        both = [schedule(runs, number, *FAILS, pod=task) for task in "ab"]
        assert [run.wait() for run in both] == [code, code], [run.log() for run in both]


def test_the_phases_of_a_job_have_rows_of_their_own(runs: Runs) -> None:
    """The first may take three schedules, and so may the second."""
    code = "import os; ft.beat(); sys.exit(7 * (os.environ['MA_SCHEDULE_CNT'] != sys.argv[1]))"
    words = {name: json.dumps(python(code, number)) for name, number in (("fetch", "4"), ("train", "7"))}
    phases = [f"[[phase]]\nname = '{name}'\ncommand = {command}" for name, command in words.items()]
    (runs.folder / "job.toml").write_text("\n".join(phases))
    lives = [(number, ["--config", str(runs.folder / "job.toml")]) for number in range(1, 8)]
    assert codes(runs, *lives) == [7, 7, 7, 7, 7, 7, 0]


def test_what_no_restart_cures_is_so_in_the_fourth_schedule_too(runs: Runs) -> None:
    assert codes(runs, (1, FAILS), (2, FAILS), (3, FAILS)) == [7, 7, 7]
    assert codes(runs, (4, ["--restart-on", "failure", *python("sys.exit(2)")])) == [94]


def test_a_success_in_the_fourth_schedule_is_one(runs: Runs) -> None:
    assert codes(runs, (1, FAILS), (2, FAILS), (3, FAILS), (4, ["true"])) == [7, 7, 7, 0]


@pytest.mark.parametrize("content", ["", "{", '{"schema": 9}', '{"schema": 1, "faults": [], "schedules": [3, {}]}'])
def test_a_history_that_is_none_costs_a_record_and_nothing_else(runs: Runs, content: str) -> None:
    state = runs.folder / "state"
    state.mkdir()
    (state / "history.json").write_text(content)
    run = schedule(runs, 4, *FAILS)
    assert run.wait() == 7, run.log()
    assert run.named("problem")
    assert len(json.loads((state / "history.json").read_text())["schedules"]) == 1


def test_a_state_dir_that_cannot_be_written_stops_nothing(runs: Runs) -> None:
    run = schedule(runs, 1, "sh", "-c", "exit 7", state=Path("/proc/nowhere"))
    assert run.wait() == 7, run.log()


# --- the schedule's number --------------------------------------------------------------------------------------------


def annotations(runs: Runs, **said: str) -> list[str]:
    path = runs.folder / "annotations"
    path.write_text("".join(f"{key}={json.dumps(text)}\n" for key, text in said.items()))
    return ["--annotations", str(path)]


ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"


@pytest.mark.parametrize(
    ("given", "annotation", "told"),
    [
        ({"JOBSET_RESTART_ATTEMPT": "2"}, None, "3"),
        ({}, "2", "3"),
        ({}, "0", "1"),
        ({}, "many", "1"),
        ({"SLURM_RESTART_COUNT": "4"}, "2", "5"),
        ({"MA_SCHEDULE_CNT": "7", "SLURM_RESTART_COUNT": "4"}, "2", "7"),
        ({"MA_SCHEDULE_CNT": ""}, "2", "3"),
        ({"SLURM_RESTART_COUNT": "9" * 5000}, None, "1"),
    ],
)
def test_the_number_is_what_the_platform_says(
    runs: Runs, given: dict[str, str], annotation: str | None, told: str
) -> None:
    options = [] if annotation is None else annotations(runs, **{ATTEMPT: annotation})
    run = runs.run(*options, "sh", "-c", "echo $MA_SCHEDULE_CNT", **given)
    assert run.stdout == told + "\n", run.log()
    assert runs.verdict["schedule_cnt"] == int(told)


# --- a verdict that is shared -----------------------------------------------------------------------------------------


def test_a_task_that_is_stopped_for_the_verdict_of_another_ends_with_it(runs: Runs) -> None:
    other = schedule(runs, 1, "--node-name", "other", "sleep", "3600")
    other.until("spawned")
    first = schedule(runs, 1, "--node-name", "first", *HANG, *python(HANGS))
    assert first.wait() == 195, first.log()
    other.process.terminate()
    assert other.wait() == 195, other.log()
    assert (runs.verdict["verdict"], runs.verdict["exit_code"], runs.verdict["node"]) == ("hang-limit", 195, "first")
    assert runs.verdict["message"].endswith("(on first)")
    assert other.records[-1]["event"] == "ended"
    assert other.records[-1]["exit_code"] == 195


def verdict(runs: Runs, **changed: Any) -> None:
    """Of another task."""
    state = runs.folder / "state"
    state.mkdir(exist_ok=True)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    told = {"schema": 1, "verdict": "node-fault", "exit_code": 197, "node": "n1", "device": "npu0", "why": "gone"}
    content = json.dumps(told | {"schedule_cnt": 2, "time": now} | changed)
    (state / "verdict.new").write_text(content)
    (state / "verdict.new").rename(state / "verdict.json")


def stopped(runs: Runs, *words: str, before: Callable[[], None]) -> Run:
    run = schedule(runs, 2, *(words or ("sleep", "3600")))
    run.until("spawned")
    before()
    run.process.terminate()
    run.wait()
    return run


def test_a_verdict_of_this_schedule_is_taken_over(runs: Runs) -> None:
    run = stopped(runs, before=lambda: verdict(runs))
    assert run.wait() == 197, run.log()
    assert (runs.verdict["verdict"], runs.verdict["node"], runs.verdict["message"]) == (
        "node-fault",
        "n1",
        "gone (on n1)",
    )


NOT_OURS = {
    "of another schedule": {"schedule_cnt": 1},
    "of an earlier job": {"time": "2026-01-01T00:00:00Z"},
    "without a time": {"time": "soon"},
    "of another form": {"schema": 2},
    "without a code": {"exit_code": "197"},
}


@pytest.mark.parametrize("changed", NOT_OURS.values(), ids=NOT_OURS.keys())
def test_a_verdict_that_is_not_of_this_schedule_is_not_taken(runs: Runs, changed: dict[str, Any]) -> None:
    run = stopped(runs, before=lambda: verdict(runs, **changed))
    assert run.wait() == 143, run.log()
    assert runs.verdict["verdict"] == "stopped"


def test_a_stop_without_any_verdict_is_a_stop(runs: Runs) -> None:
    run = stopped(runs, before=lambda: None)
    assert run.wait() == 143, run.log()
    assert not (runs.folder / "state" / "verdict.json").exists()


def test_one_that_fails_by_itself_keeps_its_own_end(runs: Runs) -> None:
    verdict(runs)
    run = schedule(runs, 2, "sh", "-c", "exit 7")
    assert run.wait() == 7, run.log()


@pytest.mark.parametrize("words", [["sh", "-c", "exit 7"], ["true"], ["sh", "-c", "kill -9 $$"]])
def test_an_end_of_the_commands_own_is_no_verdict_for_others(runs: Runs, words: list[str]) -> None:
    schedule(runs, 1, *words).wait()
    assert not (runs.folder / "state" / "verdict.json").exists()


def test_the_first_verdict_stands(runs: Runs) -> None:
    for name in ("first", "second"):
        assert schedule(runs, 1, "--node-name", name, *HANG, *python(HANGS)).wait() == 195
    told = json.loads((runs.folder / "state" / "verdict.json").read_text())
    assert told["node"] == "first"
    assert {name: told[name] for name in ("schema", "verdict", "exit_code", "device", "schedule_cnt")} == {
        "schema": 1,
        "verdict": "hang-limit",
        "exit_code": 195,
        "device": None,
        "schedule_cnt": 1,
    }


# --- annotations ------------------------------------------------------------------------------------------------------

RETRY, HANG_RETRY = "fault-tolerance/job-retry-num", "fault-tolerance/hang-retry"
UNCONDITIONAL, POD = "fault-tolerance/job-unconditional-retry", "fault-tolerance/pod-retry-num"
QUICK = ("--hang-timeout", "300ms", "--grace", "off", "--backoff", "1ms", "--max-restarts", "1")


def test_the_platform_says_that_a_hang_is_restarted(runs: Runs) -> None:
    run = runs.run(*QUICK, *annotations(runs, **{RETRY: "3", HANG_RETRY: "true"}), *python(HANGS))
    assert run.wait() == 195, run.log()
    assert len(run.named("restart")) == 1


@pytest.mark.parametrize("said", [{RETRY: "3", HANG_RETRY: "false"}, {RETRY: "3"}], ids=["no", "nothing"])
def test_the_platform_says_that_a_hang_is_left_as_it_is(runs: Runs, said: dict[str, str]) -> None:
    run = runs.start(*QUICK, *annotations(runs, **said), *python(HANGS))
    wait_for(lambda: len(run.named("cleared")) > 1, "two suspicions")
    assert (run.run_dir / "run.log").read_text().count("since fault-tolerance/hang-retry is not set") == 1
    assert not run.named("hang", "stopping")
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 143, run.log()


def test_the_user_s_own_word_on_restarts_wins_over_the_platform_s(runs: Runs) -> None:
    run = runs.run(*QUICK, "--restart-on", "fault", *annotations(runs, **{RETRY: "3"}), *python(HANGS))
    assert run.wait() == 195, run.log()
    assert not run.named("restart")


def test_the_platforms_unconditional_retry_wants_the_commands_own_code(runs: Runs) -> None:
    said = {RETRY: "3", UNCONDITIONAL: "true", "recover-strategy": "recover-in-place"}
    run = runs.run(*QUICK, *annotations(runs, **said), *FAILS)
    assert run.wait() == 7, run.log()
    assert len(run.named("restart")) == 1


def test_what_is_for_others_is_written_down_as_it_came(runs: Runs) -> None:
    said = {RETRY: "3", POD: "2", "fault-retry-times": "4", "recover-strategy": "recover,dump"}
    run = runs.run(*annotations(runs, **said, unheard="of"), "true")
    assert run.wait() == 0, run.log()
    assert run.named("started")[0]["annotations"] == said
    assert not run.named("problem")
    assert run.stderr == ""


@pytest.mark.parametrize(("key", "text"), [(RETRY, "abc"), (RETRY, "0"), (RETRY, "129"), (HANG_RETRY, "maybe")])
def test_a_value_that_is_none_is_told_and_the_default_holds(runs: Runs, key: str, text: str) -> None:
    run = runs.run(*QUICK, *annotations(runs, **{key: text}), *python(HANGS))
    assert run.wait() == 195, run.log()
    assert len(run.named("restart")) == 1, "as by default"
    (problem,) = run.named("problem")
    assert f"{key} is {text!r}" in problem["what"]
    assert f"{key} is {text!r}" in run.stderr


@pytest.mark.parametrize(
    ("options", "environment", "file", "restarts"),
    [
        ((), {}, "none", 1),
        ((), {"FTRUN_RESTART_ON": "none"}, "failure", 0),
        (("--restart-on", "hang"), {"FTRUN_RESTART_ON": "none"}, "failure", 1),
    ],
    ids=["before the file", "after the environment", "after the option"],
)
def test_the_platform_comes_after_who_started_it_and_before_the_file(
    runs: Runs, options: tuple[str, ...], environment: dict[str, str], file: str, restarts: int
) -> None:
    (runs.folder / "job.toml").write_text(f"restart-on = '{file}'\nannotations = '{runs.folder}/annotations'")
    annotations(runs, **{RETRY: "3", HANG_RETRY: "true"})
    words = [*QUICK, "--config", str(runs.folder / "job.toml"), *options]
    run = runs.run(*words, *python(HANGS), **environment)
    assert run.wait() == 195, run.log()
    assert len(run.named("restart")) == restarts


@pytest.mark.parametrize("kind", ["missing", "folder", "link"])
def test_a_file_that_is_not_there_is_a_matter_of_usage(runs: Runs, kind: str) -> None:
    path = runs.folder / "annotations"
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("/nonexistent")
    run = runs.run("--annotations", str(path), "touch", "started")
    assert run.wait() == 2, run.log()
    assert str(path) in run.stderr
    assert run.stderr.count("\n") == 1
    assert not (runs.folder / "started").exists()


@pytest.mark.parametrize("kind", ["huge", "binary", "one line", "endless", "fifo"])
def test_a_mad_file_stops_nothing(runs: Runs, kind: str) -> None:
    path = runs.folder / "annotations"
    if kind == "huge":
        path.write_text(f'a="{"b" * 60}"\n' * 200_000)
    elif kind == "binary":
        path.write_bytes(bytes(range(256)) * 40)
    elif kind == "one line":
        path.write_text(f'{RETRY}="' + "9" * (4 << 20))
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(path)
    run = runs.start("--annotations", str(path), "true")
    wait_for(lambda: run.process.poll() is not None, f"its end: {kind}", 30)
    assert run.wait() == 0, run.log()
    assert len(run.stderr) < 10_000
    assert all(len(record["what"]) < 1000 for record in run.named("problem"))
    assert len(run.named("problem")) < 20
