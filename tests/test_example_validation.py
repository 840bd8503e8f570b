"""docs/examples/validation.py: what ends in a validation goes on with training."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.runs import HOUSE, Runs, runs

__all__ = ["runs"]
pytestmark = [pytest.mark.torch, pytest.mark.slow]  # in the gate test_example.py has a program that hangs and resumes
EXAMPLE = [sys.executable, str(HOUSE / "docs" / "examples" / "validation.py"), "--validate-every", "4"]
HOOKS = str(HOUSE / "hooks")
LONG = 240.0  # s; PyTorch is imported twice, on a machine that has other work


def lines(output: str) -> list[str]:
    """Without the losses."""
    return [line.partition(": loss")[0] for line in output.splitlines()]


def test_what_hangs_in_a_validation_goes_on_with_training(runs: Runs, tmp_path: Path) -> None:
    losses = tmp_path / "checkpoints" / "losses.json"
    command = [*EXAMPLE, "--dir", str(losses.parent)]

    trouble = ["--steps", "12", "--hang-at", "8", "--validation-timeout", "2s"]
    run = runs.start("--hang-timeout", "30s", "--", *command, *trouble, PYTHONPATH=HOOKS)
    assert run.wait(LONG) == 0, run.log()
    assert [(record["reason"], record["start_cnt"]) for record in run.named("restart")] == [("hang", 2)]
    assert lines(run.stdout[run.stdout.index("start 2") :]) == [
        "start 2: 8 of 12 steps are done",
        "the validation of step 8 was cut off: going on with training",
        "validated step 12",
        "finished",
    ]
    assert list(json.loads(losses.read_text())) == ["4", "12"]


def test_what_crashes_in_a_validation_goes_on_with_training(runs: Runs, tmp_path: Path) -> None:
    """A validation that is missing for another reason is made up for."""
    losses = tmp_path / "checkpoints" / "losses.json"
    command = [*EXAMPLE, "--dir", str(losses.parent)]
    subprocess.run([*command, "--steps", "12"], env=os.environ | {"PYTHONPATH": HOOKS}, check=True, timeout=LONG)
    losses.unlink()
    options = ["--restart-on", "failure", "--backoff", "10ms", "--", *command, "--steps", "20", "--crash-at", "16"]
    run = runs.start(*options, PYTHONPATH=HOOKS)
    assert run.wait(LONG) == 0, run.log()
    assert [(record["reason"], record["start_cnt"]) for record in run.named("restart")] == [("failure", 2)]
    assert lines(run.stdout) == [
        "start 1: 12 of 20 steps are done",
        "validated step 12",
        "start 2: 16 of 20 steps are done",
        "the validation of step 16 was cut off: going on with training",
        "validated step 20",
        "finished",
    ]
    assert list(json.loads(losses.read_text())) == ["12", "20"]
