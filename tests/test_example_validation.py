"""docs/examples/validation.py: what ends in a validation goes on with training."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from support.runs import HOUSE, Runs, runs

__all__ = ["runs"]
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="PyTorch is not installed: pip install 'ftrun[torch]'"
    ),
]
EXAMPLE = [sys.executable, str(HOUSE / "docs" / "examples" / "validation.py"), "--steps", "12", "--validate-every", "4"]


@pytest.mark.parametrize(
    ("options", "trouble", "reason"),
    [
        (["--hang-timeout", "30s"], ["--hang-at", "8", "--validation-timeout", "2s"], "hang"),
        (["--restart-on", "failure", "--backoff", "10ms"], ["--crash-at", "8"], "failure"),
    ],
)
def test_the_second_start_goes_on_with_training(
    runs: Runs, tmp_path: Path, options: list[str], trouble: list[str], reason: str
) -> None:
    kept = tmp_path / "checkpoints"
    run = runs.run(*options, "--", *EXAMPLE, "--dir", str(kept), *trouble, PYTHONPATH=str(HOUSE / "hooks"))
    assert run.wait() == 0, run.log()
    assert [(record["reason"], record["start_cnt"]) for record in run.named("restart")] == [(reason, 2)]
    second = run.stdout[run.stdout.index("start 2") :].splitlines()
    assert [line.partition(": loss")[0] for line in second] == [
        "start 2: 8 of 12 steps are done",
        "the validation of step 8 was cut off: going on with training",
        "validated step 12",
        "finished",
    ]
    assert list(json.loads((kept / "losses.json").read_text())) == ["4", "12"]


def test_a_validation_that_was_never_tried_is_made_up_for(runs: Runs, tmp_path: Path) -> None:
    kept, words = tmp_path / "checkpoints", ["--dir", str(tmp_path / "checkpoints")]
    assert runs.run("--", *EXAMPLE, *words, PYTHONPATH=str(HOUSE / "hooks")).wait() == 0
    (kept / "losses.json").unlink()
    again = runs.run("--", *EXAMPLE, *words, run_dir=tmp_path / "other", PYTHONPATH=str(HOUSE / "hooks"))
    assert [line.partition(": loss")[0] for line in again.stdout.splitlines()[1:]] == ["validated step 12", "finished"]
