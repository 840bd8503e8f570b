"""What PID 1 loads before it starts the command: each module delays the command's first instruction."""

import subprocess
import sys
from pathlib import Path
from typing import Final

from ftrun.pid1.clients.registry import TABLE
from support.runs import HOUSE

LOADED = f"""
import os, sys
bare = set(sys.modules)
sys.path[:0] = [{str(HOUSE / "supervisor")!r}, {str(HOUSE / "hooks")!r}]
fork = os.fork
def first_fork():
    os.fork = fork
    print("loaded", *set(sys.modules) - bare, file=sys.stderr)
    return fork()
os.fork = first_fork
from ftrun.cli.entry import ftrun
ftrun()
"""
# Of ftrun and its hooks, packages included: each takes about 0.3 ms.  Among them are early_evidence and stalls,
# which are asked at each check, core/ranks/shared, whose names of rungs the options need, core/rules/regain, which is
# asked at each checkpoint, host/standard_input, which notes where that is before the first start, and
# core/rules/checkpoint_names, which tells whether a checkpoint is beyond the highest.
MODULES: Final = 99
STANDARD: Final = 36  # of the standard library, beyond those of a bare interpreter: not ctypes, struct, termios, math


def before_start(tmp_path: Path, *options: str) -> set[str]:
    command = [sys.executable, "-I", "-c", LOADED, *options, "true"]
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("loaded ")]
    return set(line.split()[1:])


def test_the_modules_that_are_loaded_before_the_command_is_started_are_few(tmp_path: Path) -> None:
    loaded = before_start(tmp_path)
    own = {name for name in loaded if name.partition(".")[0] in ("ftrun", "ftrun_hooks")}
    files = tuple(f"clients.{entry.client.partition('.')[0]}" for entry in TABLE)
    assert not {name for name in own if name.endswith(files)}
    assert {name for name in own if "ftrun_hooks" in name} == {"ftrun_hooks", "ftrun_hooks.layout"}
    assert len(own) <= MODULES, sorted(own)
    assert len(loaded - own) <= STANDARD, sorted(loaded - own)


def test_the_client_of_a_helper_that_an_option_needs_is_loaded_before(tmp_path: Path) -> None:
    assert "ftrun.pid1.clients.activity" in before_start(tmp_path, "--progress", "/nowhere/*")


def test_named_tuples_of_ftrun_are_those_that_are_created_fast() -> None:
    users = [file for file in (HOUSE / "supervisor" / "ftrun").rglob("*.py") if "import NamedTuple" in file.read_text()]
    others = [file.name for file in users if "from ftrun.core.named_tuple import NamedTuple" not in file.read_text()]
    assert others == ["named_tuple.py"]


def test_standbys_are_loaded_before_the_command_only_where_it_may_start_from_one(tmp_path: Path) -> None:
    assert "ftrun.pid1.standby" not in before_start(tmp_path, "--nproc-per-node", "2")
    assert "ftrun.pid1.standby" in before_start(tmp_path, "--standby", "1")
    assert "ftrun.pid1.standby" in before_start(tmp_path, "--nproc-per-node", "2", "--preload", "json")


AT_A_FAILURE = f"""
import os, sys
sys.path[:0] = [{str(HOUSE / "supervisor")!r}, {str(HOUSE / "hooks")!r}]
from ftrun.pid1 import exit_cause
load_rest, before, leave = exit_cause.load_rest, [], os._exit
def settled():
    load_rest()
    before.append(set(sys.modules))
    open(sys.argv[-1], "w").close()
def leaving(code):
    print("loaded", *set(sys.modules) - before[0], file=sys.stderr)
    leave(code)
exit_cause.load_rest, os._exit = settled, leaving
from ftrun.cli.entry import ftrun
ftrun()
"""


def test_a_failure_after_the_first_second_needs_no_further_module(tmp_path: Path) -> None:
    """Then the disk may be gone, or no descriptor free to read one with."""
    settled = tmp_path / "settled"
    script = 'if [ $MA_PROC_START_CNT = 1 ]; then until [ -e "$0" ]; do sleep 0.02; done; kill -9 $$; fi; kill -11 $$'
    options = ("--restart-on", "failure", "--max-restarts", "1", "--backoff", "10ms")
    command = [sys.executable, "-I", "-c", AT_A_FAILURE, *options, "sh", "-c", script, str(settled)]
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("loaded")] or [done.stderr]
    assert line == "loaded"


COLLECTING = f"""
import gc, os, sys
sys.path[:0] = [{str(HOUSE / "supervisor")!r}, {str(HOUSE / "hooks")!r}]
from ftrun.cli.entry import ftrun
from ftrun.pid1 import loop
fork, tidy, seen = os.fork, loop.tidy, []
def first_fork():
    os.fork = fork
    seen.append(gc.isenabled())
    return fork()
def tidied(folder):
    tidy(folder)
    print("collects", *seen, gc.isenabled(), file=sys.stderr)
    open(sys.argv[-1], "w").close()
os.fork, loop.tidy = first_fork, tidied
ftrun()
"""


def test_garbage_is_collected_only_once_the_command_runs(tmp_path: Path) -> None:
    script = 'until [ -e "$0" ]; do sleep 0.02; done'
    command = [sys.executable, "-I", "-c", COLLECTING, "sh", "-c", script, str(tmp_path / "tidied")]
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True)
    assert "collects False True" in done.stderr.splitlines()
