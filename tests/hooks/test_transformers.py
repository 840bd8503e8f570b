"""FtrunCallback in a real Trainer of transformers, with a model and data made on the spot.

Importing takes seconds, so one process (this file as a program) runs everything; the tests read what it noted: what
the trainer did, and the section it was in as the beat file shows it.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support import beat_file
from support.beat_file import BeatDir

NEEDED = ("torch", "transformers", "accelerate")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.skipif(bool(MISSING), reason=f"{MISSING} not installed: pip install 'ftrun[transformers]'"),
]


class Notes(list[str]):
    def __init__(self, beat_dir: Path) -> None:
        self.beat_dir = beat_dir

    def add(self, what: str) -> None:
        """What happens, and in which sections; a repetition only once."""
        where = " > ".join(name for name, *_ in beat_file.sections(0, self.beat_dir)) or "-"
        line = f"{what}: {where}"
        if self[-1:] != [line]:
            self.append(line)


def program(folder: Path) -> dict[str, Any]:
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from ftrun_hooks._beat import own_slot
    from ftrun_hooks.transformers import FtrunCallback

    beat_dir = Path(os.environ.pop("FTRUN_BEAT_DIR"))
    notes = Notes(beat_dir)
    noted: dict[str, Any] = {}
    data = [{"x": torch.ones(2), "labels": torch.zeros(1)}] * 4

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 1)
            self.looks: list[Any] = []
            self.fails = False

        def forward(self, x: Any, labels: Any = None) -> Any:
            notes.add("train" if self.training else "eval")
            self.looks.append((beat_file.slot(0, beat_dir), beat_file.sections(0, beat_dir)))
            if self.fails and not self.training:
                raise RuntimeError("in the evaluation")
            logits = self.linear(x)
            return {"loss": torch.nn.functional.mse_loss(logits, labels), "logits": logits}

    class Noting(Trainer):  # type: ignore[misc]
        def save_model(self, *args: Any, **kwargs: Any) -> None:
            notes.add("save")
            super().save_model(*args, **kwargs)

    class Late(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            control.should_evaluate = control.should_save = True

    def trainer(*callbacks: Any, metrics: Any = None, evaluated: Any = data, **arguments: Any) -> Any:
        given: dict[str, Any] = {"max_steps": 4, "save_strategy": "no", "logging_strategy": "no", **arguments}
        settings = TrainingArguments(
            output_dir=str(folder / f"run-{len(noted)}"),
            per_device_train_batch_size=2,
            per_device_eval_batch_size=2,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            remove_unused_columns=False,
            label_names=["labels"],
            **given,
        )
        return Noting(Model(), settings, None, data, evaluated, callbacks=list(callbacks), compute_metrics=metrics)

    def keep(name: str, **more: Any) -> None:
        noted[name] = {
            "notes": notes.copy(),
            "slot": beat_file.slot(0, beat_dir),
            "open": beat_file.sections(0, beat_dir),
            **more,
        }
        notes.clear()

    def computed(prediction: Any) -> dict[str, float]:
        notes.add("metrics")
        return {"m": 0.0}

    trainer(FtrunCallback(), eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2).train()
    os.environ["FTRUN_BEAT_DIR"] = str(beat_dir)
    keep("outside")
    own_slot.forked()

    run = trainer(
        FtrunCallback, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=4, metrics=computed
    )
    run.train()
    steps = [slot["step"] for slot, sections in run.model.looks if not sections]
    keep("steps", steps=steps, path=(beat_dir / "checkpoint-0").read_text(), output=run.args.output_dir)

    loaded = {"metric_for_best_model": "loss", "load_best_model_at_end": True}
    trainer(FtrunCallback, eval_on_start=True, eval_strategy="epoch", save_strategy="epoch", **loaded).train()
    keep("epochs")

    best: dict[str, Any] = {"save_strategy": "best", "metric_for_best_model": "m", "metrics": computed, "max_steps": 6}
    trainer(FtrunCallback, eval_strategy="steps", eval_steps=1, **best).train()
    keep("best")

    sets = {"a": data, "b": data}
    saving = {"eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 4}
    trainer(FtrunCallback, evaluated=sets, **saving).train()
    keep("sets")

    trainer(FtrunCallback, Late, max_steps=1).train()
    keep("late")

    run = trainer(FtrunCallback, **best)
    run.evaluate()
    keep("evaluate")
    run.predict(data)
    keep("predict")
    run.train()
    keep("train after them")
    run.evaluate()
    keep("evaluate after that")

    run = trainer(FtrunCallback, eval_strategy="steps", eval_steps=2)
    run.model.fails = True
    try:
        run.train()
    except RuntimeError as error:
        keep("fails", error=str(error))
    run.model.fails = False
    run.args.eval_on_start = True
    run.train()
    keep("train after that")

    for name, timeout in (("timed", 90), ("not timed", None)):
        run = trainer(FtrunCallback(eval_timeout=timeout), eval_strategy="steps", eval_steps=4)
        run.train()
        keep(name, sections=[sections[0][1:] for _, sections in run.model.looks if sections])

    for name, writes in (("writes", True), ("does not write", False)):
        args = SimpleNamespace(should_save=writes, output_dir="/none")
        step = beat_file.slot(0, beat_dir)["checkpoint_step"] + 1
        FtrunCallback().on_save(args, SimpleNamespace(global_step=step), None)
        keep(name, wanted=step + 1, left=(beat_dir / "checkpoint-0").exists())

    return noted


@pytest.fixture(scope="module")
def noted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("transformers")
    beats = BeatDir(folder / "beats")
    env = beats.environment(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="")
    command = [sys.executable, __file__, str(folder)]
    ran = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    beats.close()
    found: dict[str, Any] = json.loads((folder / "noted.json").read_text())
    return found


TRAIN, EVAL, METRICS, SAVE = "train: -", "eval: validation", "metrics: validation", "save: checkpoint"
NOTES = {
    "outside": ["train: -", "eval: -", "save: -"] * 2,
    "steps": [TRAIN, EVAL, METRICS, TRAIN, EVAL, METRICS, SAVE],
    # The best is saved in a section, which ends where it is not saved.
    "best": [TRAIN, EVAL, METRICS, SAVE, *[TRAIN, EVAL, METRICS] * 5],
    # The second data set is detected at its first batch.
    "sets": [TRAIN, EVAL, "eval: checkpoint", EVAL, SAVE],
    # What a later callback requests is detected late.
    "late": [TRAIN, "eval: -", EVAL, SAVE],
    "evaluate": ["eval: -", EVAL, METRICS],
    "predict": ["eval: -", "eval: prediction", "metrics: prediction"],
    "train after them": [TRAIN],
    "train after that": ["eval: -", EVAL, TRAIN, EVAL, TRAIN, EVAL],
}


def test_evaluation_prediction_and_saving_are_sections(noted: dict[str, Any]) -> None:
    assert {name: noted[name]["notes"] for name in NOTES} == NOTES
    # No event announces the evaluation before the first epoch until its first batch is done.
    epochs = noted["epochs"]["notes"]
    assert epochs[:5] == ["eval: -", EVAL, TRAIN, EVAL, SAVE]
    assert set(epochs[5:]) == {TRAIN, EVAL, SAVE}  # how often it saves at the end depends on the version
    assert [name for name, ran in noted.items() if ran["open"]] == ["fails"]


def test_steps_and_checkpoints_are_reported(noted: dict[str, Any]) -> None:
    assert noted["outside"]["slot"]["magic"] == 0
    ran = noted["steps"]
    assert ran["steps"] == [0, 2, 3, 4]
    assert ran["slot"]["step"] == ran["slot"]["checkpoint_step"] == 5
    assert ran["path"] == f"{ran['output']}/checkpoint-4"
    assert Path(ran["path"], "trainer_state.json").exists()
    assert noted["late"]["slot"]["checkpoint_step"] == 2


def test_an_evaluation_that_fails_is_left_open(noted: dict[str, Any]) -> None:
    assert noted["fails"]["error"] == "in the evaluation"
    assert [name for name, *_ in noted["fails"]["open"]] == ["validation"]


def test_a_given_timeout_is_for_the_evaluation_and_the_default_for_each_batch(noted: dict[str, Any]) -> None:
    timed, anew = noted["timed"]["sections"], noted["not timed"]["sections"]
    assert len(timed) == len(anew) == 2
    assert timed[0] == timed[1]
    assert timed[0][1] == 90 * 10**9
    assert anew[0][0] < anew[1][0]
    assert {timeout for _, timeout in anew} == {0}


def test_only_the_rank_that_writes_reports_the_checkpoint(noted: dict[str, Any]) -> None:
    assert noted["writes"]["slot"]["checkpoint_step"] == noted["writes"]["wanted"]
    assert not noted["writes"]["left"]  # the folder is not where it was expected: no path is better than a wrong one
    assert noted["does not write"]["slot"]["checkpoint_step"] < noted["does not write"]["wanted"]


if __name__ == "__main__":
    home = Path(sys.argv[1])
    (home / "noted.json").write_text(json.dumps(program(home)))
