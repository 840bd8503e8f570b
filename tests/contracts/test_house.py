"""Rules of the house, as tests."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.config import option_table
from ftrun.core.rules import exit_codes

ROOT = Path(__file__).resolve().parents[2]

# What PID 1 may load of the standard library beyond what a bare interpreter has. Each costs start time and
# memory for the life of the job: a new one needs a reason.
PID1 = {
    "__future__",
    "ftrun",
    "ftrun_hooks",
    "_ctypes",
    "ctypes",  # inotify
    "_socket",  # the pair of the messenger
    "_json",
    "json",  # records
    "_posixsubprocess",
    "_bisect",
    "_random",
    "_struct",
    "struct",
    "threading",  # of the hooks, whose layout it reads: imported, never used
    "_typing",
    "typing",
    "_locale",
    "locale",
    "collections",
    "contextlib",
    "copyreg",
    "enum",
    "errno",
    "fcntl",
    "functools",
    "gc",  # what Python keeps for reuse is given back at each start
    "itertools",
    "keyword",
    "math",
    "mmap",
    "_weakref",
    "_operator",
    "operator",
    "_collections",
    "_functools",
    "re",
    "reprlib",
    "_sre",
    "select",
    "signal",
    "termios",
    "time",
    "types",
    "warnings",
    "weakref",
    "_weakrefset",
    "atexit",
    "_endian",
}
NEVER = {
    "click",
    "psutil",
    "zmq",
    "asyncio",
    "subprocess",
    "multiprocessing",
    "socket",
    "logging",
    "torch",
}


def test_pid1_loads_listed_modules_only(tmp_path: Path) -> None:
    script = f"""
import sys
bare = set(sys.modules)
import os
from ftrun.cli.run import run
os.environ["TMPDIR"] = {str(tmp_path)!r}
code = run(["sleep", "3"])  # the clients of helpers that can wait are loaded a second after the start
names = sorted({{name.split(".")[0] for name in set(sys.modules) - bare}})
print(code, *names)
"""
    environment = {"PYTHONPATH": f"{ROOT}/supervisor:{ROOT}/hooks", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    code, *names = done.stdout.split()
    assert code == "0"
    assert set(names) - PID1 == set()
    assert set(names) & NEVER == set()


def test_help_names_each_option_and_code(capsys: pytest.CaptureFixture[str]) -> None:
    from ftrun.cli.run import run

    with pytest.raises(SystemExit) as end:
        run(["--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    assert all(f"--{option.name}" in text for option in option_table.OPTIONS)
    assert all(str(verdict.code) in text and verdict.name in text for verdict in exit_codes.TABLE)


def test_no_file_is_longer_than_700_lines() -> None:
    files = [
        *ROOT.glob("supervisor/**/*.py"),
        *ROOT.glob("hooks/**/*.py"),
        *ROOT.glob("bin/*"),
        *ROOT.glob("docs/**/*.py"),
    ]
    long = {str(f.relative_to(ROOT)): n for f in files if (n := len(f.read_text().splitlines())) > 700}
    assert files
    assert long == {}


def test_packages_have_no_logic_and_folders_are_no_packages() -> None:
    assert not (ROOT / "supervisor" / "__init__.py").exists()
    assert not (ROOT / "hooks" / "__init__.py").exists()
    for package in ROOT.glob("supervisor/**/__init__.py"):
        assert "def " not in package.read_text()


def test_readme_commands_exist_and_ci_calls_the_test_command() -> None:
    readme = (ROOT / "README.md").read_text()
    commands = re.findall(r"^(bin/\w+) +#", readme, re.MULTILINE)
    assert commands == ["bin/demo", "bin/check"]
    assert all((ROOT / command).stat().st_mode & 0o111 for command in commands)
    assert "\nbin/check\n" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("program", ["ftrun", "ftctl", "fthang", "waitproof"])
def test_programs_run_from_a_bare_checkout(program: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "bin" / program, "--version"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(program)
