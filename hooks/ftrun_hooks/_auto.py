"""Automatic beats: an optimizer step, a batch and a long save say by themselves that training moves.

Loaded when the program imports torch itself.  Whatever goes wrong in here, the program runs as if it were not there.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident
from functools import wraps
from types import ModuleType
from typing import Any, Callable, Optional, Tuple

from ._beat import beat
from ._files import known
from ._section import Automatic
from ._slot import mine

MANY = 4096  # optimizers in one round: a program that makes a new one each time
Target = Tuple[Optional[int], Tuple[str, ...]]  # of a call, where its file is: the position, and names of keywords


class Training:
    """What this process shows of it.

    Optimizer steps are counted in rounds: a round ends when an optimizer steps that has already stepped in it, so the
    two optimizers of a GAN make one step.  The count goes on from the one that an optimizer was restored with, and is
    not told any more once the program tells its own.

    After the data has come to its end there is evaluation, saving, the end of the program: long and legitimate, a
    section.  The next batch ends it, or the second round from there: a loader that looks one batch ahead is at its end
    before the last step.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """In a forked child too: it has a slot of its own, or none."""
        self.stepped: set[int] = set()
        self.step = -1
        self.restored = 0
        self.told = 0
        self.silent = False
        self.between: Automatic | None = None
        self.rounds_between = 0

    def optimizer_stepped(self, optimizer: Any) -> None:
        if mine.words is None:
            if mine.settled:
                return
            mine.claim(_rank_in_group())
        if not self.stepped:
            restored = _restored(optimizer)
            self.step, self.restored = self.step + restored, self.restored + restored
        if not self.stepped or id(optimizer) in self.stepped or len(self.stepped) == MANY:
            self.stepped = set()
            self.step += 1
            self.rounds_between += 1
            if self.rounds_between > 1:
                self._no_longer_between()
        self.stepped.add(id(optimizer))
        self.silent = self.silent or mine.step != self.told
        beat(None if self.silent else self.step)
        self.told = mine.step

    def counts_from_zero(self) -> bool:
        """Whether the steps tell nothing of what earlier processes did: not where an optimizer was restored with its
        count, nor where the program tells its own."""
        return not self.silent and self.restored == 0 and mine.step == self.told

    def batch_came(self) -> None:
        if _beats_here():
            self._no_longer_between()
            beat()

    def data_ended(self) -> None:
        if _beats_here() and self.between is None:
            self.rounds_between = 0
            self.between = Automatic("between epochs")
            self.between.__enter__()

    def _no_longer_between(self) -> None:
        between, self.between = self.between, None
        if between is not None:
            between.__exit__()


class Door:
    """Takes in each optimizer that stepped.

    Dynamo traces a step hook into the program's graph, where a call of ours would break the graph or be lost.  But
    setting an attribute is a side effect: dynamo does that again after each run of the graph, and the setter runs.
    """

    def _came_in(self, optimizer: Any) -> None:
        if is_compiling():  # a dynamo that traces even this: no beat is better than a broken graph
            return
        try:
            training.optimizer_stepped(optimizer)
        except Exception:
            pass

    optimizer = property(None, _came_in)


class ModuleDoor(Door, ModuleType):
    """From torch 2.5 on.  Later ones trace the setter of any object but a module."""


def is_compiling() -> bool:
    """Whether dynamo traces the caller; torch's own from when there is one.

    No name in this file is a torch module: dynamo would compile the functions that use it.
    """
    return False


def step_hook(optimizer: Any, args: Any, kwargs: Any) -> None:
    door.optimizer = optimizer


def was_saved(target: Any) -> None:
    """A save of the program's own to `target` is complete."""
    try:
        if target is not None and training.counts_from_zero():
            known.was_saved(target)
    except Exception:
        pass


def in_section(function: Callable[..., Any], name: str, target: Target) -> Callable[..., Any]:
    @wraps(function)
    def within(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return function(*args, **kwargs)
        with Automatic(name):
            result = function(*args, **kwargs)
        try:
            was_saved(_of_call(target, args, kwargs))
        except Exception:
            pass
        return result

    return within


def with_notice(function: Callable[..., Any], target: Target) -> Callable[..., Any]:
    """Takes note of what it has loaded."""

    @wraps(function)
    def within(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        try:
            loaded = None if is_compiling() else _of_call(target, args, kwargs)
            if loaded is not None:
                known.was_loaded(loaded)
        except Exception:
            pass
        return result

    return within


def with_beats(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @wraps(function)
    def __next__(self: Any) -> Any:
        if is_compiling():
            return function(self)
        try:
            batch = function(self)
        except StopIteration:
            training.data_ended()
            raise
        training.batch_came()
        return batch

    return __next__


def _compiler(module: Any) -> None:
    global is_compiling
    is_compiling = module.is_compiling


def _optimizer(module: Any) -> None:
    global door
    module.register_optimizer_step_post_hook(step_hook)
    major, minor = sys.modules["torch"].__version__.split(".")[:2]
    if (int(major), int(minor)) < (2, 5):
        door = Door()


def _loader(module: Any) -> None:
    iterator = module._BaseDataLoaderIter
    iterator.__next__ = with_beats(iterator.__next__)


def _of_call(target: Target, args: Any, kwargs: Any) -> Any:
    """The file that a call is about, or None."""
    number, names = target
    if number is not None and len(args) > number:
        return args[number]
    for name in names:
        if kwargs.get(name) is not None:
            return getattr(kwargs[name], "path", None) if name.startswith("storage_") else kwargs[name]
    return None


def _wrapped(package: str, saves: dict[str, Target], loads: dict[str, Target]) -> Callable[[Any], None]:
    """No public hook of these libraries tells when they save and load.  Saves are sections; what they and loads were
    about is noted when they have returned."""

    def replace(module: Any) -> None:
        for name, target in saves.items():
            setattr(module, name, in_section(getattr(module, name), f"{package}.{name}", target))
        for name, target in loads.items():
            setattr(module, name, with_notice(getattr(module, name), target))

    return replace


def _distributed_load(module: Any) -> None:
    module.load = with_notice(in_section(module.load, "torch.distributed.checkpoint.load", NOTHING), READ)


NOTHING: Target = (None, ())
WRITTEN: Target = (None, ("checkpoint_id", "storage_writer"))
READ: Target = (None, ("checkpoint_id", "storage_reader"))
AFTER: dict[str, Callable[[Any], None]] = {
    "torch.compiler": _compiler,
    "torch.optim.optimizer": _optimizer,
    "torch.utils.data.dataloader": _loader,
    "torch.serialization": _wrapped("torch", {"save": (1, ("f",))}, {"load": (0, ("f",))}),
    # An asynchronous save is not complete when the call returns.
    "torch.distributed.checkpoint.state_dict_saver": _wrapped(
        "torch.distributed.checkpoint", {"save": WRITTEN, "async_save": NOTHING}, {}
    ),
    "torch.distributed.checkpoint.state_dict_loader": _distributed_load,
    "safetensors.torch": _wrapped("safetensors", {"save_file": (1, ("filename",))}, {"load_file": (0, ("filename",))}),
}


def find(asking: Any, name: str, path: Any, target: Any) -> Any:
    """What the finders after the one that asks have for a module of AFTER; None for any other module."""
    if name not in AFTER:
        return None
    for finder in sys.meta_path[sys.meta_path.index(asking) + 1 :]:
        spec = finder.find_spec(name, path, target)
        if spec is not None:
            _once(spec.loader)
            return spec
    return None


def _once(loader: Any) -> None:
    """The next module that the loader executes is handed to its function of AFTER."""
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
    return mine.words is not None and get_ident() == mine.main


def _restored(optimizer: Any) -> int:
    """The steps it had done before this one, where it can tell without a look at a device."""
    try:
        for kept in (*list(optimizer.state.values())[:1], optimizer.param_groups[0]):
            step = kept.get("step")
            if type(step) in (int, float) or (type(step) is sys.modules["torch"].Tensor and step.device.type == "cpu"):
                return max(0, int(step) - 1)
    except Exception:
        pass
    return 0


def _rank_in_group() -> int | None:
    """Of a process that was started without RANK, as torch.multiprocessing.spawn does; None where it is in no group."""
    try:
        distributed = sys.modules["torch.distributed"]
        return max(0, distributed.get_rank()) if distributed.is_initialized() else None
    except Exception:
        return None


training = Training()
door: Door = ModuleDoor("door")
os.register_at_fork(after_in_child=training.begin)
