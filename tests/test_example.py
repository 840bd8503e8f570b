"""docs/examples/train.py: a run that was interrupted ends with the weights of one that was not."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from beat_file import HOUSE, BeatDir

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="PyTorch is not installed: pip install 'ftrun[torch]'"
    ),
]
EXAMPLE = HOUSE / "docs" / "examples" / "train.py"


def train(folder: Path, *words: str, env: dict[str, str] | None = None) -> str:
    command = [sys.executable, str(EXAMPLE), "--dir", str(folder), "--save-every", "4", "--step-time", "0", *words]
    env = env or {**os.environ, "PYTHONPATH": str(HOUSE / "hooks")}
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=120).stdout


def same(one: object, other: object) -> bool:
    import torch

    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other


def test_a_resumed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    import torch

    assert "start 1: 0 of 12" in train(tmp_path / "whole", "--steps", "12")
    train(tmp_path / "parts", "--steps", "8")
    assert "8 of 12 steps are done" in train(tmp_path / "parts", "--steps", "12")
    whole, parts = (torch.load(tmp_path / name / "checkpoint.pt", weights_only=True) for name in ("whole", "parts"))
    assert whole["step"] == 12
    assert same(whole, parts)


def test_it_hangs_on_demand_and_the_next_start_finishes(tmp_path: Path) -> None:
    beats = BeatDir(tmp_path / "beats")
    words = ["--steps", "12", "--hang-at", "6"]
    command = [sys.executable, str(EXAMPLE), "--dir", str(tmp_path), "--save-every", "4", *words]
    env = beats.environment()
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "hanging\n" in iter(process.stdout.readline, "")
        slot = beats.slot()
        assert process.poll() is None
        process.kill()
    assert (slot["step"], slot["checkpoint_step"], slot["flags"]) == (7, 5, 0)
    said = train(tmp_path, *words, env={**env, "MA_PROC_START_CNT": "2"})
    assert said.startswith("start 2: 4 of 12 steps are done")
    assert said.endswith("finished\n")
    assert beats.slot()["checkpoint_step"] == 13
    assert (beats.folder / "checkpoint-0").read_text() == str(tmp_path / "checkpoint.pt")
    beats.close()
