"""The environment is for the command: what Python reads in it changes neither ftrun nor ftctl, and reaches it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.runs import HOUSE, PID1, need_pid1

PATHS = [f"{HOUSE}/supervisor", f"{HOUSE}/hooks"]
SAYS = ("--quiet", "--no-auto-beat", "sh", "-c", 'echo "$0=$(printenv "$0")"')


def done(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "FTRUN_", "MA_"))}
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    environment = plain | {"PATH": path} | environment
    return subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90)


@pytest.fixture
def broken(tmp_path: Path) -> str:
    """A folder of the user's with modules that have the names of ours and of Python's."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("click", "json", "selectors", "ftrun", "zmq", "select"):
        (folder / f"{name}.py").write_text("raise RuntimeError('not for ftrun')\n")
    return str(folder)


@pytest.mark.parametrize("program", ["ftrun", "ftctl"])
@pytest.mark.parametrize("by", ["python", "its first line"])
def test_python_variables_do_not_affect_the_programs(program: str, by: str, broken: str) -> None:
    before = [sys.executable] if by == "python" else []
    for name, value in (("PYTHONPATH", broken), ("PYTHONINSPECT", "1"), ("PYTHONWARNINGS", "error")):
        said = done(*before, str(HOUSE / "bin" / program), "--version", **{name: value})
        assert (said.returncode, said.stderr) == (0, ""), name
        assert said.stdout.startswith(program)


@pytest.mark.parametrize("name", ["PYTHONPATH", "PYTHONINSPECT"])
def test_python_variables_reach_the_command(name: str) -> None:
    for words in ([str(HOUSE / "bin" / "ftrun")], [sys.executable, str(HOUSE / "bin" / "ftrun")]):
        said = done(*words, *SAYS, name, **{name: "/nonexistent/a b"})
        assert (said.returncode, said.stdout, said.stderr) == (0, f"{name}=/nonexistent/a b\n", "")


@pytest.mark.parametrize("name", ["PYTHONHOME", "PYTHONEXECUTABLE", "PYTHONPLATLIBDIR"])
def test_variables_that_stop_python_do_not_stop_bin_ftrun(name: str) -> None:
    said = done(str(HOUSE / "bin" / "ftrun"), *SAYS, name, **{name: "/nonexistent"})
    assert (said.returncode, said.stdout, said.stderr) == (0, f"{name}=/nonexistent\n", "")


@pytest.mark.pid1
@pytest.mark.parametrize("variable", ["", "PYTHONINSPECT"])
def test_early_signal_is_not_lost(variable: str, tmp_path: Path) -> None:
    """As PID 1: nothing but the beginning of `ftrun.cli.entry` has been executed.  Also over the other interpreter."""
    need_pid1()
    code = (
        f"import os, signal, sys; sys.path[:0] = {PATHS}; from ftrun.cli import entry; "
        "os.kill(1, signal.SIGTERM); sys.argv[0] = 'ftrun'; entry.ftrun()"
    )
    given = {variable: "1"} if variable else {}
    said = done(*PID1, sys.executable, "-c", code, "sh", "-c", "trap - TERM; sleep 1000", **given)
    assert said.returncode == 143, said.stderr


@pytest.mark.pid1
def test_signal_mask_reaches_the_command() -> None:
    need_pid1()
    for given in ({}, {"PYTHONINSPECT": "1"}):
        for blocked in ("", "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]);"):
            code = (
                f"import os, signal, sys; {blocked} sys.path[:0] = {PATHS}; from ftrun.cli import entry; "
                "sys.argv[0] = 'ftrun'; entry.ftrun()"
            )
            said = done(*PID1, sys.executable, "-c", code, "grep", "SigBlk", "/proc/self/status", **given)
            assert said.stdout.split()[1] == ("%016x" % (1 << 9) if blocked else "0" * 16), said.stderr
