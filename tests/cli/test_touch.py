"""The shell script of docs/hooks.md, and docs/examples/beat.c, give heartbeats as they stand there."""

import re
import shutil
import subprocess

import pytest

from support.runs import HOUSE, Runs

PAGE = (HOUSE / "docs" / "hooks.md").read_text()
QUICK = ("--hang-timeout", "20s", "--start-timeout", "60s")


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def test_heartbeat_from_a_shell(runs: Runs) -> None:
    script = "step() { i=$((i + 1)); sleep 0.1; [ $i -lt 4 ]; }\n" + block("sh").replace("make -s step", "step")
    run = runs.ends(0, *QUICK, "sh", "-eu", "-c", script)
    assert run.until("first_beat")["rank"] == -1


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_heartbeat_from_c(runs: Runs) -> None:
    shutil.copy(HOUSE / "docs" / "examples" / "beat.c", runs.folder / "train.c")
    subprocess.run(["cc", "-Wall", "-Werror", "-o", "train", "train.c"], cwd=runs.folder, check=True)
    run = runs.ends(0, *QUICK, "./train")
    assert run.until("first_beat")["rank"] == -1
    assert subprocess.run([runs.folder / "train"], check=False).returncode == 0, "outside ftrun it does nothing"
