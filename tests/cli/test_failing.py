"""End to end: a command that fails is restarted where that can help, and ends at once with 94 where it cannot."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from support.control_group import limited
from support.runs import DEADLINE, FTRUN, HOUSE, Run, Runs, state_of, wait_for

FAILURE = ("--restart-on", "failure", "--backoff", "1ms", "--grace", "off")
CURED = "if ft.attempt().is_restart: sys.exit(0)\n"


def program(runs: Runs, code: str, name: str = "train.py") -> list[str]:
    """A script in a file, with the hooks as `ft`."""
    head = f"import sys; sys.path.insert(0, {str(HOUSE / 'hooks')!r}); import ftrun_hooks as ft\n"
    (runs.folder / name).write_text(head + code)
    return [sys.executable, str(runs.folder / name)]


def exits(run: Run) -> list[dict[str, object]]:
    return [{k: r[k] for k in ("code", "signal", "rule", "oom_kills") if k in r} for r in run.named("exited")]


INCURABLE = {
    "usage": ("sys.exit(2)", "exited with 2"),
    "import": ("import no_such_module", "No module named 'no_such_module' (train.py:2 in <module>)"),
    "syntax": ("def train(:\n", "SyntaxError: invalid syntax"),
    "assertion": ("ft.beat(7); assert 1 == 2, 'odd'", "AssertionError: odd (train.py:2 in <module>)"),
}


@pytest.mark.parametrize("rule", INCURABLE)
def test_permanent_error_ends_at_once_with_94(runs: Runs, rule: str) -> None:
    code, why = INCURABLE[rule]
    run = runs.ends(94, *FAILURE, *program(runs, code))
    assert "restart" not in run.order
    assert [found["rule"] for found in exits(run)] == [rule]
    assert (runs.verdict["verdict"], runs.verdict["exit_code"]) == ("non-recoverable", 94)
    assert why in runs.verdict["message"]


def test_exit_status_2_of_arguments_that_ran_before_is_an_ordinary_failure(runs: Runs) -> None:
    run = runs.ends(0, *FAILURE, "sh", "-c", "case $MA_PROC_START_CNT in 1) exit 7;; 2) exit 2;; *) exit 0;; esac")
    assert [found.get("code") for found in exits(run)] == [7, 2, 0]


def test_exit_status_2_in_a_pod_that_ran_the_command_before_is_an_ordinary_failure(runs: Runs) -> None:
    script = "[ $MA_PROC_START_CNT = 3 ] && exit 2; exit 0"
    runs.ends(0, *FAILURE, "sh", "-c", script, MA_PROC_START_CNT="3")


CONFIGURATIONS = {
    "a key that is missing": "config = {'rate': 1}\nlr = config['lr']",
    "a file that is missing": "open('conf/train.yaml')",
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_an_invalid_configuration_ends_at_once_with_94(runs: Runs, name: str) -> None:
    run = runs.ends(94, *FAILURE, *program(runs, CONFIGURATIONS[name]))
    assert [found["rule"] for found in exits(run)] == ["configuration"]


@pytest.mark.parametrize("code", ["{'x': 1}['y']", "ft.beat(1)\nopen('c.yaml')"])
def test_what_may_be_no_invalid_configuration_is_restarted(runs: Runs, code: str) -> None:
    run = runs.ends(0, *FAILURE, *program(runs, CURED + code))
    assert [r["reason"] for r in run.named("restart")] == ["failure"]


def test_a_heartbeat_that_ftrun_sees_only_with_the_end_counts_for_its_cause(runs: Runs) -> None:
    """The heartbeat and the end of the command come while ftrun is stopped, so it sees both at once."""
    beats = "import os, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\nft.beat(1); sys.exit(2)"
    run = runs.start(*FAILURE, *program(runs, CURED + beats), str(runs.folder / "go"))
    command = int(str(run.until("spawned")["pid"]))
    os.kill(run.pid, signal.SIGSTOP)
    try:
        (runs.folder / "go").touch()
        wait_for(lambda: state_of(command) == "Z", "it has ended")
    finally:
        os.kill(run.pid, signal.SIGCONT)
    assert run.wait() == 0, run.log()
    assert [r["reason"] for r in run.named("restart")] == ["failure"]


def test_same_error_at_each_start_uses_up_the_restart_budget(runs: Runs) -> None:
    """As tokens out of bounds of the vocabulary do (Cerebras): that alone is no proof of a permanent error."""
    run = runs.ends(93, *FAILURE, *program(runs, "raise ValueError('no such data set')"))
    assert [r["consecutive"] for r in run.named("restart")] == [1, 2, 3]
    assert "ValueError: no such data set" in runs.verdict["message"]


def test_program_that_reports_a_permanent_failure_is_not_restarted(runs: Runs) -> None:
    code = "ft.beat(1); ft.fail('the loss is nan', recoverable=False); sys.exit(7)"
    run = runs.ends(94, "--restart-on", "hang", *program(runs, code))
    assert runs.verdict["message"] == "the loss is nan"
    assert "restart" not in run.order
    assert "cause    the loss is nan; the command exited with 7\n" in run.ftctl("report").stdout


# --- how it is known --------------------------------------------------------------------------------------------------


def test_shell_around_the_program_does_not_hide_its_error(runs: Runs) -> None:
    words = program(runs, "assert False, 'odd'")
    runs.ends(94, *FAILURE, "sh", "-c", f"{' '.join(words)} | cat >&2; exit 3")
    assert "AssertionError: odd (train.py:2 in <module>)" in runs.verdict["message"]


def test_optional_import_does_not_explain_a_later_failure(runs: Runs) -> None:
    optional = program(runs, "import no_such_module", "optional.py")
    words = program(runs, CURED + "ft.beat(1); raise RuntimeError('a broken connection')")
    run = runs.ends(0, *FAILURE, "sh", "-c", f"{' '.join(optional)} || true; {' '.join(words)}")
    assert len(run.named("restart")) == 1


def test_last_lines_of_kept_output_show_a_failed_assertion_in_c(runs: Runs) -> None:
    said = "train: model.cpp:7: main: Assertion `rows == 3' failed."
    logs = ["--log-dir", str(runs.folder / "logs")]  # beside which `Runs` would give a run dir
    command = ["sh", "-c", 'echo "$0" >&2; kill -ABRT $$', said]
    words = [*FTRUN, *logs, *FAILURE, *command]
    done = subprocess.run(words, env=runs.environment, capture_output=True, timeout=DEADLINE)
    assert done.returncode == 94, done.stderr
    assert said.encode() in done.stderr, "it is passed on"


def test_crash_keeps_its_stack(runs: Runs) -> None:
    words = program(runs, "import ctypes\ndef step(): ctypes.string_at(0)\nstep()")
    run = runs.ends(139, "sh", "-c", f"{' '.join(words)}; exit $?")
    (exited,) = run.named("exited")
    assert exited["why"] == "the command exited with 139 (train.py:3 in step)"
    assert exited["stack"][-2:] == ["train.py:3 in step", "train.py:4 in <module>"]
    shown = subprocess.run(
        [str(HOUSE / "bin" / "ftctl"), "report", "--run-dir", str(run.run_dir)], capture_output=True, text=True
    )
    assert "Stack of the crash, the innermost call first:" in shown.stdout


def test_an_exception_keeps_its_stack_without_any_output(runs: Runs) -> None:
    run = runs.ends(1, *program(runs, "def step(): raise ValueError('a|b')\ndef main():\n    step()\nmain()"))
    (exited,) = run.named("exited")
    assert exited["stack"] == ["train.py:2 in step", "train.py:4 in main", "train.py:5 in <module>"]


def test_program_with_an_excepthook_of_its_own_is_understood(runs: Runs) -> None:
    code = "sys.excepthook = lambda *_: print('mine')\nassert False, 'odd'"
    run = runs.ends(94, *FAILURE, *program(runs, code))
    assert run.stdout == "mine\n"
    assert "AssertionError: odd" in runs.verdict["message"]


@pytest.mark.slow
@pytest.mark.torch
def test_rank_that_failed_under_torchrun_is_named(runs: Runs) -> None:
    # Rank 0 sleeps for longer than the test may last: torchrun ends it because of rank 1.
    code = "import os, time\nif os.environ['RANK'] == '1': assert False, 'odd'\ntime.sleep(3600)\n"
    _, script = program(runs, code)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script]
    run = runs.ends(94, *FAILURE, *torchrun, OMP_NUM_THREADS="1")
    assert "rank 1: AssertionError: odd (train.py:3" in runs.verdict["message"]
    assert "ChildFailedError" not in runs.verdict["message"]
    assert "restart" not in run.order


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def little_memory(runs: Runs) -> Iterator[list[str]]:
    with limited(f"ftrun-{runs.marker[9:21]}", 192 << 20, runs.end) as prefix:
        yield prefix


def test_kill_for_lack_of_memory_is_recorded_as_such(runs: Runs, little_memory: list[str]) -> None:
    code = CURED + "ft.beat(1)\nblocks = []\nwhile True: blocks.append(b'x' * (16 << 20))\n"
    run = runs.ends(0, *FAILURE, *program(runs, code), prefix=little_memory)
    killed, well = exits(run)
    assert killed == {"signal": 9, "rule": "kernel-memory", "oom_kills": 1}
    assert well == {"code": 0}
    assert "the kernel killed 1 of its processes for lack of memory" in run.stderr
