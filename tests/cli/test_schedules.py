"""End to end: what outlives the container, and what the platform says of the job."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from support.ports import free_port
from support.refusals import refusal
from support.runs import DEADLINE, FTRUN, Run, Runs, python, wait_for
from support.short import quick

HANG = ("--hang-timeout", "300ms", "--max-restarts", "0", "--grace", "off")
HANGS = "import time; ft.beat(); time.sleep(3600)"
FAILS = python("ft.beat(); sys.exit(7)")
FOURTH = "this is the 4th schedule in a row, and it got no further than the first"


def schedule(runs: Runs, number: int, *words: str, state: Path | None = None, pod: str = "", **more: Any) -> Run:
    """One container, on a pod of its own: only the state dir is that of the earlier ones."""
    run_dir = runs.folder / f"pod-{number}-{len(runs.started)}{pod}"
    kept = ["--state-dir", str(state or runs.folder / "state")]
    return runs.start(*kept, *words, run_dir=run_dir, MA_SCHEDULE_CNT=str(number), **more)


def codes(runs: Runs, *schedules: tuple[int, list[str]]) -> list[int]:
    """The exit codes of schedules one after another; of each its number, and the options and command."""
    return [schedule(runs, number, *words).wait() for number, words in schedules]


def failed_before(runs: Runs, *numbers: int) -> None:
    """A state dir in which these schedules have failed without progress."""
    entry = {"node": "n", "wall": 1.5, "best_step": None, "best_checkpoint": None, "phase": "", "job": ""}
    entry |= {"progressed": False, "faulted": False, "failed": True}
    earlier = [entry | {"key": f"earlier/{number}", "number": number} for number in numbers]
    (runs.folder / "state").mkdir()
    content = json.dumps({"schema": 1, "faults": [], "schedules": earlier})
    (runs.folder / "state" / "history.json").write_text(content)


# --- the fourth in a row ----------------------------------------------------------------------------------------------


def test_fourth_schedule_that_hangs_is_the_last(runs: Runs) -> None:
    words = [*HANG, *python(HANGS)]
    assert codes(runs, *[(number, words) for number in (1, 2, 3, 4)]) == [195, 195, 195, 93]
    assert runs.verdict["verdict"] == "failure-limit"
    assert runs.verdict["schedule_cnt"] == 4
    assert FOURTH in runs.verdict["message"]


def test_two_tasks_count_as_one_schedule(runs: Runs) -> None:
    for number, code in ((1, 7), (2, 7), (3, 7), (4, 93)):
        both = [schedule(runs, number, *FAILS, pod=task) for task in "ab"]
        assert [run.wait() for run in both] == [code, code], [run.log() for run in both]
    assert FOURTH in runs.verdict["message"]


def test_unconditional_retry_does_not_prevent_the_last_schedule(runs: Runs) -> None:
    failed_before(runs, 1, 2, 3)
    options = ["--restart-on", "failure", "--unconditional-retry", "--max-restarts", "0"]
    assert codes(runs, (4, [*options, *FAILS])) == [93]


@pytest.mark.parametrize("rank", quick([0, 1]))
def test_group_that_never_assembles_has_a_last_schedule(runs: Runs, rank: int) -> None:
    """The command was never started in any of them."""
    failed_before(runs, 1, 2)
    group = ["--group-size", "2", "--group-rank", str(rank), "--group-endpoint", f"127.0.0.1:{free_port()}"]
    words = [*group, "--wait-peer", "500ms", "true"]
    assert codes(runs, (3, words), (4, words)) == [195, 93]
    assert FOURTH in runs.verdict["message"]
    assert not runs.started[-1].named("started")


def test_member_with_another_group_size_is_refused_and_the_others_wait(runs: Runs) -> None:
    endpoint = f"127.0.0.1:{free_port()}"

    def member(size: int, rank: int) -> Run:
        group = ("--group-size", str(size), "--group-rank", str(rank), "--group-endpoint", endpoint)
        return runs.start(*group, "true", run_dir=runs.folder / f"run-{size}-{rank}")

    zero, odd = member(2, 0), member(3, 1)
    assert odd.wait() == 2
    assert "does not take this node: it is in a group of 3, and rank 0 in one of 2" in odd.stderr
    assert not odd.named("started")
    right = member(2, 1)
    assert (zero.wait(), right.wait()) == (0, 0)


def test_log_dir_counts_schedules_also_where_repeated_steps_and_a_failing_hook_end_them(runs: Runs) -> None:
    """The steps of the first schedule are progress, those of the others are not; `--on-exit` fails in each."""
    folder = runs.folder / "logs"
    steps = python("import time\nfor step in range(9): ft.beat(step); time.sleep(0.01)\nsys.exit(7)")
    for number, code in enumerate((7, 7, 7, 93), 1):
        words = [*FTRUN, "--log-dir", str(folder), "--on-exit", "exit 3", *steps]  # `Runs` would give it a run dir
        environment = runs.environment | {"MA_SCHEDULE_CNT": str(number)}
        process = subprocess.run(words, env=environment, cwd=runs.folder, capture_output=True, timeout=DEADLINE)
        assert process.returncode == code, process.stderr
    assert len(list(folder.glob("*_restartable"))) == 4
    assert (folder / "history.json").exists()


def test_progress_begins_a_new_row(runs: Runs) -> None:
    failed_before(runs, 1, 2)
    further = python("ft.beat(2); sys.exit(7)")
    assert codes(runs, (3, further), *[(n, FAILS) for n in (4, 5, 6)]) == [7, 7, 7, 93]


def test_success_a_stop_and_a_restarted_container_do_not_count(runs: Runs) -> None:
    failed_before(runs, 1, 2)
    assert codes(runs, (3, python("ft.beat()"))) == [0]
    stopped = schedule(runs, 4, "sleep", "3600")
    stopped.until("spawned")
    stopped.process.terminate()
    assert stopped.wait() == 143
    assert codes(runs, (5, FAILS), (5, FAILS), (6, FAILS)) == [7, 7, 93]


def test_device_fault_begins_a_new_row(runs: Runs, tmp_path: Path) -> None:
    """It is a reason to believe that another node will do better."""
    reset = tmp_path / "reset.json"
    failed_before(runs, 1, 2)
    faulty = ["--reset-file", str(reset), "--heal-timeout", "1s", "--grace", "off", *python(HANGS)]
    run = schedule(runs, 3, *faulty, RANK="0")
    run.until("first_beat")
    rank = {"RankId": 0, "LogicId": 0, "Status": "fault", "Policy": "", "ErrorCode": [1], "ErrorCodeHex": "80E01801"}
    content = {"RankList": [rank], "UpdateTime": 1, "RetryTime": 0, "FaultFlushing": False, "GracefulExit": 0}
    reset.with_suffix(".new").write_text(json.dumps(content))
    reset.with_suffix(".new").rename(reset)
    assert run.wait() == 197, run.log()
    assert codes(runs, (4, FAILS), (5, FAILS)) == [7, 7]


def test_another_job_in_the_same_state_dir_begins_a_new_row(runs: Runs) -> None:
    failed_before(runs, 1, 2, 3, 4)
    assert codes(runs, (1, FAILS), (2, FAILS)) == [7, 7]


def test_each_phase_has_a_row_of_its_own(runs: Runs) -> None:
    """The first may take three schedules, and so may the second."""
    code = "import os; ft.beat(); sys.exit(7 * (os.environ['MA_SCHEDULE_CNT'] != sys.argv[1]))"
    words = {name: json.dumps(python(code, number)) for name, number in (("fetch", "4"), ("train", "7"))}
    phases = [f"[[phase]]\nname = '{name}'\ncommand = {command}" for name, command in words.items()]
    (runs.folder / "job.toml").write_text("\n".join(phases))
    with_phases = ["--config", str(runs.folder / "job.toml")]
    assert codes(runs, *[(number, with_phases) for number in range(1, 8)]) == [7, 7, 7, 7, 7, 7, 0]


@pytest.mark.parametrize(
    ("words", "code"), [(["--restart-on", "failure", *python("sys.exit(2)")], 94), (["true"], 0)], ids=["94", "success"]
)
def test_fourth_schedule_keeps_an_end_of_its_own(runs: Runs, words: list[str], code: int) -> None:
    failed_before(runs, 1, 2, 3)
    assert codes(runs, (4, words)) == [code]


@pytest.mark.parametrize("content", ["{", '{"schema": 1, "faults": [], "schedules": [3, {}]}'])
def test_malformed_history_is_a_record_and_the_job_runs(runs: Runs, content: str) -> None:
    state = runs.folder / "state"
    state.mkdir()
    (state / "history.json").write_text(content)
    run = schedule(runs, 4, *FAILS)
    assert run.wait() == 7, run.log()
    assert run.named("problem")
    assert len(json.loads((state / "history.json").read_text())["schedules"]) == 1


def test_state_dir_that_cannot_be_written_is_no_obstacle(runs: Runs) -> None:
    run = schedule(runs, 1, "sh", "-c", "exit 7", state=Path("/proc/nowhere"))
    assert run.wait() == 7, run.log()


# --- the schedule's number --------------------------------------------------------------------------------------------


def annotations(runs: Runs, **given: str) -> list[str]:
    path = runs.folder / "annotations"
    path.write_text("".join(f"{key}={json.dumps(text)}\n" for key, text in given.items()))
    return ["--annotations", str(path)]


ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"


def test_schedule_number_is_that_of_the_platform(runs: Runs) -> None:
    cases: list[tuple[dict[str, str], str | None, str]] = [
        ({"JOBSET_RESTART_ATTEMPT": "2"}, None, "3"),
        ({}, "2", "3"),
        ({}, "many", "1"),
        ({"SLURM_RESTART_COUNT": "4"}, "2", "5"),
        ({"MA_SCHEDULE_CNT": "7", "SLURM_RESTART_COUNT": "4"}, "2", "7"),
        ({"MA_SCHEDULE_CNT": ""}, "2", "3"),
        ({"SLURM_RESTART_COUNT": "9" * 5000}, None, "1"),
    ]
    for given, annotation, number in cases:
        options = [] if annotation is None else annotations(runs, **{ATTEMPT: annotation})
        run = runs.run(
            *options, "sh", "-c", "echo $MA_SCHEDULE_CNT", run_dir=runs.folder / f"{len(runs.started)}", **given
        )
        assert run.stdout == number + "\n", (given, run.log())
        assert runs.verdict["schedule_cnt"] == int(number)


# --- a verdict that is shared -----------------------------------------------------------------------------------------


def stored_verdict(runs: Runs) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((runs.folder / "state" / "verdict.json").read_text())
    return found


def test_stopped_task_ends_with_the_first_verdict_of_another(runs: Runs) -> None:
    other = schedule(runs, 1, "--node-name", "other", "sleep", "3600")
    other.until("spawned")
    for name in ("first", "second"):
        assert schedule(runs, 1, "--node-name", name, *HANG, *python(HANGS)).wait() == 195
    found = stored_verdict(runs)
    assert found["node"] == "first"
    assert {name: found[name] for name in ("schema", "verdict", "exit_code", "device", "schedule_cnt")} == {
        "schema": 1,
        "verdict": "hang-limit",
        "exit_code": 195,
        "device": None,
        "schedule_cnt": 1,
    }
    other.process.terminate()
    assert other.wait() == 195, other.log()
    assert (runs.verdict["verdict"], runs.verdict["exit_code"], runs.verdict["node"]) == ("hang-limit", 195, "first")
    assert runs.verdict["message"].endswith("(on first)")
    assert other.records[-1]["event"] == "ended"
    assert other.records[-1]["exit_code"] == 195


def put_verdict(runs: Runs, **changed: Any) -> None:
    """A verdict of another task."""
    state = runs.folder / "state"
    state.mkdir(exist_ok=True)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    entry = {"schema": 1, "verdict": "node-fault", "exit_code": 197, "node": "n1", "device": "npu0", "why": "gone"}
    content = json.dumps(entry | {"schedule_cnt": 2, "time": now} | changed)
    (state / "verdict.new").write_text(content)
    (state / "verdict.new").rename(state / "verdict.json")


VERDICTS: dict[str, dict[str, Any] | None] = {
    "of this schedule": {},
    "none": None,
    "of another schedule": {"schedule_cnt": 1},
    "of an earlier job": {"time": "2026-01-01T00:00:00Z"},
    "of another form": {"schema": 2},
}


@pytest.mark.parametrize("kind", VERDICTS)
def test_only_a_verdict_of_this_schedule_is_taken_over(runs: Runs, kind: str) -> None:
    run = schedule(runs, 2, "sleep", "3600")
    run.until("spawned")
    changed = VERDICTS[kind]
    if changed is not None:
        put_verdict(runs, **changed)
    run.process.terminate()
    taken = kind == "of this schedule"
    assert run.wait() == (197 if taken else 143), run.log()
    assert runs.verdict["verdict"] == ("node-fault" if taken else "stopped")
    if taken:
        assert (runs.verdict["node"], runs.verdict["message"]) == ("n1", "gone (on n1)")
    if changed is None:
        assert not (runs.folder / "state" / "verdict.json").exists()


def test_command_that_fails_by_itself_keeps_its_code(runs: Runs) -> None:
    put_verdict(runs)
    run = schedule(runs, 2, "sh", "-c", "exit 7")
    assert run.wait() == 7, run.log()


@pytest.mark.parametrize("words", [["sh", "-c", "exit 7"], ["true"], ["sh", "-c", "kill -9 $$"]])
def test_end_of_the_command_itself_is_no_verdict_for_others(runs: Runs, words: list[str]) -> None:
    schedule(runs, 1, *words).wait()
    assert not (runs.folder / "state" / "verdict.json").exists()


# --- annotations ------------------------------------------------------------------------------------------------------

RETRY, HANG_RETRY = "fault-tolerance/job-retry-num", "fault-tolerance/hang-retry"
UNCONDITIONAL, POD = "fault-tolerance/job-unconditional-retry", "fault-tolerance/pod-retry-num"
QUICK = ("--hang-timeout", "300ms", "--grace", "off", "--backoff", "1ms", "--max-restarts", "1")


@pytest.mark.parametrize(("options", "code"), [((), 93), (("--after-limit", "reschedule"), 195)])
def test_hang_is_restarted_where_the_platform_asks_for_it(runs: Runs, options: tuple[str, ...], code: int) -> None:
    """ModelArts: after the last restart upon suspension the job has failed, also where failures are rescheduled."""
    given = {RETRY: "3", HANG_RETRY: "true", UNCONDITIONAL: "true"}
    run = runs.run(*QUICK, *options, *annotations(runs, **given), *python(HANGS))
    assert run.wait() == code, run.log()
    assert len(run.named("restart")) == 1


@pytest.mark.parametrize("given", [{RETRY: "3", HANG_RETRY: "false"}, {RETRY: "3"}], ids=["no", "nothing"])
def test_hang_is_left_alone_where_the_platform_asks_for_no_restart(runs: Runs, given: dict[str, str]) -> None:
    run = runs.start(*QUICK, *annotations(runs, **given), *python(HANGS))
    wait_for(lambda: len(run.named("cleared")) > 1, "two suspicions")
    assert (run.run_dir / "run.log").read_text().count("since fault-tolerance/hang-retry is not set") == 1
    assert not run.named("hang", "stopping")
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 143, run.log()


def test_unconditional_retry_of_the_platform_ends_with_the_code_of_the_command(runs: Runs) -> None:
    given = {RETRY: "3", UNCONDITIONAL: "true", "recover-strategy": "recover-in-place"}
    run = runs.run(*QUICK, *annotations(runs, **given), *FAILS)
    assert run.wait() == 7, run.log()
    assert len(run.named("restart")) == 1


def test_annotations_for_others_are_recorded_unchanged(runs: Runs) -> None:
    given = {RETRY: "3", POD: "2", "fault-retry-times": "4", "recover-strategy": "recover,dump"}
    run = runs.run(*annotations(runs, **given, unheard="of"), "true")
    assert run.wait() == 0, run.log()
    assert run.named("started")[0]["annotations"] == given
    assert not run.named("problem")
    assert run.stderr == ""


def test_invalid_annotation_is_reported_and_the_default_holds(runs: Runs) -> None:
    """Each wrong value: tests/config/test_annotations.py."""
    run = runs.run(*QUICK, *annotations(runs, **{HANG_RETRY: "maybe"}), *python(HANGS))
    assert run.wait() == 195, run.log()
    assert len(run.named("restart")) == 1, "as by default"
    (problem,) = run.named("problem")
    assert f"{HANG_RETRY} is 'maybe'" in problem["what"]
    assert f"{HANG_RETRY} is 'maybe'" in run.stderr


@pytest.mark.parametrize("kind", ["missing", "folder", "link"])
def test_missing_annotations_file_is_a_usage_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "annotations"
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("/nonexistent")
    assert f"--annotations {path}: " in refusal(tmp_path, "--annotations", str(path), "true")


@pytest.mark.parametrize("kind", ["huge", "binary", "one line", "endless", "fifo"])
def test_malformed_annotations_file_does_not_stop_the_job(runs: Runs, kind: str) -> None:
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
    assert run.wait() == 0, run.log()
    assert len(run.stderr) < 10_000
    assert all(len(record["what"]) < 1000 for record in run.named("problem"))
    assert len(run.named("problem")) < 20
