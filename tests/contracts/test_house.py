"""Rules of the house, as tests."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

from ftrun.config import option_table
from ftrun.core.rules import exit_codes
from ftrun.core.rules.liveness import Limits
from ftrun.core.rules.policy import Membership, Policy

ROOT = Path(__file__).resolve().parents[2]

# What PID 1 may load of the standard library beyond what a bare interpreter has.  Each costs start time and memory for
# the life of the job: a new one needs a reason, as inotify (ctypes), the pair of sockets of the messenger (_socket),
# records (json), what Python keeps for reuse and is given back at each start (gc), and the hooks, which import and
# never use it (threading).
PID1 = """
    __future__ _bisect _collections _ctypes _endian _functools _json _locale _operator _posixsubprocess _random _socket
    _sre _struct _typing _weakref _weakrefset atexit collections contextlib copyreg ctypes enum errno fcntl ftrun
    ftrun_hooks functools gc itertools json keyword locale math mmap operator re reprlib select signal struct termios
    threading time types typing warnings weakref
"""
NEVER = "asyncio click logging multiprocessing psutil socket subprocess torch zmq"


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
    assert set(names) - set(PID1.split()) == set()
    assert set(names) & set(NEVER.split()) == set()


def test_help_names_each_option_and_code(capsys: pytest.CaptureFixture[str]) -> None:
    from ftrun.cli.run import run

    with pytest.raises(SystemExit) as end:
        run(["--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    assert all(f"--{option.name}" in text for option in option_table.OPTIONS)
    assert all(str(verdict.code) in text and verdict.name in text for verdict in exit_codes.TABLE)


def test_each_option_has_an_effect() -> None:
    """Somebody reads it as an attribute of the settings, but for two that other options are read from."""
    read = {
        node.attr
        for path in (ROOT / "supervisor" / "ftrun").rglob("*.py")
        if path.name != "option_table.py" and "settings" in path.read_text()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and _last_name(node.value).endswith("settings")
    }
    named = {option.name.replace("-", "_") for option in option_table.OPTIONS}
    assert named - read == {"config", "annotations"}


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def test_each_field_of_the_policy_is_derived() -> None:
    """A field that nobody fills has its default in every run.  Those that are left out follow from the group, from the
    ranks that ftrun starts, or are no options."""
    made = ast.parse((ROOT / "supervisor" / "ftrun" / "config" / "derived.py").read_text())
    calls = [node for node in ast.walk(made) if isinstance(node, ast.Call)]
    given = {ast.unparse(call.func): {keyword.arg for keyword in call.keywords} for call in calls}
    assert set(Limits._fields) - given["Limits"] == {"idle_together", "kill_timeout", "evidence_timeout"}
    assert set(Policy._fields) - given["Policy"] == {"ranks", "rank_per_device"}
    assert set(Membership._fields) - given["Membership"] == {"group", "member", "elastic", "ends_alone"}


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


def test_there_is_no_import_cycle() -> None:
    """Imports inside functions included."""
    graph = grimp.build_graph("ftrun", "waitproof", "ftctl", cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in sorted(graph.modules)}
    assert "ftrun.core.machine.job" in imported["ftrun.pid1.loop"]
    TopologicalSorter(imported).prepare()  # a CycleError names the modules


@pytest.mark.parametrize("program", ["ftrun", "ftctl", "fthang", "waitproof"])
def test_programs_run_from_a_bare_checkout(program: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "bin" / program, "--version"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(program)
