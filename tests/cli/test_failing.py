"""End to end: a command that fails is restarted where that can help, and ends at once with 94 where it cannot."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.runs import DEADLINE, FTCTL, FTRUN, HOUSE, Run, Runs, state_of, wait_for
from support.short import quick

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
    run = runs.run(*FAILURE, *program(runs, code))
    assert run.wait() == 94, run.log()
    assert "restart" not in run.order
    assert [found["rule"] for found in exits(run)] == [rule]
    assert (runs.verdict["verdict"], runs.verdict["exit_code"]) == ("non-recoverable", 94)
    assert why in runs.verdict["message"]


CONFIGURATIONS = {
    "a value that cannot be parsed": "def load_config(text): return {'lr': float(text)}\nload_config('fast')",
    "a key that is missing": "config = {'rate': 1}\nlr = config['lr']",
    "a keyword that is unknown": "class TrainConfig:\n    def __init__(self, lr): pass\nTrainConfig(learning_rat=1)",
    "a file that is missing": "open('conf/train.yaml')",
    "a file that is no JSON": "import json; json.loads('{\"lr\": 1,, }')",
    "a file that is no YAML": "import yaml; yaml.safe_load('a: b: c')",
    "a class of the program": "class RunConfigError(Exception): pass\nraise RunConfigError('lr is negative')",
}


@pytest.mark.parametrize("name", quick(CONFIGURATIONS, ("a key that is missing", "a file that is missing")))
def test_an_invalid_configuration_ends_at_once_with_94(runs: Runs, name: str) -> None:
    run = runs.run(*FAILURE, *program(runs, CONFIGURATIONS[name]))
    assert run.wait() == 94, run.log()
    assert [found["rule"] for found in exits(run)] == ["configuration"]


@pytest.mark.parametrize(
    "code", quick(["{'x': 1}['y']", "ft.beat(1)\nopen('c.yaml')", "float('fast')", "open('data/part-7.bin')"], 2)
)
def test_what_may_be_no_invalid_configuration_is_restarted(runs: Runs, code: str) -> None:
    run = runs.run(*FAILURE, *program(runs, CURED + code))
    assert run.wait() == 0, run.log()
    assert [r["reason"] for r in run.named("restart")] == ["failure"]


@pytest.mark.parametrize("rule", ["usage", "assertion"])
def test_code_of_the_command_is_passed_on_where_failures_are_not_restarted(runs: Runs, rule: str) -> None:
    run = runs.run(*program(runs, INCURABLE[rule][0]))
    assert run.wait() == (2 if rule == "usage" else 1), run.log()
    assert (runs.verdict["verdict"], runs.verdict["exit_code"]) == ("failed", run.wait())
    assert "restart" not in run.order


def test_code_2_after_heartbeats_is_no_usage_error(runs: Runs) -> None:
    run = runs.run(*FAILURE, *program(runs, CURED + "ft.beat(1); sys.exit(2)"))
    assert run.wait() == 0, run.log()
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
    run = runs.run(*FAILURE, *program(runs, "raise ValueError('no such data set')"))
    assert run.wait() == 93, run.log()
    assert [r["consecutive"] for r in run.named("restart")] == [1, 2, 3]
    assert "ValueError: no such data set" in runs.verdict["message"]


@pytest.mark.parametrize("restart_on", ["failure", "hang"])
def test_program_that_reports_a_permanent_failure_is_not_restarted(runs: Runs, restart_on: str) -> None:
    code = "ft.beat(1); ft.fail('the loss is nan', recoverable=False); sys.exit(7)"
    run = runs.run("--restart-on", restart_on, *program(runs, code))
    assert run.wait() == 94, run.log()
    assert runs.verdict["message"] == "the loss is nan"
    assert "restart" not in run.order


def test_failure_that_is_reported_as_recoverable_is_restarted(runs: Runs) -> None:
    run = runs.run(*FAILURE, *program(runs, CURED + "ft.fail('a node is slow', recoverable=True); sys.exit(7)"))
    assert run.wait() == 0, run.log()


# --- how it is known --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", ["{} || exit 1", "{} | cat >&2; exit 3"])
def test_shell_around_the_program_does_not_hide_its_error(runs: Runs, script: str) -> None:
    words = program(runs, "assert False, 'odd'")
    run = runs.run(*FAILURE, "sh", "-c", script.format(" ".join(words)))
    assert run.wait() == 94, run.log()
    assert "AssertionError: odd (train.py:2 in <module>)" in runs.verdict["message"]


def test_optional_import_does_not_explain_a_later_failure(runs: Runs) -> None:
    optional = program(runs, "import no_such_module", "optional.py")
    words = program(runs, CURED + "ft.beat(1); raise RuntimeError('a broken connection')")
    run = runs.run(*FAILURE, "sh", "-c", f"{' '.join(optional)} || true; {' '.join(words)}")
    assert run.wait() == 0, run.log()
    assert len(run.named("restart")) == 1


def test_optional_import_does_not_explain_the_failure_of_another_program(runs: Runs) -> None:
    optional = program(runs, "import no_such_module", "optional.py")
    script = f"[ $MA_PROC_START_CNT = 1 ] || exit 0; {' '.join(optional)} 2>/dev/null || true; sleep 5; exit 7"
    run = runs.run(*FAILURE, "sh", "-c", script)
    assert run.wait() == 0, run.log()
    assert len(run.named("restart")) == 1


def test_only_usage_errors_are_permanent_without_hooks(runs: Runs) -> None:
    """The failed import is not known then: there are three useless restarts, but no job ends too early."""
    run = runs.run("--no-auto-beat", *FAILURE, *program(runs, "import no_such_module"))
    assert run.wait() == 93, run.log()
    assert len(run.named("restart")) == 3
    run = runs.run("--no-auto-beat", *FAILURE, *program(runs, "sys.exit(2)"), run_dir=runs.folder / "other")
    assert run.wait() == 94, run.log()


@pytest.mark.parametrize("said", ["train: model.cpp:7: main: Assertion `rows == 3' failed.", "no such luck"])
def test_last_lines_of_kept_output_show_a_failed_assertion_in_c(runs: Runs, said: str) -> None:
    logs = ["--log-dir", str(runs.folder / "logs")]  # beside which `Runs` would give a run dir
    command = ["sh", "-c", 'echo "$0" >&2; kill -ABRT $$', said]
    words = [*FTRUN, *logs, *FAILURE, *command]
    done = subprocess.run(words, env=runs.environment, capture_output=True, timeout=DEADLINE)
    assert done.returncode == (94 if "Assertion" in said else 93), done.stderr
    assert said.encode() in done.stderr, "it is passed on"


def test_crash_keeps_its_stack(runs: Runs) -> None:
    words = program(runs, "import ctypes\ndef step(): ctypes.string_at(0)\nstep()")
    run = runs.run("sh", "-c", f"{' '.join(words)}; exit $?")
    assert run.wait() == 139, run.log()
    (exited,) = run.named("exited")
    assert exited["why"] == "the command exited with 139 (train.py:3 in step)"
    assert exited["stack"][-2:] == ["train.py:3 in step", "train.py:4 in <module>"]
    shown = subprocess.run(
        [str(HOUSE / "bin" / "ftctl"), "report", "--run-dir", str(run.run_dir)], capture_output=True, text=True
    )
    assert "Stack of the crash, the innermost call first:" in shown.stdout


def test_an_exception_keeps_its_stack_without_any_output(runs: Runs) -> None:
    run = runs.run(*program(runs, "def step(): raise ValueError('a|b')\ndef main():\n    step()\nmain()"))
    assert run.wait() == 1, run.log()
    (exited,) = run.named("exited")
    assert exited["stack"] == ["train.py:2 in step", "train.py:4 in main", "train.py:5 in <module>"]


def test_report_has_the_end_of_output_that_goes_into_a_file(runs: Runs) -> None:
    words = program(
        runs, "print('loading', flush=True); print('bad batch 7', file=sys.stderr, flush=True); sys.exit(3)"
    )
    run = runs.run(*words)
    assert run.wait() == 3, run.log()
    shown = subprocess.run([*FTCTL, "report", "--run-dir", str(run.run_dir)], capture_output=True, text=True).stdout
    tail = shown.partition("Last lines of its output:")[2]
    assert tail.split("\n")[1:3] == ["  loading", "  bad batch 7"]
    assert "[ftrun]" not in tail


def test_program_with_an_excepthook_of_its_own_is_understood(runs: Runs) -> None:
    code = "sys.excepthook = lambda *_: print('mine')\nassert False, 'odd'"
    run = runs.run(*FAILURE, *program(runs, code))
    assert run.wait() == 94, run.log()
    assert run.stdout == "mine\n"
    assert "AssertionError: odd" in runs.verdict["message"]


def test_rank_that_failed_first_is_named(runs: Runs) -> None:
    code = """
import multiprocessing as mp, os, time
def rank(number, failed):
    os.environ['RANK'] = str(number)
    if number == 1:
        time.sleep(0.2); failed.set(); assert False, 'odd'
    failed.wait(); time.sleep(1); raise ConnectionResetError('by peer')  # the consequence comes a second later
if __name__ == '__main__':
    fork = mp.get_context('fork'); failed = fork.Event()
    ranks = [fork.Process(target=rank, args=(n, failed)) for n in range(2)]
    for one in ranks: one.start()
    for one in ranks: one.join()
    sys.exit(1)
"""
    run = runs.run(*FAILURE, *program(runs, code))
    assert run.wait() == 94, run.log()
    assert "rank 1: AssertionError: odd" in runs.verdict["message"]
    assert "ConnectionReset" not in runs.verdict["message"]


@pytest.mark.torch
def test_rank_that_failed_under_torchrun_is_named(runs: Runs) -> None:
    code = "import os, time\nif os.environ['RANK'] == '1': assert False, 'odd'\ntime.sleep(3600)\n"
    _, script = program(runs, code)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script]
    run = runs.run(*FAILURE, *torchrun, OMP_NUM_THREADS="1")
    assert run.wait() == 94, run.log()
    assert "rank 1: AssertionError: odd (train.py:3" in runs.verdict["message"]
    assert "ChildFailedError" not in runs.verdict["message"]
    assert "restart" not in run.order


def test_any_error_message_is_one_short_line(runs: Runs) -> None:
    code = "assert False, '\\x1b[31m\\u2028' + 'x' * 100_000 + '\\nsecond line'"
    run = runs.run(*FAILURE, *program(runs, code))
    assert run.wait() == 94, run.log()[-3000:]
    message = runs.verdict["message"]
    assert "AssertionError: " in message
    assert "second line" not in message
    assert message.isprintable()
    ours = [line for line in run.stderr.splitlines() if "[ftrun]" in line]
    assert len(ours) == 2
    assert all(len(line) < 1000 for line in ours)


# --- limits -----------------------------------------------------------------------------------------------------------


def test_unconditional_retry_ends_with_the_code_of_the_command(runs: Runs) -> None:
    words = program(runs, "ft.beat(1); sys.exit(7)")
    run = runs.run(*FAILURE, *words, FTRUN_UNCONDITIONAL_RETRY="on")
    assert run.wait() == 7, run.log()
    assert len(run.named("restart")) == 3
    assert (runs.verdict["verdict"], runs.verdict["exit_code"]) == ("failed", 7)
    assert run.named("escalated")[0]["exit_code"] == 7


def test_unconditional_retry_does_not_restart_usage_errors(runs: Runs) -> None:
    run = runs.run(*FAILURE, "--unconditional-retry", *program(runs, "sys.exit(2)"))
    assert run.wait() == 94, run.log()


# --- memory -----------------------------------------------------------------------------------------------------------

LIMIT = 192 << 20  # bytes
PARENT = Path("/sys/fs/cgroup")


@pytest.fixture
def little_memory(runs: Runs) -> Iterator[list[str]]:
    """A prefix: what follows it runs in a control group with little memory."""
    first = (PARENT / "cgroup.controllers").exists()
    group = (PARENT if first else PARENT / "memory") / f"ftrun-{runs.marker[9:21]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    try:
        limits = ("memory.max", "memory.swap.max") if first else ("memory.limit_in_bytes", "memory.swappiness")
        try:
            (group / limits[0]).write_text(str(LIMIT))
            (group / "cgroup.procs").open("a").close()
        except OSError as error:
            pytest.skip(f"{group} takes no limit: {error.strerror}")
        if (group / limits[1]).exists():
            (group / limits[1]).write_text("0")
        yield ["sh", "-ec", f'echo $$ >{group}/cgroup.procs\nexec "$@"', "sh"]
    finally:
        runs.end()
        group.rmdir()


def test_kill_for_lack_of_memory_is_recorded_as_such(runs: Runs, little_memory: list[str]) -> None:
    code = CURED + "ft.beat(1)\nblocks = []\nwhile True: blocks.append(b'x' * (16 << 20))\n"
    run = runs.run(*FAILURE, *program(runs, code), prefix=little_memory)
    assert run.wait() == 0, run.log()
    killed, well = exits(run)
    assert killed == {"signal": 9, "rule": "kernel-memory", "oom_kills": 1}
    assert well == {"code": 0}
    assert "the kernel killed 1 of its processes for lack of memory" in run.stderr


def test_other_kill_is_not_recorded_as_lack_of_memory(runs: Runs) -> None:
    code = CURED + "import os; ft.beat(1); os.kill(os.getpid(), 9)"
    run = runs.run(*FAILURE, *program(runs, code))
    assert run.wait() == 0, run.log()
    assert exits(run)[0] == {"signal": 9, "rule": "killed"}
