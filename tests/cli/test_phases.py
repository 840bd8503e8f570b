"""End to end: several commands in sequence, each supervised as if it were alone."""

import fcntl
import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.runs import Record, Run, Runs, wait_for

STAMPED = re.compile(r"\d{8}_\d{6}_restartable")
FAILURE = ("--restart-on", "failure", "--backoff", "1ms", "--grace", "off")
# N is which start of this phase it is; MA_PROC_START_CNT goes on from one phase to the next.
SEEN = 'N=$(($(grep -c "^$0 " seen 2>/dev/null) + 1)); echo "$0 $N $FTRUN_RUN_DIR" >> seen\n'
Phase = dict[str, Any]


def phase(name: str, script: str = "", **options: Any) -> Phase:
    """One that writes into `seen` that it was started, and runs the script."""
    return {"name": name, "command": ["sh", "-c", SEEN + script, name], **options}


def config(runs: Runs, *phases: Phase, **options: Any) -> list[str]:
    tables = [options, *phases]
    lines = [[f"{key} = {json.dumps(value)}" for key, value in table.items()] for table in tables]
    text = "\n[[phase]]\n".join("\n".join(of_one) for of_one in lines)
    (runs.folder / "config.toml").write_text(text)
    return ["--config", str(runs.folder / "config.toml")]


def seen(runs: Runs) -> list[str]:
    """The starts: the phase's name, and which start of it this is."""
    try:
        lines = (runs.folder / "seen").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [" ".join(line.split()[:2]) for line in lines]


def run_dirs(runs: Runs, folder: Path | None = None) -> list[Path]:
    return sorted(path for path in (folder or runs.run_dir).iterdir() if STAMPED.fullmatch(path.name))


def records(run_dir: Path, *events: str) -> list[Record]:
    lines = (run_dir / "events.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["event"] in events]


def started(runs: Runs, run: Run, number: int) -> None:
    def look() -> bool:
        assert run.process.poll() is None, run.log()
        return len(seen(runs)) >= number

    wait_for(look, f"start {number}")


def test_they_run_in_sequence_each_with_a_run_dir_of_its_own(runs: Runs) -> None:
    phases = config(runs, phase("fetch"), phase("train", "echo trained"), phase("evaluate"))
    run = runs.run(*phases)
    assert run.wait() == 0, run.log()
    assert seen(runs) == ["fetch 1", "train 1", "evaluate 1"]
    told = [line.split()[2] for line in (runs.folder / "seen").read_text().splitlines()]
    assert told == list(map(str, run_dirs(runs)))
    assert [records(path, "started")[0]["phase"] for path in run_dirs(runs)] == ["fetch", "train", "evaluate"]
    assert [records(path, "ended")[0]["verdict"] for path in run_dirs(runs)] == ["succeeded"] * 3
    assert (runs.verdict["verdict"], runs.verdict["run_dir"]) == ("succeeded", told[-1])
    assert run.stdout == "trained\n"
    assert run.stderr == ""


def test_what_succeeded_as_a_whole_is_run_as_a_whole_once_more(runs: Runs) -> None:
    phases = config(runs, phase("fetch"), phase("train"))
    assert [runs.run(*phases).wait(), runs.run(*phases).wait()] == [0, 0]
    assert seen(runs) == ["fetch 1", "train 1", "fetch 2", "train 2"]
    assert len(run_dirs(runs)) == 4


def test_the_next_runs_only_if_the_earlier_succeeded(runs: Runs) -> None:
    run = runs.run(*config(runs, phase("fetch"), phase("train", "exit 7"), phase("evaluate")))
    assert run.wait() == 7, run.log()
    assert seen(runs) == ["fetch 1", "train 1"]
    assert (runs.verdict["verdict"], runs.verdict["exit_code"]) == ("failed", 7)


def test_a_restarted_container_goes_on_with_the_one_that_failed(runs: Runs) -> None:
    phases = config(runs, phase("fetch"), phase("train", "exit $((N < 2))"), phase("evaluate"))
    assert [runs.run(*phases).wait(), runs.run(*phases).wait()] == [1, 0]
    assert seen(runs) == ["fetch 1", "train 1", "train 2", "evaluate 1"]
    assert len(run_dirs(runs)) == 3


def test_a_killed_ftrun_goes_on_with_the_one_that_was_under_way(runs: Runs) -> None:
    phases = config(runs, phase("fetch"), phase("train", "[ $N = 2 ] || exec sleep 3600"))
    killed = runs.start(*phases)
    started(runs, killed, 2)
    killed.process.kill()
    killed.wait()
    run = runs.run(*phases)
    assert run.wait() == 0, run.log()
    assert seen(runs) == ["fetch 1", "train 1", "train 2"]
    assert [r["reason"] for r in records(run_dirs(runs)[1], "started")] == ["first", "failure"]


def test_a_new_schedule_goes_on_there_too_and_counts_its_starts_anew(runs: Runs) -> None:
    phases = config(runs, phase("fetch"), phase("train", "exit $((MA_SCHEDULE_CNT < 2))"))
    assert runs.run(*phases).wait() == 1
    assert runs.run(*phases, MA_SCHEDULE_CNT="2").wait() == 0
    assert seen(runs) == ["fetch 1", "train 1", "train 2"]
    assert [r["start_cnt"] for r in records(run_dirs(runs)[1], "started")] == [2, 1]


def test_each_has_restart_counts_of_its_own(runs: Runs) -> None:
    script = "exit $((N < 4))"
    run = runs.run(*FAILURE, *config(runs, phase("fetch", script), phase("train", script)))
    assert run.wait() == 0, run.log()
    assert seen(runs) == [f"{name} {n}" for name in ("fetch", "train") for n in (1, 2, 3, 4)]
    assert [[r["consecutive"] for r in records(path, "restart")] for path in run_dirs(runs)] == [[1, 2, 3]] * 2


@pytest.mark.parametrize(
    ("given", "environment", "restarts"),
    [((), {}, 1), ((), {"FTRUN_MAX_RESTARTS": "2"}, 2), (("--max-restarts", "0"), {"FTRUN_MAX_RESTARTS": "2"}, 0)],
    ids=["phase", "environment", "option"],
)
def test_its_own_options_come_after_those_given_and_before_those_of_the_file(
    runs: Runs, given: tuple[str, ...], environment: dict[str, str], restarts: int
) -> None:
    file = {"restart-on": ["failure"], "backoff": "1ms", "max-restarts": 5}
    run = runs.run(*given, *config(runs, phase("train", "exit 7", **{"max-restarts": 1}), **file), **environment)
    assert run.wait() == 93, run.log()
    assert len(seen(runs)) == 1 + restarts


def test_an_option_of_one_is_not_one_of_the_next(runs: Runs) -> None:
    phases = config(runs, phase("fetch", "true", **{"restart-on": "failure"}), phase("train", "exit 7"))
    run = runs.run(*phases)
    assert run.wait() == 7, run.log()
    assert seen(runs) == ["fetch 1", "train 1"]


# --- stopped from outside ---------------------------------------------------------------------------------------------


END = ("--on-exit", "echo end 0 >> seen")
ENDS_WELL = "trap 'exit 0' TERM; touch ready; while :; do sleep 0.05; done"


@pytest.mark.parametrize("script", ["trap - TERM; touch ready; exec sleep 3600", ENDS_WELL])
def test_a_stop_during_one_ends_them_all(runs: Runs, script: str) -> None:
    """Even if it ends well, as it was asked to: it may not have done all."""
    run = runs.start(*END, *config(runs, phase("train", script), phase("evaluate")))
    wait_for((runs.folder / "ready").exists, "the trap")
    run.process.terminate()
    assert run.wait() == 143, run.log()
    assert seen(runs) == ["train 1", "end 0"]
    assert (runs.verdict["verdict"], runs.verdict["exit_code"]) == ("stopped", 143)


def test_one_that_was_stopped_is_started_again_in_the_next_container(runs: Runs) -> None:
    phases = config(runs, phase("train", f"[ $N = 2 ] && exit 0; {ENDS_WELL}"), phase("evaluate"))
    run = runs.start(*phases)
    wait_for((runs.folder / "ready").exists, "the trap")
    run.process.terminate()
    assert [run.wait(), runs.run(*phases).wait()] == [143, 0]
    assert seen(runs) == ["train 1", "train 2", "evaluate 1"]


def test_the_last_one_ends_with_its_own_code_when_it_is_stopped(runs: Runs) -> None:
    run = runs.start(*config(runs, phase("fetch"), phase("train", ENDS_WELL)))
    wait_for((runs.folder / "ready").exists, "the trap")
    run.process.terminate()
    assert run.wait() == 0, run.log()


@contextmanager
def held(path: Path) -> Iterator[None]:
    """The lock of a state dir: who wants to write there waits."""
    path.parent.mkdir()
    with path.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def test_a_stop_between_two_ends_them_all(runs: Runs) -> None:
    state = runs.folder / "state"
    words = ["--state-dir", str(state), *END, *config(runs, phase("fetch"), phase("train"))]
    with held(state / "history.lock"):
        run = runs.start(*words)
        (first,) = wait_for(lambda: run_dirs(runs, state), "the run dir")
        events = first / "events.jsonl"
        wait_for(lambda: events.exists() and b'"ended"' in events.read_bytes(), "the end of the first")
        run.process.terminate()
        assert run.wait() == 143, run.log()
    assert seen(runs) == ["fetch 1", "end 0"]
    assert (runs.verdict["verdict"], runs.verdict["exit_code"]) == ("stopped", 143)
    assert runs.run(*words).wait() == 0
    assert seen(runs)[2:] == ["train 1", "end 0"], "what has succeeded is not repeated"


# --- the end of the container -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 7])
def test_the_work_at_the_end_is_done_once_after_the_last(runs: Runs, code: int) -> None:
    phases = config(runs, phase("fetch"), phase("train", f"exit {code}"), **{"on-exit": "echo end 0 >> seen"})
    run = runs.run(*phases)
    assert run.wait() == code, run.log()
    assert seen(runs) == ["fetch 1", "train 1", "end 0"]


def test_the_work_at_the_end_is_done_after_a_failure_of_the_first(runs: Runs) -> None:
    run = runs.run("--on-exit", "echo end 0 >> seen", *config(runs, phase("fetch", "exit 7"), phase("train")))
    assert run.wait() == 7, run.log()
    assert seen(runs) == ["fetch 1", "end 0"]


# --- bad input --------------------------------------------------------------------------------------------------------

WELL = {"name": "fetch", "command": "touch seen"}
WRONG: dict[str, tuple[list[Phase], dict[str, Any], str]] = {
    "twice the same name": ([WELL, WELL], {}, "two phases have the name 'fetch'"),
    "no command": ([WELL, {"name": "train"}], {}, "phase 'train' has no command"),
    "an empty command": ([WELL, {"name": "train", "command": []}], {}, "phase 'train' has no command"),
    "a command of numbers": ([WELL, {"name": "train", "command": [1]}], {}, "phase 'train' has no command"),
    "an open quote": ([WELL, {"name": "train", "command": "echo 'a"}], {}, "No closing quotation"),
    "no name": ([WELL, {"command": "true"}], {}, "a phase has the name None"),
    "a path as a name": ([{**WELL, "name": "../x"}], {}, "'../x'"),
    "a slip": ([WELL | {"max-restart": 3}], {}, "unknown key 'max-restart' (did you mean 'max-restarts'?)"),
    "a slip in commando": ([{"name": "fetch", "comand": "true"}], {}, "has no command"),
    "an option of the whole job": ([WELL | {"run-dir": "/tmp/x"}], {}, "'run-dir'"),
    "another one": ([WELL | {"on-exit": "true"}], {}, "'on-exit'"),
    "a wrong value": ([WELL, {**WELL, "name": "train", "grace": "soon"}], {}, "phase train: grace: 'soon'"),
    "a wrong value of the file": ([WELL], {"grace": "soon"}, "grace: 'soon'"),
    "no table": ([], {"phase": 3}, "write [[phase]]"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_with_any_of_them_is_told_before_the_first(
    runs: Runs, case: tuple[list[Phase], dict[str, Any], str]
) -> None:
    phases, file, said = case
    run = runs.run(*config(runs, *phases, **file), *(["touch", "seen"] if not phases else []))
    assert run.wait() == 2, run.log()
    assert said in run.stderr
    assert run.stderr.count("\n") == 1
    assert not (runs.folder / "seen").exists()
    assert not runs.run_dir.exists()


def test_a_command_beside_phases_is_refused(runs: Runs) -> None:
    run = runs.run(*config(runs, WELL), "touch", "seen")
    assert run.wait() == 2, run.log()
    assert "'touch' would never run" in run.stderr
    assert run.stderr.count("\n") == 1
    assert not (runs.folder / "seen").exists()


NOTES = {
    "empty": "",
    "torn": '{"schema": 1, "phases": [{"name": "fet',
    "no object": "[1]",
    "no list": '{"schema": 1, "phases": {"name": "fetch"}}',
    "of others": '{"schema": 1, "phases": [{"name": "other", "run_dir": "/x", "succeeded": true}]}',
    "in another order": '{"schema": 1, "phases": [{"name": "train", "run_dir": "", "succeeded": true},'
    ' {"name": "fetch", "run_dir": "", "succeeded": true}]}',
    "nested": "[" * 100_000,
}


@pytest.mark.parametrize("content", NOTES.values(), ids=NOTES.keys())
def test_a_note_that_is_not_of_these_phases_is_kept_aside_and_they_begin_anew(runs: Runs, content: str) -> None:
    runs.run_dir.mkdir()
    (runs.run_dir / "phases.json").write_text(content)
    run = runs.run(*config(runs, phase("fetch"), phase("train")))
    assert run.wait() == 0, run.log()
    assert seen(runs) == ["fetch 1", "train 1"]
    (aside,) = runs.run_dir.glob("phases.json.other-*")
    assert aside.read_text() == content
    assert run.stderr.count("\n") == 1
    assert "all phases run again" in run.stderr


@pytest.mark.parametrize("where", ["/proc/nowhere/x", "a\0b", "..", "20261121_201004_restartable/x"])
def test_a_run_dir_of_the_note_that_cannot_be_is_not_used(runs: Runs, where: str) -> None:
    runs.run_dir.mkdir()
    note = {"schema": 1, "phases": [{"name": "fetch", "run_dir": where, "succeeded": False}]}
    (runs.run_dir / "phases.json").write_text(json.dumps(note))
    run = runs.run(*config(runs, phase("fetch")))
    assert run.wait() == 0, run.log()
    assert seen(runs) == ["fetch 1"]


def test_a_note_that_cannot_be_written_stops_nothing(runs: Runs) -> None:
    run = runs.run(*config(runs, phase("fetch", "rm run/phases.json; mkdir run/phases.json"), phase("train")))
    assert run.wait() == 0, run.log()
    assert seen(runs) == ["fetch 1", "train 1"]
    assert "phases.json: Is a directory" in run.stderr


def test_a_folder_that_cannot_be_is_a_matter_of_usage(runs: Runs) -> None:
    run = runs.run("--state-dir", "/proc/nowhere", *config(runs, phase("fetch")))
    assert run.wait() == 2, run.log()
    assert run.stderr.count("\n") == 1
    assert seen(runs) == []


def test_two_tasks_of_a_job_with_one_state_dir_do_not_disturb_each_other(runs: Runs) -> None:
    script = 'touch "$SLURM_PROCID"; while ! [ -e 0 -a -e 1 ]; do sleep 0.05; done'
    words = ["--state-dir", str(runs.folder / "state"), *config(runs, phase("fetch", script), phase("train"))]
    both = [runs.start(*words, SLURM_PROCID=task) for task in "01"]
    assert [run.wait() for run in both] == [0, 0], [run.log() for run in both]
    assert sorted(line.split()[0] for line in seen(runs)) == ["fetch", "fetch", "train", "train"]


def test_signals_reach_the_second_as_they_reach_the_first(runs: Runs) -> None:
    script = "trap 'echo caught; exit 3' USR1; touch ready; while :; do sleep 0.05; done"
    run = runs.start(*config(runs, phase("fetch"), phase("train", script)))
    wait_for((runs.folder / "ready").exists, "the trap")
    os.kill(run.pid, signal.SIGUSR1)
    assert run.wait() == 3, run.log()
    assert run.stdout == "caught\n"
