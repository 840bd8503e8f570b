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

from ftrun.config import option_values
from support.refusals import refusal
from support.runs import Record, Run, Runs, objects, wait_for

STAMPED = re.compile(r"\d{8}_\d{6}_restartable")
FAILURE = ("--restart-on", "failure", "--backoff", "1ms", "--grace", "off")
# N is which start of this phase it is; MA_PROC_START_CNT goes on from one phase to the next.
SEEN = 'N=$(($(grep -c "^$0 " seen 2>/dev/null) + 1)); echo "$0 $N $FTRUN_RUN_DIR" >> seen\n'
Phase = dict[str, Any]


def phase(name: str, script: str = "", **options: Any) -> Phase:
    """A phase that records its start in `seen` and runs the script."""
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
    return [record for record in objects(run_dir / "events.jsonl") if record["event"] in events]


def started(runs: Runs, run: Run, number: int) -> None:
    def look() -> bool:
        assert run.process.poll() is None, run.log()
        return len(seen(runs)) >= number

    wait_for(look, f"start {number}")


def test_phases_run_in_sequence_each_with_its_own_run_dir(runs: Runs) -> None:
    phases = config(runs, phase("fetch"), phase("train", "echo trained"), phase("evaluate"))
    run = runs.ends(0, *phases)
    assert seen(runs) == ["fetch 1", "train 1", "evaluate 1"]
    folders = [line.split()[2] for line in (runs.folder / "seen").read_text().splitlines()]
    assert folders == list(map(str, run_dirs(runs)))
    assert [records(path, "started")[0]["phase"] for path in run_dirs(runs)] == ["fetch", "train", "evaluate"]
    assert [records(path, "ended")[0]["verdict"] for path in run_dirs(runs)] == ["succeeded"] * 3
    assert (runs.verdict["verdict"], runs.verdict["run_dir"]) == ("succeeded", folders[-1])
    assert run.stdout == "trained\n"
    assert run.stderr == ""


def test_phases_that_all_succeeded_all_run_again(runs: Runs) -> None:
    phases = config(runs, phase("fetch"), phase("train"))
    assert [runs.run(*phases).wait(), runs.run(*phases).wait()] == [0, 0]
    assert seen(runs) == ["fetch 1", "train 1", "fetch 2", "train 2"]
    assert len(run_dirs(runs)) == 4


def test_restarted_container_continues_with_the_phase_that_failed(runs: Runs) -> None:
    phases = config(runs, phase("fetch"), phase("train", "exit $((N < 2))"), phase("evaluate"))
    assert runs.run(*phases).wait() == 1
    assert seen(runs) == ["fetch 1", "train 1"], "the third runs only if the second succeeded"
    assert (runs.verdict["verdict"], runs.verdict["exit_code"]) == ("failed", 1)
    assert runs.run(*phases).wait() == 0
    assert seen(runs) == ["fetch 1", "train 1", "train 2", "evaluate 1"]
    assert len(run_dirs(runs)) == 3


def test_killed_ftrun_continues_with_the_interrupted_phase(runs: Runs) -> None:
    phases = config(runs, phase("fetch"), phase("train", "[ $N = 2 ] || exec sleep 3600"))
    killed = runs.start(*phases)
    started(runs, killed, 2)
    killed.process.kill()
    killed.wait()
    runs.ends(0, *phases)
    assert seen(runs) == ["fetch 1", "train 1", "train 2"]
    assert [r["reason"] for r in records(run_dirs(runs)[1], "started")] == ["first", "failure"]


def test_wrong_arguments_of_a_later_phase_end_with_94(runs: Runs) -> None:
    """The count of starts goes on from phase to phase, but each has a command of its own."""
    runs.ends(94, *config(runs, phase("fetch", "exit 0"), phase("train", "exit 2"), **{"restart-on": "failure"}))
    assert seen(runs) == ["fetch 1", "train 1"]


def test_each_phase_has_its_own_restart_budget(runs: Runs) -> None:
    script = "exit $((N < 4))"
    runs.ends(0, *FAILURE, *config(runs, phase("fetch", script), phase("train", script)))
    assert seen(runs) == [f"{name} {n}" for name in ("fetch", "train") for n in (1, 2, 3, 4)]
    assert [[r["consecutive"] for r in records(path, "restart")] for path in run_dirs(runs)] == [[1, 2, 3]] * 2


def test_options_of_a_phase_come_before_those_of_the_file_only(runs: Runs) -> None:
    """And they are none of the other phases."""
    file = {"restart-on": ["failure"], "max-restarts": 5}
    given = {"config": config(runs, {**phase("fetch"), "max-restarts": 1}, phase("train"), **file)[1]}
    fetch, train = option_values.phases(given, {})
    for options, environment, own, other in (
        ({}, {}, 1, 5),
        ({}, {"FTRUN_MAX_RESTARTS": "2"}, 2, 2),
        ({"max-restarts": "0"}, {"FTRUN_MAX_RESTARTS": "2"}, 0, 0),
    ):
        found = [option_values.settings(given | options, environment, one).max_restarts for one in (fetch, train)]
        assert found == [own, other]


# --- stopped from outside ---------------------------------------------------------------------------------------------


END = ("--on-exit", "echo end 0 >> seen")
ENDS_WELL = "trap 'exit 0' TERM; touch ready; while :; do sleep 0.05; done"


def test_stop_during_a_phase_ends_them_all(runs: Runs) -> None:
    script = "trap - TERM; touch ready; exec sleep 3600"
    run = runs.start(*END, *config(runs, phase("train", script), phase("evaluate")))
    wait_for((runs.folder / "ready").exists, "the trap")
    run.process.terminate()
    assert run.wait() == 143, run.log()
    assert seen(runs) == ["train 1", "end 0"]
    assert (runs.verdict["verdict"], runs.verdict["exit_code"]) == ("stopped", 143)


def test_stopped_phase_runs_again_in_the_next_container(runs: Runs) -> None:
    """Although it ended with 0, as requested: it may not have done everything."""
    phases = config(runs, phase("train", f"[ $N = 2 ] && exit 0; {ENDS_WELL}"), phase("evaluate"))
    run = runs.start(*phases)
    wait_for((runs.folder / "ready").exists, "the trap")
    run.process.terminate()
    assert [run.wait(), runs.run(*phases).wait()] == [143, 0]
    assert seen(runs) == ["train 1", "train 2", "evaluate 1"]


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock of a state dir: other writers wait."""
    path.parent.mkdir()
    with path.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def test_stop_between_two_phases_ends_them_all(runs: Runs) -> None:
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


# --- bad input --------------------------------------------------------------------------------------------------------

VALID = {"name": "fetch", "command": "touch seen"}
WRONG: dict[str, tuple[list[Phase], dict[str, Any], str]] = {
    "twice the same name": ([VALID, VALID], {}, "two phases have the name 'fetch'"),
    "no command": ([VALID, {"name": "train"}], {}, "phase 'train' has no command"),
    "an open quote": ([VALID, {"name": "train", "command": "echo 'a"}], {}, "No closing quotation"),
    "no name": ([VALID, {"command": "true"}], {}, "a phase has the name None"),
    "a path as a name": ([{**VALID, "name": "../x"}], {}, "'../x'"),
    "a slip": ([VALID | {"max-restart": 3}], {}, "unknown key 'max-restart' (did you mean 'max-restarts'?)"),
    "an option of the whole job": ([VALID | {"run-dir": "/tmp/x"}], {}, "'run-dir'"),
    "a wrong value": ([VALID, {**VALID, "name": "train", "grace": "soon"}], {}, "phase train: grace: 'soon'"),
    "no table": ([], {"phase": 3}, "write [[phase]]"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_error_in_any_phase_is_reported_before_the_first_starts(
    runs: Runs, case: tuple[list[Phase], dict[str, Any], str]
) -> None:
    phases, file, why = case
    assert why in refusal(runs.folder, *config(runs, *phases, **file), *(["true"] if not phases else []))


def test_command_beside_phases_is_refused(runs: Runs) -> None:
    assert "'touch' would never run" in refusal(runs.folder, *config(runs, VALID), "touch", "seen")


PHASES_FILES = {
    "torn": '{"schema": 1, "phases": [{"name": "fet',
    "in another order": '{"schema": 1, "phases": [{"name": "train", "run_dir": "", "succeeded": true},'
    ' {"name": "fetch", "run_dir": "", "succeeded": true}]}',
}


@pytest.mark.parametrize("content", PHASES_FILES.values(), ids=PHASES_FILES.keys())
def test_phases_file_of_other_phases_is_kept_and_all_run_again(runs: Runs, content: str) -> None:
    runs.run_dir.mkdir()
    (runs.run_dir / "phases.json").write_text(content)
    run = runs.ends(0, *config(runs, phase("fetch"), phase("train")))
    assert seen(runs) == ["fetch 1", "train 1"]
    (aside,) = runs.run_dir.glob("phases.json.other-*")
    assert aside.read_text() == content
    assert run.stderr.count("\n") == 1
    assert "all phases run again" in run.stderr


def test_impossible_run_dir_in_the_phases_file_is_not_used(runs: Runs) -> None:
    runs.run_dir.mkdir()
    note = {"schema": 1, "phases": [{"name": "fetch", "run_dir": "..", "succeeded": False}]}
    (runs.run_dir / "phases.json").write_text(json.dumps(note))
    runs.ends(0, *config(runs, phase("fetch")))
    assert seen(runs) == ["fetch 1"]


def test_phases_file_that_cannot_be_written_is_no_obstacle(runs: Runs) -> None:
    run = runs.ends(0, *config(runs, phase("fetch", "rm run/phases.json; mkdir run/phases.json"), phase("train")))
    assert seen(runs) == ["fetch 1", "train 1"]
    assert "phases.json: Is a directory" in run.stderr


def test_impossible_state_dir_is_a_usage_error(runs: Runs) -> None:
    run = runs.ends(2, "--state-dir", "/proc/nowhere", *config(runs, phase("fetch")))
    assert run.stderr.count("\n") == 1
    assert seen(runs) == []


def test_two_tasks_with_one_state_dir_do_not_interfere(runs: Runs) -> None:
    script = 'touch "$SLURM_PROCID"; while ! [ -e 0 -a -e 1 ]; do sleep 0.05; done'
    words = ["--state-dir", str(runs.folder / "state"), *config(runs, phase("fetch", script), phase("train"))]
    both = [runs.start(*words, SLURM_PROCID=task) for task in "01"]
    assert [run.wait() for run in both] == [0, 0], [run.log() for run in both]
    assert sorted(line.split()[0] for line in seen(runs)) == ["fetch", "fetch", "train", "train"]


def test_signals_reach_the_second_phase(runs: Runs) -> None:
    script = "trap 'echo caught; exit 3' USR1; touch ready; while :; do sleep 0.05; done"
    run = runs.start(*config(runs, phase("fetch"), phase("train", script)))
    wait_for((runs.folder / "ready").exists, "the trap")
    os.kill(run.pid, signal.SIGUSR1)
    assert run.wait() == 3, run.log()
    assert run.stdout == "caught\n"


def test_a_phase_leaves_no_descriptor_open(runs: Runs) -> None:
    """A job of many phases needs no more of them than one.  Two or three are open only while a command is executed."""
    run = runs.ends(0, *config(runs, *(phase(name, "ls /proc/$PPID/fd | wc -l") for name in "abcdefgh")))
    counts = [int(word) for word in run.stdout.split()]
    assert len(counts) == 8
    assert counts[-1] <= counts[0] + 4
