"""FtrunCallback in real trainers of lightning and pytorch_lightning, with a model and data made on the spot.

Importing takes seconds, so this file, as a program, runs everything of a package once; the tests read what it noted:
what the trainer did, and the section it was in as the beat file shows it.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support import beat_file
from support.beat_file import HOUSE, BeatDir

PACKAGES = ("lightning", "pytorch_lightning")
FOUND = [name for name in PACKAGES if importlib.util.find_spec(name) is not None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.skipif(not FOUND, reason="Lightning is not installed: pip install 'ftrun[lightning]'"),
]


def program(folder: Path, package: str) -> dict[str, Any]:
    import torch

    pl = importlib.import_module("lightning.pytorch" if package == "lightning" else package)
    plugins = importlib.import_module(f"{pl.__name__}.plugins.io")
    tuner = importlib.import_module(f"{pl.__name__}.tuner")
    from ftrun_hooks import lightning as hooks
    from ftrun_hooks._beat import own_slot

    beat_dir = Path(os.environ.pop("FTRUN_BEAT_DIR"))
    notes: list[str] = []
    saves: list[Any] = []
    noted: dict[str, Any] = {}

    def note(what: str) -> None:
        """What happens, and in which sections; a repetition only once."""
        line = f"{what}: {' > '.join(name for name, *_ in beat_file.sections(0, beat_dir)) or '-'}"
        if notes[-1:] != [line]:
            notes.append(line)

    class Model(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 1)
            self.lr = 0.1
            self.looks: list[Any] = []
            self.fails = False

        def forward(self, x: Any) -> Any:
            self.looks.append((beat_file.slot(0, beat_dir), beat_file.sections(0, beat_dir)))
            return self.linear(x).sum()

        def training_step(self, batch: Any, index: int) -> Any:
            note("train")
            return self(batch)

        def validation_step(self, batch: Any, index: int) -> None:
            note("validate")
            self(batch)
            if self.fails and not self.trainer.sanity_checking:
                raise KeyError("in the validation")

        def test_step(self, batch: Any, index: int) -> None:
            note("test")
            self(batch)

        def predict_step(self, batch: Any, index: int) -> Any:
            note("predict")
            return self(batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), self.lr)

        def train_dataloader(self) -> Any:
            data: Any = torch.ones(8, 2)
            return torch.utils.data.DataLoader(data, batch_size=2)

        val_dataloader = test_dataloader = predict_dataloader = train_dataloader

    class Empty(Model):
        def val_dataloader(self) -> Any:
            nothing: Any = []
            return torch.utils.data.DataLoader(nothing)

    class Disk(plugins.TorchCheckpointIO):  # type: ignore[misc, name-defined]
        def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
            before = beat_file.slot(0, beat_dir)["checkpoint_at"]
            note("save")
            super().save_checkpoint(*args, **kwargs)
            too_early = beat_file.slot(0, beat_dir)["checkpoint_at"] != before
            saves.append([too_early, [timeout for *_, timeout in beat_file.sections(0, beat_dir)]])

    def trainer(*callbacks: Any, disk: Any = None, **more: Any) -> Any:
        given = {"max_epochs": 1, "enable_progress_bar": False, "enable_model_summary": False, "logger": False, **more}
        saving = bool(more.get("enable_checkpointing", True)) and [
            pl.callbacks.ModelCheckpoint(folder / f"run-{len(noted)}", every_n_train_steps=2, save_top_k=-1)
        ]
        return pl.Trainer(
            accelerator="cpu", devices=1, callbacks=[*callbacks, *(saving or [])], plugins=[disk or Disk()], **given
        )

    def keep(name: str, **more: Any) -> None:
        path = beat_dir / "checkpoint-0"
        noted[name] = {
            "notes": notes.copy(),
            "slot": beat_file.slot(0, beat_dir),
            "open": [name for name, *_ in beat_file.sections(0, beat_dir)],
            "saves": saves.copy(),
            "path": path.read_text() if path.exists() else None,
            **more,
        }
        notes.clear()
        saves.clear()

    def ours(run: Any) -> int:
        return sum(isinstance(callback, hooks.FtrunCallback) for callback in run.callbacks)

    run = trainer()
    before = ours(run)
    trainer(hooks.FtrunCallback()).fit(Model())
    keep("outside", ours=before)
    os.environ["FTRUN_BEAT_DIR"] = str(beat_dir)
    own_slot.forked()

    run, model = trainer(val_check_interval=2, accumulate_grad_batches=2, limit_val_batches=2), Model()
    before = ours(run)
    run.fit(model)
    moved = [slot["moved_at"] for slot, sections in model.looks if not sections]
    keep("fit", ours=before, moved=moved, wrapped="save_checkpoint" in vars(run), files=os.listdir(folder / "run-1"))
    if package != FOUND[0]:
        return noted

    replaced, own = trainer(), []
    replaced.save_checkpoint = own_save = lambda *paths, **more: own.append(paths)
    replaced.fit(Model())
    keep("a save of the program", stays=replaced.save_checkpoint is own_save, called=len(own))

    run.save_checkpoint(folder / "after.ckpt")
    keep("after the fit")
    for name in ("validate", "test", "predict"):
        getattr(run, name)(model)
        keep(name)

    by_hand, model = hooks.FtrunCallback(eval_timeout=90, save_timeout="1h"), Model()
    run = trainer(by_hand)
    run.fit(model)
    left = [callback is by_hand for callback in run.callbacks if isinstance(callback, hooks.FtrunCallback)]
    keep("by hand", left=left, sections=[sections[0][1:] for _, sections in model.looks[2:] if sections])

    run, model = trainer(), Model()
    run.fit(model)
    keep("without a timeout", sections=[sections[0][1:] for _, sections in model.looks[2:] if sections])

    model, saving = Model(), pl.callbacks.OnExceptionCheckpoint(folder / "broken", "saved")
    model.fails = True
    for name, more in (("fails", []), ("fails and saves", [saving])):
        run = trainer(*more)
        try:
            run.fit(model)
        except KeyError:
            keep(name)
    model.fails = False
    trainer().fit(model)
    keep("another after that")
    run.fit_loop.max_epochs = 3
    run.fit(model)
    keep("the same after that", wrapped="save_checkpoint" in vars(run))

    trainer(enable_checkpointing=False).fit(Empty())
    keep("nothing to validate")

    def unreported(name: str, run: Callable[[], object]) -> None:
        before = beat_file.slot(0, beat_dir)["checkpoint_at"]
        run()
        keep(name, reported=beat_file.slot(0, beat_dir)["checkpoint_at"] != before)

    io = plugins.AsyncCheckpointIO(Disk())
    unreported("in the background", lambda: trainer(disk=io).fit(Model()))
    scan = tuner.Tuner(trainer(enable_checkpointing=False))
    unreported("tuner", lambda: scan.lr_find(Model(), num_training=3))
    bare = pl.Trainer(barebones=True, max_epochs=1, accelerator="cpu")
    unreported("barebones", lambda: bare.fit(Model()))

    both = BeatDir(folder / "both")
    os.environ["FTRUN_BEAT_DIR"] = str(both.folder)
    own_slot.forked()
    run = pl.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy="ddp_fork", logger=False, barebones=True)
    run.fit(Model())
    keep("two ranks", steps=[both.slot(rank)["step"] for rank in (0, 1)])

    for rank, method in ((7, "on_train_batch_end"), (8, "on_test_start")):
        own_slot.forked()
        getattr(hooks.FtrunCallback(), method)(SimpleNamespace(global_rank=rank, global_step=0), None)
    keep("ranks that only the trainer knows", pids=[both.slot(rank)["pid"] for rank in (7, 8)])
    both.close()
    return noted


def installed(folder: Path) -> None:
    """Make the folder look as if ftrun were installed there, with the entry points of pyproject.toml."""
    groups = tomllib.loads((HOUSE / "pyproject.toml").read_text())["project"]["entry-points"]
    folder = folder / "ftrun-0.0.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: ftrun\nVersion: 0.0.0\n")
    lines = [f"[{group}]\n" + "".join(f"{n} = {t}\n" for n, t in points.items()) for group, points in groups.items()]
    (folder / "entry_points.txt").write_text("".join(lines))


def noted_with(package: str, folder: Path) -> dict[str, Any]:
    """What the program noted with trainers of this package."""
    installed(folder)
    beats = BeatDir(folder / "beats")
    env = beats.environment(CUDA_VISIBLE_DEVICES="")
    env["PYTHONPATH"] = os.pathsep.join([str(folder), env["PYTHONPATH"]])
    command = [sys.executable, __file__, str(folder), package]
    ran = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    beats.close()
    found: dict[str, Any] = json.loads((folder / "noted.json").read_text())
    return found


@pytest.fixture(scope="module")
def noted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return noted_with(FOUND[0], tmp_path_factory.mktemp("lightning"))


FIT = ["train: -", "save: checkpoint", "train: -", "save: checkpoint", "validate: validation"]
CHECKED_FIT = ["validate: sanity check", *FIT]
PARTS = ["train: -", "validate: validation", "train: -", "save: checkpoint", "validate: validation"]
NOTES = {
    "fit": ["validate: sanity check", *PARTS],
    "after the fit": ["save: -"],
    "validate": ["validate: validation"],
    "test": ["test: test"],
    "predict": ["predict: prediction"],
    "by hand": CHECKED_FIT,
    "fails": CHECKED_FIT,
    "another after that": CHECKED_FIT,
    "nothing to validate": ["train: -"],  # the sanity check without a batch is over before training
}


def test_each_stage_of_a_trainer_is_a_section(noted: dict[str, Any]) -> None:
    assert {name: noted[name]["notes"] for name in NOTES} == NOTES
    assert noted["fails and saves"]["notes"][:6] == CHECKED_FIT
    again = noted["the same after that"]["notes"]
    assert {"train: -", "save: checkpoint", "validate: validation"} <= set(again) <= set(CHECKED_FIT)
    assert [name for name, ran in noted.items() if ran["open"]] == []


def test_the_callback_is_not_installed_outside_ftrun_and_does_nothing_there(noted: dict[str, Any]) -> None:
    ran = noted["outside"]
    assert ran["ours"] == 0
    assert ran["slot"]["magic"] == 0
    assert set(ran["notes"]) == {"validate: -", "train: -", "save: -"}


def check_fit(ran: dict[str, Any]) -> None:
    """The trainer has the callback, reports each batch and each complete checkpoint, and is then as before."""
    assert ran["ours"] == 1
    assert ran["slot"]["step"] == ran["slot"]["checkpoint_step"] == 3  # two batches a step
    assert len(ran["moved"]) == 4
    assert ran["moved"] == sorted(set(ran["moved"]))
    assert [too_early for too_early, _ in ran["saves"]] == [False]
    assert Path(ran["path"]).name in ran["files"]
    assert not ran["wrapped"]


def test_every_trainer_has_the_callback(noted: dict[str, Any]) -> None:
    check_fit(noted["fit"])


@pytest.mark.slow  # the callback is the same one, which finds its trainer in another package
@pytest.mark.skipif(len(FOUND) < 2, reason=f"only {FOUND} is installed")
def test_every_trainer_of_the_other_package_has_the_callback(tmp_path: Path) -> None:
    ran = noted_with(FOUND[1], tmp_path)["fit"]
    check_fit(ran)
    assert ran["notes"] == NOTES["fit"]


def test_a_given_timeout_is_for_the_validation_and_the_default_for_each_batch(noted: dict[str, Any]) -> None:
    assert noted["by hand"]["left"] == [True]  # it replaces the installed one
    timed, anew = noted["by hand"]["sections"], noted["without a timeout"]["sections"]
    assert len(timed) == len(anew) == 4
    assert len({started for started, _ in timed}) == 1
    assert len({started for started, _ in anew}) == 4
    assert {timeout for _, timeout in timed} == {90 * 10**9}
    assert {timeout for _, timeout in anew} == {0}
    assert [timeouts for _, timeouts in noted["by hand"]["saves"]] == [[3600 * 10**9]] * 2


def test_an_exception_closes_the_section_and_its_checkpoint_is_reported(noted: dict[str, Any]) -> None:
    assert noted["fails"]["slot"]["broken_at"] > noted["fails"]["slot"]["moved_at"]
    assert noted["fails and saves"]["path"].endswith("broken/saved.ckpt")
    assert not noted["the same after that"]["wrapped"]


def test_a_save_by_which_the_program_has_replaced_that_of_the_trainer_stays(noted: dict[str, Any]) -> None:
    assert noted["a save of the program"]["stays"]
    assert noted["a save of the program"]["called"]


@pytest.mark.parametrize("how", ["in the background", "tuner", "barebones"])
def test_a_checkpoint_that_is_incomplete_or_temporary_is_not_reported(noted: dict[str, Any], how: str) -> None:
    assert not noted[how]["reported"]


def test_each_rank_has_its_own_slot(noted: dict[str, Any]) -> None:
    assert noted["two ranks"]["steps"] == [3, 3]
    assert all(noted["ranks that only the trainer knows"]["pids"])


if __name__ == "__main__":
    home = Path(sys.argv[1])
    (home / "noted.json").write_text(json.dumps(program(home, sys.argv[2])))
