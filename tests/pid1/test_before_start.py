"""What PID 1 loads before it starts the command, which delays it; and that a failure loads nothing more."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from ftrun.pid1.clients.registry import TABLE
from support.runs import HOUSE

LOADS = f"""
import os, sys
bare = set(sys.modules)
sys.path[:0] = [{str(HOUSE / "supervisor")!r}, {str(HOUSE / "hooks")!r}]
def show_since(before):
    print("loaded", *set(sys.modules) - before, file=sys.stderr)
"""
BEFORE_START = """
fork = os.fork
def first_fork():
    os.fork = fork
    show_since(bare)
    return fork()
os.fork = first_fork
"""
AT_A_FAILURE = """
from ftrun.pid1 import exit_cause
load_rest, settled, leave = exit_cause.load_rest, [], os._exit
def settle():
    load_rest()
    settled.append(set(sys.modules))
    open(sys.argv[-1], "w").close()
def leaving(code):
    show_since(settled[0])
    leave(code)
exit_cause.load_rest, os._exit = settle, leaving
"""
COLLECTING = """
import gc
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
"""
# Of ftrun and its hooks, packages included: each takes about 0.3 ms.
MODULES: Final = 101
STANDARD: Final = 36  # of the standard library, beyond those of a bare interpreter: not termios, math


def shown(folder: Path, word: str, patch: str, *words: str) -> list[str]:
    """What the patch of ftrun shows after `word`."""
    program = f"{LOADS}{patch}\nfrom ftrun.cli.entry import ftrun\nftrun()\n"
    command = [sys.executable, "-I", "-c", program, *words]
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    lines = [line for line in done.stderr.splitlines() if line.startswith(word)]
    assert len(lines) == 1, done.stderr
    return lines[0].split()[1:]


def loaded(folder: Path, patch: str, *words: str) -> set[str]:
    return set(shown(folder, "loaded", patch, *words))


def test_the_modules_that_are_loaded_before_the_command_is_started_are_few(tmp_path: Path) -> None:
    found = loaded(tmp_path, BEFORE_START, "true")
    own = {name for name in found if name.partition(".")[0] in ("ftrun", "ftrun_hooks")}
    files = tuple(f"clients.{entry.client.partition('.')[0]}" for entry in TABLE)
    assert not {name for name in own if name.endswith(files)}
    assert {name for name in own if "ftrun_hooks" in name} == {"ftrun_hooks", "ftrun_hooks.layout"}
    assert len(own) <= MODULES, sorted(own)
    assert len(found - own) <= STANDARD, sorted(found - own)
    assert "ctypes" not in found  # takes 1 ms; `prctl` needs `_ctypes` alone


@pytest.mark.parametrize(
    ("options", "module", "needed"),
    [
        ("--progress /nowhere/*", "clients.activity", True),
        ("--nproc-per-node 2", "standby", False),
        ("--nproc-per-node 2 --preload json", "standby", True),
    ],
)
def test_what_an_option_needs_at_the_start_is_loaded_before(
    tmp_path: Path, options: str, module: str, needed: bool
) -> None:
    assert (f"ftrun.pid1.{module}" in loaded(tmp_path, BEFORE_START, *options.split(), "true")) is needed


def test_named_tuples_of_ftrun_are_those_that_are_created_fast() -> None:
    users = [file for file in (HOUSE / "supervisor" / "ftrun").rglob("*.py") if "import NamedTuple" in file.read_text()]
    others = [file.name for file in users if "from ftrun.core.named_tuple import NamedTuple" not in file.read_text()]
    assert others == ["named_tuple.py"]


def test_a_failure_after_the_first_second_needs_no_further_module(tmp_path: Path) -> None:
    """Then the disk may be gone, or no descriptor free to read one with."""
    script = 'if [ $MA_PROC_START_CNT = 1 ]; then until [ -e "$0" ]; do sleep 0.02; done; kill -9 $$; fi; kill -11 $$'
    options = ("--restart-on", "failure", "--max-restarts", "1", "--backoff", "10ms")
    assert loaded(tmp_path, AT_A_FAILURE, *options, "sh", "-c", script, str(tmp_path / "settled")) == set()


def test_garbage_is_collected_only_once_the_command_runs(tmp_path: Path) -> None:
    script = 'until [ -e "$0" ]; do sleep 0.02; done'
    words = ("sh", "-c", script, str(tmp_path / "tidied"))
    assert shown(tmp_path, "collects", COLLECTING, *words) == ["False", "True"]
