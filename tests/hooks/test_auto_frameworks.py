"""Automatic heartbeats of other frameworks than PyTorch, with packages that are these frameworks in name only.

tests/cli/test_frameworks.py has the real ones.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.beat_file import HOUSE, BeatDir

AUTO = HOUSE / "hooks" / "ftrun_hooks" / "auto"
OPTIMIZER = """
class Optimizer:
    def __init__(self): self.made = True
    def __call__(self, gradients): return gradients
"""
PACKAGES = {
    "mindspore/nn/optim/optimizer": OPTIMIZER,
    "mindspore/train/callback/_callback": """
class CallbackManager:
    def on_train_step_end(self, run_context): return run_context
""",
    "mindspore/common/api": "from mindspore.graph.api import _JitExecutor, _CellGraphExecutor\n",
    "mindspore/graph/api": """
class _JitExecutor:
    def __call__(self, *inputs): return inputs
class _CellGraphExecutor(_JitExecutor): pass
""",
    "mindspore/train/serialization": """
def _exec_save(ckpt_file_name, data_list):
    with open(ckpt_file_name, 'w') as file: file.write(data_list)
def save_checkpoint(save_obj, ckpt_file_name): _exec_save(ckpt_file_name, save_obj)
def load_checkpoint(ckpt_file_name):
    with open(ckpt_file_name) as file: return file.read()
""",
    "paddle/__init__": "dynamic = True\ndef in_dynamic_mode(): return dynamic\n",
    "paddle/optimizer/optimizer": """
class Optimizer:
    def step(self): return 'stepped'
    def minimize(self, loss): return loss
""",
    "paddle/optimizer/adam": """
from paddle.optimizer.optimizer import Optimizer
class Adam(Optimizer):
    def step(self): return 'Adam'
""",
    "paddle/base/executor": "class Executor:\n def run(self, program): return program\n",
    "keras/src/callbacks/callback_list": """
class CallbackList:
    model = 'model'
    def on_train_batch_end(self, batch): return batch
    def on_test_batch_end(self, batch): return batch
    def on_predict_batch_end(self, batch): return batch
""",
    "orbax/checkpoint/checkpoint_manager": """
class CheckpointManager:
    directory = '.'
    def _get_save_directory(self, step, directory): return directory
    def _finalize(self, step, steps_to_remove): return steps_to_remove
""",
    "jax/numpy": "",
}
HEAD = """
import sys
from support import beat_file
def shows(*what): print(beat_file.slot()['step'], beat_file.slot()['moved_at'] > 0, *what)
"""
# The program, and per line: the step as the slot stores it, whether it has moved, and what it got.
PROGRAMS = {
    "a functional loop of MindSpore": (
        "from mindspore.nn.optim.optimizer import Optimizer\none = Optimizer(); shows(one(5)); one(5); shows(one.made)",
        ["1 True 5", "2 True True"],
    ),
    "a generator and its opponent": (
        "from mindspore.nn.optim.optimizer import Optimizer\n"
        "one, two = Optimizer(), Optimizer(); one(0); two(0); one(0); two(0); shows()",
        ["2 True"],
    ),
    "Model.train, compiled and not": (
        "from mindspore.nn.optim.optimizer import Optimizer\n"
        "from mindspore.train.callback._callback import CallbackManager\n"
        "one, callbacks = Optimizer(), CallbackManager(); shows(callbacks.on_train_step_end(7))\n"
        "callbacks.on_train_step_end(8); shows()\n",
        ["1 True 7", "2 True"],
    ),
    "Model.train, not compiled": (
        "from mindspore.nn.optim.optimizer import Optimizer\n"
        "from mindspore.train.callback._callback import CallbackManager\n"
        "one, callbacks = Optimizer(), CallbackManager()\n"
        "for _ in range(3): one(0); callbacks.on_train_step_end(7)\n"
        "shows()",
        ["3 True"],
    ),
    "a compiled function, without an optimizer and with one": (
        "import mindspore.common.api as api\n"
        "from mindspore.nn.optim.optimizer import Optimizer\n"
        "step = api._JitExecutor(); step(1); shows(step(1)); Optimizer(); step(1); shows(); step(1); shows()",
        ["0 False (1,)", "0 False", "0 True"],
    ),
    "a loop of PaddlePaddle": (
        "from paddle.optimizer.adam import Adam, Optimizer\n"
        "one = Adam(); shows(one.step()); one.step(); shows(); Optimizer().minimize(1); shows()",
        ["1 True Adam", "2 True", "2 True"],
    ),
    "a static program of PaddlePaddle": (
        "import paddle, paddle.base.executor\n"
        "from paddle.optimizer.optimizer import Optimizer\n"
        "paddle.dynamic = False; run = paddle.base.executor.Executor().run\n"
        "run(0); shows(); Optimizer().minimize(1); run(0); shows(); shows(run(3))",
        ["0 False", "0 False", "0 True 3"],
    ),
    "Keras": (
        "from keras.src.callbacks.callback_list import CallbackList\n"
        "one = CallbackList(); one.on_test_batch_end(1); shows(one.on_predict_batch_end(2))\n"
        "one.on_train_batch_end(0); shows(one.on_train_batch_end(3))",
        ["0 False 2", "2 True 3"],
    ),
    "Orbax": (
        "from orbax.checkpoint.checkpoint_manager import CheckpointManager\n"
        "print(CheckpointManager()._finalize(8, [2])); shows(beat_file.slot()['checkpoint_step'])",
        ["[2]", "9 True 9"],
    ),
    "JAX": ("import jax.numpy; shows()", ["0 False"]),
}


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    for module, text in PACKAGES.items():
        path = tmp_path / f"{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def run(beats: BeatDir, packages: Path, code: str, **more: str) -> list[str]:
    path = os.pathsep.join(map(str, [AUTO, packages, HOUSE / "tests"]))
    environment = beats.environment(PYTHONPATH=path, **more)
    done = subprocess.run(
        [sys.executable, "-c", HEAD + code], env=environment, cwd=packages, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize(("code", "shown"), PROGRAMS.values(), ids=PROGRAMS.keys())
def test_each_step_of_a_framework_is_a_movement(beats: BeatDir, packages: Path, code: str, shown: list[str]) -> None:
    assert run(beats, packages, code) == shown


def test_the_rank_is_the_one_of_the_framework(beats: BeatDir, packages: Path) -> None:
    code = "from mindspore.nn.optim.optimizer import Optimizer; Optimizer()(0)"
    run(beats, packages, code, RANK_ID="3")
    run(beats, packages, "from paddle.optimizer.optimizer import Optimizer; Optimizer().step()", PADDLE_TRAINER_ID="4")
    run(beats, packages, code, RANK_ID="3", RANK="5")
    run(beats, packages, code, RANK_ID="none")
    assert [rank for rank in range(8) if beats.slot(rank)["step"] == 1] == [0, 3, 4, 5]


def test_saved_and_loaded_files_are_noted(beats: BeatDir, packages: Path) -> None:
    code = """
from mindspore.train.serialization import load_checkpoint, save_checkpoint
from mindspore.nn.optim.optimizer import Optimizer
save_checkpoint('old', 'kept'); load_checkpoint('kept'); Optimizer()(0); save_checkpoint('new', 'kept')
"""
    run(beats, packages, code)
    (note,) = beats.folder.glob("saved-*")
    assert [line.split()[::2] for line in note.read_text().splitlines()] == [
        ["S", str(packages / "kept")],
        ["L", str(packages / "kept")],
    ]


@pytest.mark.parametrize("module", [module for module in PACKAGES if "__init__" not in module])
def test_an_unknown_version_runs_as_without_ftrun(beats: BeatDir, packages: Path, module: str) -> None:
    """A module without what the hooks look for, and one that fails."""
    name = module.replace("/", ".")
    code = f"import sys; import {name} as module; print(sorted(n for n in vars(module) if n[0] != '_'))"
    (packages / f"{module}.py").write_text("other = 1\n")
    assert run(beats, packages, code) == ["['other']"]
    (packages / f"{module}.py").write_text("raise OSError('broken')\n")
    code = f"try: import {name}\nexcept OSError as error: print(error)"
    assert run(beats, packages, code) == ["broken"]


def test_nothing_is_imported_that_the_program_does_not_import(beats: BeatDir, packages: Path) -> None:
    code = "import jax.numpy; print([name for name in sys.modules if name.startswith('ftrun_hooks._auto_')])"
    assert run(beats, packages, code) == ["[]"]
