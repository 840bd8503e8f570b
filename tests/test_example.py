"""docs/examples/train.py: a run that was interrupted ends with the weights of one that was not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.beat_file import HOUSE
from support.trained import tensors

pytestmark = pytest.mark.torch
EXAMPLE = HOUSE / "docs" / "examples" / "train.py"


def train(folder: Path, *words: str, env: dict[str, str] | None = None) -> str:
    command = [sys.executable, str(EXAMPLE), "--dir", str(folder), "--save-every", "4", "--step-time", "0", *words]
    env = env or {**os.environ, "PYTHONPATH": str(HOUSE / "hooks")}
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=120).stdout


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    assert "start 1: 0 of 12" in train(tmp_path / "whole", "--steps", "12")
    train(tmp_path / "parts", "--steps", "8")
    assert "8 of 12 steps are done" in train(tmp_path / "parts", "--steps", "12")
    assert tensors(tmp_path / "whole" / "checkpoint.pt") == tensors(tmp_path / "parts" / "checkpoint.pt")


UNMODIFIED = """
import os, threading, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
done = 0
if os.path.exists("model.pt"):
    kept = torch.load("model.pt")
    model.load_state_dict(kept["model"]), optimizer.load_state_dict(kept["optimizer"])
    done = kept["step"]
print("from", done, flush=True)
for step in range(done + 1, 13):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    if step % 4 == 0:
        kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(kept, "new.pt")
        os.rename("new.pt", "model.pt")
    if step == 6 and not done:
        threading.Event().wait()
"""


def test_an_unmodified_program(tmp_path: Path) -> None:
    """No hook in it, and none installed where it runs: it is found hung all the same, and its checkpoints are seen."""
    (tmp_path / "train.py").write_text(UNMODIFIED)
    ftrun = [sys.executable, str(HOUSE / "bin" / "ftrun"), "--run-dir", str(tmp_path / "run"), "--hang-timeout", "8s"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [*ftrun, "--progress", "model.pt", sys.executable, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (0, "from 0\nfrom 4\n"), done.stderr
    records = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    (hang,) = (record for record in records if record["event"] == "hang")
    assert (hang["rule"], hang["rank"], hang["step"]) == ("step", 0, 5), "the sixth, counted from zero"
    state = json.loads((tmp_path / "run" / "state.json").read_bytes())
    assert state["last_step"] == 11, "a resumed optimizer goes on counting"
    saved = [record["checkpoint"] for record in records if record["event"] == "progress"]
    assert saved[:1] == [str(tmp_path / "model.pt")]


@pytest.mark.slow  # in the gate the program above hangs and resumes
def test_the_main_job(tmp_path: Path) -> None:
    """A real PyTorch run hangs, is found, ended, started again in place, resumes and finishes."""
    whole, supervised, run_dir = tmp_path / "whole", tmp_path / "supervised", tmp_path / "run"
    ftrun = [sys.executable, str(HOUSE / "bin" / "ftrun"), "--run-dir", str(run_dir), "--hang-timeout", "3s", "--"]
    command = [sys.executable, str(EXAMPLE), "--dir", str(supervised), "--save-every", "4", "--step-time", "0"]
    command += ["--steps", "12", "--hang-at", "6"]
    env = {**os.environ, "PYTHONPATH": str(HOUSE / "hooks")}
    done = subprocess.run([*ftrun, *command], env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "start 2: 4 of 12 steps are done" in done.stdout
    assert done.stdout.endswith("finished\n")
    records = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    hang = next(record for record in records if record["event"] == "hang")  # a busy machine may have another one later
    assert (hang["rule"], hang["rank"], hang["step"]) == ("step", 0, 6)
    state = json.loads((run_dir / "state.json").read_bytes())
    assert (state["last_step"], state["last_checkpoint"]) == (12, str(supervised / "checkpoint.pt"))
    train(whole, "--steps", "12")
    assert tensors(whole / "checkpoint.pt") == tensors(supervised / "checkpoint.pt")
