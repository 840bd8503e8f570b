"""The adversaries and transcripts of the core catch every planted bug of `planted.py`, and pass where there is none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from core.planted import BUGS
from support.short import quick

ROOT = Path(__file__).parents[2]


def outcome(folder: Path, name: str = "") -> tuple[int, str]:
    paths = [str(ROOT / part) for part in ("supervisor", "hooks", "tests")]
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "FTRUN"))}
    words = [sys.executable, str(Path(__file__).with_name("planted.py")), name]
    done = subprocess.run(
        words, env=kept | {"PYTHONPATH": os.pathsep.join(paths)}, cwd=folder, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


# All of them take minutes.
@pytest.mark.parametrize("name", quick(BUGS, ("an_answer_to_any_wave_counts", "the_same_step_is_progress")))
@pytest.mark.timeout(700)
def test_the_bug_is_caught(name: str, tmp_path: Path) -> None:
    code, output = outcome(tmp_path, name)
    assert code == pytest.ExitCode.TESTS_FAILED, f"{name} was not caught\n{output[-2000:]}"
    assert "planted.py:" not in output, f"the planted bug itself fails\n{output[-2000:]}"


# The gate runs these tests themselves, so that this only shows that this way of running them finds nothing by itself.
@pytest.mark.slow
@pytest.mark.timeout(700)
def test_nothing_is_found_where_nothing_is_planted(tmp_path: Path) -> None:
    code, output = outcome(tmp_path)
    assert code == 0, output[-2000:]
