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

    from ftrun_hooks._slot import own_slot
    from ftrun_hooks.transformers import FtrunCallback

    beat_dir = Path(os.environ.pop("FTRUN_BEAT_DIR"))
    notes = Notes(beat_dir)
    told: dict[str, Any] = {}
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

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            notes.add("epoch")

    def trainer(*callbacks: Any, metrics: Any = None, evaluated: Any = data, **arguments: Any) -> Any:
        given: dict[str, Any] = {"max_steps": 4, "save_strategy": "no", "logging_strategy": "no", **arguments}
        settings = TrainingArguments(
            output_dir=str(folder / f"run-{len(told)}"),
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

    def tell(name: str, **more: Any) -> None:
        told[name] = {
            "notes": notes.copy(),
            "slot": beat_file.slot(0, beat_dir),
            "open": beat_file.sections(0, beat_dir),
            **more,
        }
        notes.clear()

    def noted(prediction: Any) -> dict[str, float]:
        notes.add("metrics")
        return {"m": 0.0}

    trainer(FtrunCallback(), eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2).train()
    os.environ["FTRUN_BEAT_DIR"] = str(beat_dir)
    tell("outside")
    own_slot.forked()

    run = trainer(
        FtrunCallback, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=4, metrics=noted
    )
    run.train()
    steps = [slot["step"] for slot, sections in run.model.looks if not sections]
    tell("steps", steps=steps, path=(beat_dir / "checkpoint-0").read_text(), output=run.args.output_dir)

    loaded = {"metric_for_best_model": "loss", "load_best_model_at_end": True}
    trainer(FtrunCallback, eval_on_start=True, eval_strategy="epoch", save_strategy="epoch", **loaded).train()
    tell("epochs")

    best: dict[str, Any] = {"save_strategy": "best", "metric_for_best_model": "m", "metrics": noted, "max_steps": 6}
    trainer(FtrunCallback, eval_strategy="steps", eval_steps=1, **best).train()
    tell("best")
    trainer(FtrunCallback, Watch, eval_strategy="epoch", **best).train()
    tell("best of epochs")

    sets = {"a": data, "b": data}
    saving = {"eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 4}
    trainer(FtrunCallback, evaluated=sets, **saving).train()
    tell("sets")

    trainer(FtrunCallback, Late, max_steps=1).train()
    tell("late")

    run = trainer(FtrunCallback, max_steps=2, gradient_accumulation_steps=2)
    run.train()
    tell("accumulation", moved=[slot["moved_at"] for slot, _ in run.model.looks])

    run = trainer(FtrunCallback, **best)
    run.evaluate()
    tell("evaluate")
    run.predict(data)
    tell("predict")
    run.train()
    tell("train after them")
    run.evaluate()
    tell("evaluate after that")

    run = trainer(FtrunCallback, eval_strategy="steps", eval_steps=2)
    run.model.fails = True
    try:
        run.train()
    except RuntimeError as error:
        tell("fails", error=str(error))
    run.model.fails = False
    run.args.eval_on_start = True
    run.train()
    tell("train after that")

    for name, timeout in (("timed", 90), ("not timed", None)):
        run = trainer(FtrunCallback(eval_timeout=timeout), eval_strategy="steps", eval_steps=4)
        run.train()
        tell(name, sections=[sections[0][1:] for _, sections in run.model.looks if sections])

    for name, writes in (("writes", True), ("does not write", False)):
        args = SimpleNamespace(should_save=writes, output_dir="/none")
        step = beat_file.slot(0, beat_dir)["checkpoint_step"] + 1
        FtrunCallback().on_save(args, SimpleNamespace(global_step=step), None)
        tell(name, wanted=step + 1, left=(beat_dir / "checkpoint-0").exists())

    errors = []
    for name in ("eval_timeout", "save_timeout"):
        try:
            FtrunCallback(**{name: "x"})
        except ValueError as bad:
            errors.append(str(bad).partition(" (")[0])
    tell("bad timeouts", errors=errors)
    return told


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("transformers")
    beats = BeatDir(folder / "beats")
    env = beats.environment(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="")
    command = [sys.executable, __file__, str(folder)]
    ran = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    beats.close()
    found: dict[str, Any] = json.loads((folder / "told.json").read_text())
    return found


TRAIN, EVAL, METRICS, SAVE = "train: -", "eval: validation", "metrics: validation", "save: checkpoint"


def test_outside_ftrun_it_does_nothing(told: dict[str, Any]) -> None:
    assert told["outside"]["notes"] == ["train: -", "eval: -", "save: -"] * 2
    assert told["outside"]["slot"]["magic"] == 0


def test_steps_evaluation_and_saving(told: dict[str, Any]) -> None:
    ran = told["steps"]
    assert ran["notes"] == [TRAIN, EVAL, METRICS, TRAIN, EVAL, METRICS, SAVE]
    assert ran["steps"] == [0, 2, 3, 4]
    assert ran["slot"]["step"] == ran["slot"]["checkpoint_step"] == 5
    assert ran["path"] == f"{ran['output']}/checkpoint-4"
    assert Path(ran["path"], "trainer_state.json").exists()


def test_the_events_of_epochs(told: dict[str, Any]) -> None:
    """Nothing tells of the evaluation before the first epoch until its first batch is done."""
    notes = told["epochs"]["notes"]
    assert notes[:5] == ["eval: -", EVAL, TRAIN, EVAL, SAVE]
    assert set(notes[5:]) == {TRAIN, EVAL, SAVE}  # how often it saves at the end depends on the version


def test_the_best_is_saved_in_a_section_that_ends_where_it_is_not_saved(told: dict[str, Any]) -> None:
    assert told["best"]["notes"] == [TRAIN, EVAL, METRICS, SAVE, *[TRAIN, EVAL, METRICS] * 5]
    epochs = told["best of epochs"]["notes"]
    assert epochs == ["epoch: -", TRAIN, EVAL, METRICS, SAVE, *["epoch: -", TRAIN, EVAL, METRICS] * 2]


def test_of_several_data_sets_the_later_count_from_their_first_batch(told: dict[str, Any]) -> None:
    assert told["sets"]["notes"] == [TRAIN, EVAL, "eval: checkpoint", EVAL, SAVE]


def test_what_a_later_callback_asks_for_is_seen_late(told: dict[str, Any]) -> None:
    assert told["late"]["notes"] == [TRAIN, "eval: -", EVAL, SAVE]
    assert told["late"]["slot"]["checkpoint_step"] == 2


def test_a_beat_with_each_part_of_an_accumulated_step(told: dict[str, Any]) -> None:
    moved = told["accumulation"]["moved"]
    assert len(moved) == 4
    assert moved == sorted(set(moved))


def test_evaluate_and_predict_by_themselves(told: dict[str, Any]) -> None:
    assert told["evaluate"]["notes"] == ["eval: -", EVAL, METRICS]
    assert told["predict"]["notes"] == ["eval: -", "eval: prediction", "metrics: prediction"]
    assert told["train after them"]["notes"] == [TRAIN]


def test_an_evaluation_that_fails_is_left_open_and_training_goes_on(told: dict[str, Any]) -> None:
    assert told["fails"]["error"] == "in the evaluation"
    assert [name for name, *_ in told["fails"]["open"]] == ["validation"]
    assert told["train after that"]["notes"] == ["eval: -", EVAL, TRAIN, EVAL, TRAIN, EVAL]


def test_a_given_timeout_is_for_the_evaluation_the_other_for_each_batch(told: dict[str, Any]) -> None:
    timed, anew = told["timed"]["sections"], told["not timed"]["sections"]
    assert len(timed) == len(anew) == 2
    assert timed[0] == timed[1]
    assert timed[0][1] == 90 * 10**9
    assert anew[0][0] < anew[1][0]
    assert {timeout for _, timeout in anew} == {0}


def test_only_the_rank_that_writes_reports_the_checkpoint(told: dict[str, Any]) -> None:
    assert told["writes"]["slot"]["checkpoint_step"] == told["writes"]["wanted"]
    assert not told["writes"]["left"]  # the folder is not where it was expected: no path is better than a wrong one
    assert told["does not write"]["slot"]["checkpoint_step"] < told["does not write"]["wanted"]


def test_nothing_stays_open(told: dict[str, Any]) -> None:
    assert [name for name, ran in told.items() if ran["open"]] == ["fails"]


def test_a_timeout_that_is_none_is_an_error_at_once(told: dict[str, Any]) -> None:
    assert told["bad timeouts"]["errors"] == 2 * ["not a duration: 'x'"]


if __name__ == "__main__":
    home = Path(sys.argv[1])
    (home / "told.json").write_text(json.dumps(program(home)))
