"""The home page: its commands install ftrun and run a program."""

import re
from pathlib import Path

from support.console import commands, session
from support.runs import HOUSE

PAGE = (HOUSE / "docs" / "index.md").read_text(encoding="utf-8")
COMMANDS = [command.text for command in commands(PAGE)]


def test_commands_of_the_home_page(tmp_path: Path) -> None:
    """By the programs of this checkout; test_docs_tutorial.py installs them."""
    install = ["python3 -m venv venv", ". venv/bin/activate", "pip install ."]
    assert [*install, "ftrun python train.py"] == COMMANDS
    readme = commands((HOUSE / "README.md").read_text(encoding="utf-8"))
    assert [command.text for command in readme if command.block == 0] == install
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "train.py").write_text("import os\nprint('start', os.environ['MA_PROC_START_CNT'])\n")
    with session(folder) as shell:
        printed = shell.run(COMMANDS[-1])
        assert shell.run("echo $?") == "0\n", printed
    first, second = printed.splitlines()
    assert re.fullmatch(r"\[ftrun\] attempt 1 started; run dir \S+; watched: .+", first)
    assert second == "start 1"
