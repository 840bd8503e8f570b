"""The tutorial and the README show sessions as they really print; docs/tutorial.md is run from its first command on."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.console import Shell, commands, differences, session
from support.runs import HOUSE

TUTORIAL = commands((HOUSE / "docs" / "tutorial.md").read_text(encoding="utf-8"))
WITH_PYTORCH = next(command.block for command in TUTORIAL if "docs/examples/train.py" in command.text)
README = commands((HOUSE / "README.md").read_text(encoding="utf-8"))


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """In a fresh folder, with a checkout in it; the programs are those of the checkout."""
    folder = tmp_path / "session"
    folder.mkdir()
    (folder / "ftrun").symlink_to(HOUSE)
    with session(folder) as made:
        yield made


def test_tutorial_until_its_program_with_pytorch(shell: Shell) -> None:
    """But for its installation."""
    quick = [command for command in TUTORIAL if 0 < command.block < WITH_PYTORCH]
    assert len(quick) > 15
    assert differences(shell, quick) == []


@pytest.mark.slow  # in the gate tests/test_example.py has a program with PyTorch that hangs and resumes
@pytest.mark.torch
def test_tutorial(shell: Shell) -> None:
    """But for its installation, which is the next test."""
    assert len(TUTORIAL) > 20
    assert differences(shell, [command for command in TUTORIAL if command.block > 0]) == []


@pytest.mark.slow
def test_installation(shell: Shell) -> None:
    """And then the first session, by what was installed; it loads packages."""
    shell.run(f"PATH={os.environ['PATH']}")
    shell.run("export PIP_QUIET=2")  # what pip has to say of this machine's settings
    assert differences(shell, [command for command in TUTORIAL if command.block < 2]) == []
    assert shell.run("command -v ftrun").strip().endswith("/session/venv/bin/ftrun")


def test_readme(shell: Shell) -> None:
    """But for its installation, which is the same as that of the home page (test_docs_home.py)."""
    shell.run("ln -s ftrun/docs docs")
    quick = [command for command in README if command.block > 0]
    assert len(quick) > 1
    assert differences(shell, quick) == []
