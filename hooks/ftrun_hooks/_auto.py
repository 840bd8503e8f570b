"""Automatic heartbeats: each optimizer step and each batch is a heartbeat, and a long save is a section.

This module is loaded when the program itself imports torch, or another package for which `auto/sitecustomize.py`
watches.  An error in it never reaches the program.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident
from importlib import import_module
from types import ModuleType
from typing import Any, Callable

from . import _importlib_bootstrap as replacing
from . import layout as at
from ._beat import beat, own_slot
from ._files import known
from ._importlib_bootstrap import Target, in_trial, is_compiling, noting, with_beats, with_exit_noted, with_movement
from ._section import Automatic

MAX_OPTIMIZERS = 4096  # optimizers in one round; a program may make a new optimizer for each step


class Training:
    """The progress of this process, as its optimizers and data loaders show it.

    Optimizer steps are counted in rounds: a round ends when an optimizer steps that has already stepped in it, so the
    two optimizers of a GAN make one step.  The count continues from the count with which an optimizer was restored.  It
    is no longer reported once the program reports steps of its own.  As long as no optimizer of PyTorch has stepped,
    each backward pass is a heartbeat instead, without a step: the first one does not count, since a program may try out
    one.

    When a data loader is exhausted, evaluation, saving or the end of the program follows, which may legitimately take
    long: this time is a section.  The next batch ends it, or the second round after its start, because a loader that
    prefetches one batch is exhausted before the last step.
    """

    def __init__(self) -> None:
        self.optimizes = False
        self.trials = 0  # calls under way whose steps do not count
        self.begin()

    def begin(self) -> None:
        """Begin to count; also called in a forked child, which has a slot of its own, or none."""
        self.stepped: set[int] = set()
        self.step = -1
        self.restored = 0
        self.reported = 0
        self.program_reports_steps = False
        self.between: Automatic | None = None
        self.rounds_between = 0
        self.backward_passes = self.graphs = 0

    def optimizer_stepped(self, optimizer: Any) -> None:
        if self.trials:
            return
        if own_slot.words is None:
            if own_slot.settled:
                return
            own_slot.claim(_rank_in_group(), "PyTorch")
        if not self.stepped:
            restored = _restored(optimizer)
            self.step, self.restored = self.step + restored, self.restored + restored
        if not self.stepped or id(optimizer) in self.stepped or len(self.stepped) == MAX_OPTIMIZERS:
            self.stepped = set()
            self.step += 1
            self._count_round()
        self.stepped.add(id(optimizer))
        self.program_reports_steps = self.program_reports_steps or own_slot.step != self.reported
        beat(None if self.program_reports_steps else self.step)
        self.reported = own_slot.step

    def went_backward(self) -> None:
        self.backward_passes += 1
        if self.backward_passes > 1:
            self.moved()

    def made_optimizer(self, optimizer: Any) -> None:
        """An optimizer was made.  A process without an optimizer may be a server that waits for requests, and gives no
        heartbeats while it computes."""
        self.optimizes = True

    def graph_ran(self) -> None:
        """A compiled function, of which it is not known whether it is a step.  The first one may set the weights, and
        the program may load others then."""
        if self.optimizes:
            self.graphs += 1
            if self.graphs > 1:
                self.moved()

    def moved(self) -> None:
        """A part of training has ended that is not known to be one step: a heartbeat as long as no optimizer steps, in
        the main thread: what other threads do is a part of this, or not known to be training."""
        if self.step >= 0 or (own_slot.words is None and own_slot.settled) or get_ident() != own_slot.main:
            return
        if own_slot.words is None:
            own_slot.claim(_rank_in_group(), "PyTorch")
        self._count_round()
        beat()

    def _count_round(self) -> None:
        self.rounds_between += 1
        if self.rounds_between > 1:
            self._leave_between()

    def counts_from_zero(self) -> bool:
        """Whether the steps do not include those of earlier processes: the program reports no steps itself, and no
        optimizer was restored with its count."""
        return not self.program_reports_steps and self.restored == 0 and own_slot.step == self.reported

    def batch_arrived(self) -> None:
        if _beats_here():
            self._leave_between()
            beat()

    def data_ended(self) -> None:
        if _beats_here() and self.between is None:
            self.rounds_between = 0
            self.between = Automatic("between epochs")
            self.between.__enter__()

    def _leave_between(self) -> None:
        between, self.between = self.between, None
        if between is not None:
            between.__exit__()


class StepReceiver:
    """Receives each optimizer that has made a step, through an attribute.

    Dynamo traces a step hook into the program's graph, where a call would break the graph or be lost.  Setting an
    attribute is a side effect, which dynamo repeats after each run of the graph, and then the setter runs.
    """

    def _optimizer_stepped(self, optimizer: Any) -> None:
        if is_compiling():  # dynamo traces even the setter: a missing heartbeat is better than a broken graph
            return
        try:
            training.optimizer_stepped(optimizer)
        except Exception:
            pass

    optimizer = property(None, _optimizer_stepped)


class ModuleStepReceiver(StepReceiver, ModuleType):
    """For torch 2.5 and later, which trace the setter of every object except a module."""


def step_hook(optimizer: Any, args: Any, kwargs: Any) -> None:
    step_receiver.optimizer = optimizer


def was_saved(target: Any) -> None:
    """The program's own save to `target` is complete."""
    try:
        if training.counts_from_zero():
            known.was_saved(target)
    except Exception:
        pass


def claim_as(framework: str, *variables: str) -> None:
    """Claim the slot of the rank that the first of these variables names that is set, unless RANK or LOCAL_RANK is."""
    if own_slot.words is None and not own_slot.settled:
        text = next((text for name in variables if (text := os.environ.get(name))), "")
        own_slot.claim(int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None, framework)


def _compiler(module: Any) -> None:
    global is_compiling
    is_compiling = replacing.is_compiling = module.is_compiling


def _optimizer(module: Any) -> None:
    global step_receiver
    module.register_optimizer_step_post_hook(step_hook)
    major, minor = sys.modules["torch"].__version__.split(".")[:2]
    if (int(major), int(minor)) < (2, 5):
        step_receiver = StepReceiver()


def _autograd(module: Any) -> None:
    """Both `backward` and `grad` use this function.  Dynamo leaves out the files of torch.autograd, and has to leave
    out what takes the place of one of their functions, which would be another graph break."""
    run = with_movement(module._engine_run_backward, training)
    frames = sys.modules["torch"]._C._dynamo.eval_frame
    if hasattr(frames, "skip_code"):  # up to torch 2.6
        frames.skip_code(run.__code__)
    else:
        action = frames._FrameAction
        frames.set_code_exec_strategy(run.__code__, frames._FrameExecStrategy(action.SKIP, action.DEFAULT))
    module._engine_run_backward = run


def _loader(module: Any) -> None:
    iterator = module._BaseDataLoaderIter
    iterator.__next__ = with_beats(iterator.__next__, training)


def _wrapped(package: str, saves: dict[str, Target], loads: dict[str, Target]) -> Callable[[Any], None]:
    """Replaces functions of libraries that have no public hook for saving and loading.  A save is a section; the file
    that was saved or loaded is noted when the call has returned."""

    def replace(module: Any) -> None:
        for name, target in saves.items():
            setattr(module, name, noting(getattr(module, name), was_saved, target, f"{package}.{name}"))
        for name, target in loads.items():
            setattr(module, name, noting(getattr(module, name), known.was_loaded, target, ""))

    return replace


def _optimizer_state(module: Any) -> None:
    """An optimizer that has no state yet makes a step with gradients of zero before its state is loaded or saved."""
    module._init_optim_state = in_trial(module._init_optim_state, training)


def _lightning(module: Any) -> None:
    """It passes torch.save a buffer, which it then writes into the file; torch.load gets the open file."""
    module._atomic_save = noting(module._atomic_save, was_saved, (1, ("filepath",)), "lightning.save")


def _distributed_load(module: Any) -> None:
    module.load = noting(module.load, known.was_loaded, READ, "torch.distributed.checkpoint.load")


def _hydra(module: Any) -> None:
    """Hydra prints an exception of the program and ends with sys.exit, of which Python tells no hook."""
    module.run_and_report = with_exit_noted(module.run_and_report)


NOTHING: Target = (None, ())
WRITTEN: Target = (None, ("checkpoint_id", "storage_writer"))
READ: Target = (None, ("checkpoint_id", "storage_reader"))
AFTER: dict[str, Callable[[Any], None]] = {
    "torch.autograd.graph": _autograd,
    "torch.compiler": _compiler,
    "torch.optim.optimizer": _optimizer,
    "torch.utils.data.dataloader": _loader,
    "torch.serialization": _wrapped("torch", {"save": (1, ("f",))}, {"load": (0, ("f",))}),
    # Takes the place of torch.save and torch.load where torch_npu is imported.
    "torch_npu.utils.serialization": _wrapped("torch", {"save": (1, ("f",))}, {"load": (0, ("f",))}),
    # An asynchronous save is not complete when the call returns: its thread calls `save`.
    "torch.distributed.checkpoint.state_dict_saver": _wrapped(
        "torch.distributed.checkpoint", {"save": WRITTEN, "async_save": NOTHING}, {}
    ),
    "torch.distributed.checkpoint.state_dict_loader": _distributed_load,
    "torch.distributed.checkpoint.state_dict": _optimizer_state,
    "lightning.fabric.utilities.cloud_io": _lightning,
    "lightning_fabric.utilities.cloud_io": _lightning,
    "safetensors.torch": _wrapped("safetensors", {"save_file": (1, ("filename",))}, {"load_file": (0, ("filename",))}),
    # `from_pretrained`; `save_pretrained` calls the function above.
    "transformers.modeling_utils": _wrapped("safetensors", {}, {"safe_open": (0, ("filename",))}),
    "hydra._internal.utils": _hydra,
}


# The frameworks by the packages that are watched for; those with a file of their own, `_auto_<package>.py`.
PACKAGES = {
    "torch": "PyTorch",
    "mindspore": "MindSpore",
    "paddle": "PaddlePaddle",
    "keras": "Keras",
    "orbax": "Orbax",
    "jax": "JAX",
    "tensorflow": "TensorFlow",
}
OTHERS = ("keras", "mindspore", "orbax", "paddle")


def find(asking: Any, name: str, path: Any, target: Any) -> Any:
    """The spec of a module of AFTER, from the finders after `asking`; None for any other module."""
    package = name.partition(".")[0]
    if package in PACKAGES and package not in imported:
        imported.add(package)
        _note_import(PACKAGES[package])
        if package in OTHERS:
            AFTER.update(import_module(f"ftrun_hooks._auto_{package}").AFTER)
    if name not in AFTER:
        return None
    for finder in sys.meta_path[sys.meta_path.index(asking) + 1 :]:
        spec = finder.find_spec(name, path, target)
        if spec is not None:
            _once(spec.loader)
            return spec
    return None


def _note_import(framework: str) -> None:
    """For the supervisor, which says what it can see of this program."""
    try:
        path = os.path.join(os.environ["FTRUN_BEAT_DIR"], at.BEATS)
        with open(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC), "r+b", buffering=0) as file:
            whole = os.fstat(file.fileno()).st_size == at.FILE_BYTES
            if whole and int.from_bytes(file.read(at.WORD), sys.byteorder) == at.MAGIC:
                file.seek((at.H_FRAMEWORKS + at.FRAMEWORKS.index(framework)) * at.WORD)
                file.write((1).to_bytes(at.WORD, sys.byteorder))
    except Exception:
        pass


def _once(loader: Any) -> None:
    """Pass the next module that the loader executes to its function in AFTER."""
    own = vars(loader)
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        own.pop("exec_module", None)
        execute(module)
        try:
            AFTER[module.__name__](module)
        except Exception:
            pass

    if "exec_module" not in own:
        own["exec_module"] = exec_module


def _beats_here() -> bool:
    return own_slot.words is not None and get_ident() == own_slot.main


def _restored(optimizer: Any) -> int:
    """The number of steps before this one, if it can be read without access to a device."""
    try:
        for kept in (*list(optimizer.state.values())[:1], optimizer.param_groups[0]):
            step = kept.get("step")
            if type(step) in (int, float) or (type(step) is sys.modules["torch"].Tensor and step.device.type == "cpu"):
                return max(0, int(step) - 1)
    except Exception:
        pass
    return 0


def _rank_in_group() -> int | None:
    """The rank in torch.distributed, for a process started without RANK (torch.multiprocessing.spawn); None outside a
    process group."""
    try:
        distributed = sys.modules["torch.distributed"]
        return max(0, distributed.get_rank()) if distributed.is_initialized() else None
    except Exception:
        return None


training = Training()
imported: set[str] = set()
step_receiver: StepReceiver = ModuleStepReceiver("step_receiver")
os.register_at_fork(after_in_child=training.begin)
