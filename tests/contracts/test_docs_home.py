"""The home page: its commands install ftrun and run a program, and its picture is of such a run."""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.console import Shell, commands, session
from support.runs import FTHANG, HOUSE, Runs

sys.path.insert(0, str(HOUSE / "docs"))

from made import timeline  # type: ignore[import-not-found]

PAGE = (HOUSE / "docs" / "index.md").read_text(encoding="utf-8")
COMMANDS = [command.text for command in commands(PAGE)]


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Shell]:
    """A shell in a copy of what is installed, with a program of the user in it."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("supervisor", "hooks"):
        shutil.copytree(HOUSE / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(HOUSE / name, folder)
    (folder / "train.py").write_text("import os\nprint('start', os.environ['MA_PROC_START_CNT'])\n")
    with session(folder) as made:
        yield made


def check_program(shell: Shell) -> None:
    """The last command of the page runs the program, and ends with its exit code."""
    printed = shell.run(COMMANDS[-1])
    assert shell.run("echo $?") == "0\n", printed
    first, second = printed.splitlines()
    assert re.fullmatch(r"\[ftrun\] attempt 1 started; run dir \S+; watched: .+", first)
    assert second == "start 1"


@pytest.mark.slow
def test_installation_of_the_home_page(checkout: Shell) -> None:
    """It loads packages."""
    checkout.run(f"PATH={os.environ['PATH']}")
    checkout.run("export PIP_QUIET=2")
    for command in COMMANDS[:-1]:
        printed = checkout.run(command)
        assert checkout.run("echo $?") == "0\n", printed
    assert checkout.run("command -v ftrun").strip().endswith("/checkout/venv/bin/ftrun")
    check_program(checkout)


def test_command_of_the_home_page(checkout: Shell) -> None:
    """The short form: by the programs of this checkout."""
    install = ["python3 -m venv venv", ". venv/bin/activate", "pip install ."]
    assert [*install, "ftrun python train.py"] == COMMANDS
    readme = commands((HOUSE / "README.md").read_text(encoding="utf-8"))
    assert [command.text for command in readme if command.block == 0] == install
    check_program(checkout)


def test_picture_is_of_a_run_that_goes_the_same_way_now(runs: Runs) -> None:
    """docs/made/timeline.py draws it from kept records; a run with less work has the same decisions, and a picture
    with the same legend."""
    run = runs.start("--hang-timeout", "4s", *FTHANG, "sleep", "--steps", "12", "--after", "6", "--step-time", "20ms")
    assert run.wait() == 0, run.whole_stderr
    kept = [json.loads(line) for line in (timeline.RECORDS / "events.jsonl").read_text().splitlines()]
    assert decisions(kept) == decisions(run.records)
    drawn = timeline.svg.render(timeline.timeline.draw(timeline.read(str(run.run_dir))))
    for picture in (timeline.picture(), drawn):
        shown = re.findall(r"<text[^>]*>([^<]+)</text>", picture)
        assert {"1", "hang (1)", "evidence is collected"} <= set(shown)
        for name in ("kept", "startup", "hang", "checkpoint"):
            assert any(text.startswith(f"{name} ") for text in shown), (name, shown)
    assert ">2 after hang<" in timeline.picture()  # in the other one there may be no room for it


def decisions(records: list[dict[str, object]]) -> list[object]:
    """The events, but for how many steps and checkpoints were recorded between them, and for suspicions: on a busy
    machine there may be more of them, which are cleared."""
    return [one["event"] for one in records if one["event"] not in ("progress", "suspect", "cleared", "problem")]
