"""The programs with the oldest packages that pyproject.toml admits, which are what a base image often has."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ftctl.main import VERBS

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow  # it downloads


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    folder = tmp_path_factory.mktemp("oldest")
    oldest = [word.replace(">=", "==") for word in project["dependencies"]]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--target", str(folder)]
    subprocess.run([*pip, *oldest], check=True, timeout=250)
    return folder


def called(
    packages: Path, program: str, *words: str, environment: dict[str, str] | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    paths = [str(packages), str(ROOT / "supervisor"), str(ROOT / "hooks")]
    code = f"import sys; sys.path[:0] = {paths!r}; sys.argv = {[program, *words]!r}\n"
    code += f"from {program}.__main__ import {program}; {program}()"
    own = {**os.environ, **(environment or {})}
    command = [sys.executable, "-I", "-c", code]
    return subprocess.run(command, env=own, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_help_of_ftrun(packages: Path) -> None:
    """Several times: before click 8.5 the names of `--help` are in a random order."""
    for _ in range(6):
        done = called(packages, "ftrun", "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert "--hang-timeout" in done.stdout
        assert "--version" in done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_each_verb(packages: Path, verb: str) -> None:
    done = called(packages, "ftctl", verb, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: ftctl {verb}")


def test_no_verb_is_answered_with_help_and_a_wrong_one_with_a_line(packages: Path) -> None:
    done = called(packages, "ftctl")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Verbs:" in done.stderr
    done = called(packages, "ftctl", "stauts")
    assert (done.returncode, done.stderr) == (2, "ftctl: no such verb: stauts (did you mean 'status'?)\n")
    done = called(packages, "ftctl", "events", "-n", "x")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(packages: Path, shell: str) -> None:
    done = called(packages, "ftctl", "completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    words = {"COMP_WORDS": "ftctl sta", "COMP_CWORD": "sta" if shell == "fish" else "1"}
    done = called(packages, "ftctl", environment={"_FTCTL_COMPLETE": f"{shell}_complete", **words})
    assert "status" in done.stdout


def test_a_run_and_what_is_said_of_it(packages: Path, tmp_path: Path) -> None:
    done = called(packages, "ftrun", "--run-dir", str(tmp_path / "run"), "--", "sh", "-c", "exit 3")
    assert done.returncode == 3, done.stderr
    for verb in ("status", "events", "explain", "history", "timeline"):
        done = called(packages, "ftctl", verb, "--run-dir", str(tmp_path / "run"), folder=tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), verb
        assert done.stdout
    done = called(packages, "ftrun", "--no-such")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
