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
    failed_before(runs, 1, 2)
    words = [*HANG, *python(HANGS)]
    assert codes(runs, (3, words), (4, words)) == [195, 93]
    assert runs.verdict["verdict"] == "failure-limit"
    assert runs.verdict["schedule_cnt"] == 4
    assert FOURTH in runs.verdict["message"]


def test_group_that_never_assembles_has_a_last_schedule(runs: Runs) -> None:
    """The command was never started in any of them."""
    failed_before(runs, 1, 2)
    group = ["--group-size", "2", "--group-rank", "0", "--group-endpoint", f"127.0.0.1:{free_port()}"]
    words = [*group, "--wait-peer", "500ms", "true"]
    assert codes(runs, (3, words), (4, words)) == [195, 93]
    assert FOURTH in runs.verdict["message"]
    assert not runs.started[-1].named("started")


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


def test_success_a_stop_and_a_restarted_container_do_not_count(runs: Runs) -> None:
    failed_before(runs, 1, 2)
    assert codes(runs, (3, python("ft.beat()"))) == [0]
    stopped = schedule(runs, 4, "sleep", "3600")
    stopped.until("spawned")
    stopped.process.terminate()
    assert stopped.wait() == 143
    assert codes(runs, (5, FAILS), (5, FAILS), (6, FAILS)) == [7, 7, 93]


@pytest.mark.parametrize(
    ("words", "code"), [(["--restart-on", "failure", *python("sys.exit(2)")], 94), (["true"], 0)], ids=["94", "success"]
)
def test_fourth_schedule_keeps_an_end_of_its_own(runs: Runs, words: list[str], code: int) -> None:
    failed_before(runs, 1, 2, 3)
    assert codes(runs, (4, words)) == [code]


def test_malformed_history_is_a_record_and_the_job_runs(runs: Runs) -> None:
    state = runs.folder / "state"
    state.mkdir()
    (state / "history.json").write_text("{")
    run = schedule(runs, 4, *FAILS)
    assert run.wait() == 7, run.log()
    assert run.named("problem")
    assert len(json.loads((state / "history.json").read_text())["schedules"]) == 1


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
        ({"SLURM_RESTART_COUNT": "4"}, "2", "5"),
        ({"MA_SCHEDULE_CNT": "7", "SLURM_RESTART_COUNT": "4"}, "2", "7"),
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


def test_end_of_the_command_itself_is_no_verdict_for_others(runs: Runs) -> None:
    schedule(runs, 1, "sh", "-c", "exit 7").wait()
    assert not (runs.folder / "state" / "verdict.json").exists()


# --- annotations ------------------------------------------------------------------------------------------------------

RETRY, HANG_RETRY = "fault-tolerance/job-retry-num", "fault-tolerance/hang-retry"
UNCONDITIONAL, POD = "fault-tolerance/job-unconditional-retry", "fault-tolerance/pod-retry-num"
QUICK = ("--hang-timeout", "300ms", "--grace", "off", "--backoff", "1ms", "--max-restarts", "1")


@pytest.mark.parametrize(("options", "code"), [((), 93), (("--after-limit", "reschedule"), 195)])
def test_hang_is_restarted_where_the_platform_asks_for_it(runs: Runs, options: tuple[str, ...], code: int) -> None:
    """ModelArts: after the last restart upon suspension the job has failed, also where failures are rescheduled."""
    given = {RETRY: "3", HANG_RETRY: "true", UNCONDITIONAL: "true"}
    run = runs.ends(code, *QUICK, *options, *annotations(runs, **given), *python(HANGS))
    assert len(run.named("restart")) == 1


def test_hang_is_left_alone_where_the_platform_asks_for_no_restart(runs: Runs) -> None:
    run = runs.start(*QUICK, *annotations(runs, **{RETRY: "3"}), *python(HANGS))
    wait_for(lambda: len(run.named("cleared")) > 1, "two suspicions")
    assert (run.run_dir / "run.log").read_text().count("since fault-tolerance/hang-retry is not set") == 1
    assert not run.named("hang", "stopping")
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 143, run.log()


def test_annotations_for_others_are_recorded_unchanged(runs: Runs) -> None:
    given = {RETRY: "3", POD: "2", "fault-retry-times": "4", "recover-strategy": "recover,dump"}
    run = runs.ends(0, *annotations(runs, **given, unheard="of"), "true")
    assert run.named("started")[0]["annotations"] == given
    assert not run.named("problem")
    assert run.stderr == ""


@pytest.mark.parametrize("kind", ["missing", "folder", "link"])
def test_missing_annotations_file_is_a_usage_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "annotations"
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("/nonexistent")
    assert f"--annotations {path}: " in refusal(tmp_path, "--annotations", str(path), "true")


@pytest.mark.parametrize("kind", ["huge", "endless", "fifo"])
def test_malformed_annotations_file_does_not_stop_the_job(runs: Runs, kind: str) -> None:
    path = runs.folder / "annotations"
    if kind == "huge":
        path.write_text(f'a="{"b" * 60}"\n' * 200_000)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(path)
    run = runs.ends(0, "--annotations", str(path), "true")
    assert len(run.stderr) < 10_000
    assert all(len(record["what"]) < 1000 for record in run.named("problem"))
    assert len(run.named("problem")) < 20
