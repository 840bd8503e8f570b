"""With --log-dir an ftrun continues the run that a killed one left there, and no other."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.runs import FTRUN, Run, Runs, wait_for

# Says how it was started; it ends once there is a file `end`.
SHOW = 'echo "$MA_PROC_START_CNT $FTRUN_RESTART_REASON" >> seen; until [ -e end ]; do sleep 0.05; done'
COMMAND = ("sh", "-c", SHOW)
CONTINUED, ANEW = "2 failure", "1 first"


def seen(runs: Runs) -> list[str]:
    file = runs.folder / "seen"
    return file.read_text().splitlines() if file.exists() else []


def run_dirs(runs: Runs) -> list[Path]:
    return sorted((runs.folder / "logs").glob("*_restartable"))


def begin(runs: Runs, command: Sequence[str] = COMMAND, **environment: str) -> Run:
    """Until the command runs.  `Runs` would give it a run dir."""
    before = len(seen(runs))
    process = subprocess.Popen(
        [*FTRUN, "--quiet", "--log-dir", str(runs.folder / "logs"), *command],
        env=runs.environment | environment,
        cwd=runs.folder,
        start_new_session=True,
    )
    run = Run(process, runs.folder / "logs", runs.folder / "out", runs.folder / "err")
    runs.started.append(run)
    wait_for(lambda: len(seen(runs)) > before or process.poll() is not None, "the command")
    return run


def kill(run: Run) -> None:
    run.process.kill()
    run.process.wait()


def end(runs: Runs, run: Run) -> None:
    (runs.folder / "end").touch()
    assert run.wait() == 0
    (runs.folder / "end").unlink()


def test_a_killed_ftrun_is_continued_with_its_counts(runs: Runs) -> None:
    for number in (1, 2, 3):
        run = begin(runs)
        assert seen(runs)[-1].split()[0] == str(number)
        kill(run)
    end(runs, begin(runs))
    assert seen(runs) == [ANEW, CONTINUED, "3 failure", "4 failure"]
    assert len(run_dirs(runs)) == 1


def test_a_run_that_has_ended_is_not_continued(runs: Runs) -> None:
    kill(begin(runs))
    end(runs, begin(runs))
    end(runs, begin(runs))
    assert seen(runs) == [ANEW, CONTINUED, ANEW]
    assert len(run_dirs(runs)) == 2


OTHERS: dict[str, tuple[Sequence[str], dict[str, str]]] = {
    "another command": (("sh", "-c", SHOW, "other"), {}),
    "another schedule": (COMMAND, {"MA_SCHEDULE_CNT": "2"}),
    "another task": (COMMAND, {"LOCAL_RANK": "1"}),
    "another node": (COMMAND, {"NODE_NAME": "other"}),
    "another job": (("--group-job", "other", *COMMAND), {}),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_run_of_something_else_is_not_continued(runs: Runs, what: str) -> None:
    command, environment = OTHERS[what]
    kill(begin(runs))
    end(runs, begin(runs, command, **environment))
    assert seen(runs) == [ANEW, ANEW]
    assert len(run_dirs(runs)) == 2


def test_a_run_is_continued_beside_those_of_others(runs: Runs) -> None:
    """The tasks of a node share the folder."""
    for task in ("0", "1"):
        kill(begin(runs, LOCAL_RANK=task))
    for task in ("0", "1"):
        end(runs, begin(runs, LOCAL_RANK=task))
    assert seen(runs) == [ANEW, ANEW, CONTINUED, CONTINUED]
    assert len(run_dirs(runs)) == 2


def test_a_run_whose_ftrun_lives_is_not_continued(runs: Runs) -> None:
    first = begin(runs)
    second = begin(runs)
    (runs.folder / "end").touch()
    assert first.wait() == second.wait() == 0
    assert seen(runs) == [ANEW, ANEW]


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"schema": 1, "run": 3, "ended": false}', b"\0" * 70000])
def test_a_state_that_is_none_is_not_continued(runs: Runs, content: bytes) -> None:
    kill(begin(runs))
    (run_dir,) = run_dirs(runs)
    (run_dir / "state.json").write_bytes(content)
    end(runs, begin(runs))
    assert seen(runs) == [ANEW, ANEW]
    assert (run_dir / "state.json").read_bytes() == content
