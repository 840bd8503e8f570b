"""Programs of others on ranks that ftrun starts: they find their ranks by the environment alone, and a run with a
failure or a hang ends with the weights of one without."""

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

from support.runs import FTRUN
from support.trained import NEEDED, PROGRAMS, weights

# Each imports PyTorch six times.  In the gate tests/container/test_started_ranks.py has the environment of a rank, and
# tests/test_recover_example.py ranks that find each other by it.
pytestmark = [pytest.mark.torch, pytest.mark.slow]


def train(folder: Path, program: str, *options: str, strike: str = "") -> str:
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FTRUN_", "MA_"))}
    command = [*FTRUN, "--run-dir", str(folder / "run"), "--nproc-per-node", "2", *options]
    done = subprocess.run(
        [*command, str(PROGRAMS / f"with_{program}.py"), str(folder)],
        env=environment | {"STRIKE": strike},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("program", NEEDED)
def test_a_run_with_a_failure_ends_with_the_weights_of_one_without(program: str, tmp_path: Path) -> None:
    if any(importlib.util.find_spec(name) is None for name in NEEDED[program]):
        pytest.skip(f"not installed: one of {', '.join(NEEDED[program])}")
    train(tmp_path / "plain", program)
    log = train(tmp_path / "struck", program, "--restart-on", "failure", strike="raise:5")
    assert "rank 1: ValueError: struck" in log
    assert "2 starts" in log
    assert weights(tmp_path / "plain") == weights(tmp_path / "struck")


@pytest.mark.parametrize("program", ["ddp", "lightning"])
def test_a_run_with_a_hang_ends_with_the_weights_of_one_without(program: str, tmp_path: Path) -> None:
    """No option tells ftrun what a hang is."""
    train(tmp_path / "plain", program)
    log = train(tmp_path / "struck", program, strike="hang:5")
    assert "restarted once because of a hang" in log
    assert weights(tmp_path / "plain") == weights(tmp_path / "struck")
