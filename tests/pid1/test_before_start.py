"""What PID 1 loads before it starts the command: each module delays the command's first instruction."""

import subprocess
import sys
from pathlib import Path
from typing import Final

from ftrun.pid1.clients.registry import TABLE
from support.runs import HOUSE

LOADED = """
import os, sys
bare = set(sys.modules)
fork = os.fork
def first_fork():
    os.fork = fork
    print("loaded", *set(sys.modules) - bare, file=sys.stderr)
    return fork()
os.fork = first_fork
from ftrun.cli.run import run
sys.exit(run(["-q", *sys.argv[1:], "true"]))
"""
MODULES: Final = 107  # of ftrun and its hooks, packages included: each takes about 0.3 ms


def before_start(tmp_path: Path, *options: str) -> set[str]:
    environment = {"PYTHONPATH": f"{HOUSE}/supervisor:{HOUSE}/hooks", "PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", LOADED, *options]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("loaded ")]
    return {name for name in line.split()[1:] if name.partition(".")[0] in ("ftrun", "ftrun_hooks")}


def test_no_helper_client_is_loaded_before_the_command_is_started(tmp_path: Path) -> None:
    loaded = before_start(tmp_path)
    assert not {name for entry in TABLE for name in loaded if name.endswith(f".{entry.helper}")}
    assert len(loaded) <= MODULES, sorted(loaded)


def test_a_helper_that_an_option_needs_is_loaded_before(tmp_path: Path) -> None:
    assert "ftrun.pid1.clients.checkpoint_watcher" in before_start(tmp_path, "--progress", "/nowhere/*")


def test_named_tuples_of_ftrun_are_those_that_are_created_fast() -> None:
    slow = [file for file in (HOUSE / "supervisor").rglob("*.py") if "import NamedTuple" in file.read_text()]
    others = [file.name for file in slow if "from ftrun.core.named_tuple import NamedTuple" not in file.read_text()]
    assert others == ["named_tuple.py"]
