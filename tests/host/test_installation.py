"""The hint how to install what is missing works where ftrun runs from a checkout, too."""

import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from ftrun.host import installation
from support.runs import HOUSE

CODE = "import sys; sys.path[:0] = sys.argv[1:]; from ftrun.host import installation as i; print(i.command({}))"


def hint(root: Path, extras: str) -> list[str]:
    """What an ftrun that is no package of its Python says, in words of a shell."""
    folders = [str(root / "supervisor"), str(root / "hooks")]
    done = subprocess.run(
        [sys.executable, "-ISc", CODE.format(extras), *folders], capture_output=True, text=True, cwd="/", timeout=60
    )
    assert done.returncode == 0, done.stderr
    return shlex.split(done.stdout)


def test_a_checkout_is_installed_from_its_folder_with_what_is_missing() -> None:
    assert hint(HOUSE, "'metrics'") == ["pip", "install", f"{HOUSE}[metrics]"]
    assert hint(HOUSE, "") == ["pip", "install", str(HOUSE)]
    assert (HOUSE / "pyproject.toml").is_file()


def test_a_folder_with_a_space_stays_one_word_and_one_that_cannot_be_installed_is_not_named(tmp_path: Path) -> None:
    copy = tmp_path / "a checkout"
    for part in ("supervisor", "hooks"):
        shutil.copytree(HOUSE / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    assert hint(copy, "'page', 'otel', 'page'") == ["pip", "install", "ftrun[page,otel]"]
    shutil.copy(HOUSE / "pyproject.toml", copy)
    assert hint(copy, "'page', 'otel', 'page'") == ["pip", "install", f"{copy}[page,otel]"]


def test_an_installed_ftrun_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda name: name)
    assert installation.command("metrics") == "pip install 'ftrun[metrics]'"
    assert installation.command() == "pip install ftrun"
