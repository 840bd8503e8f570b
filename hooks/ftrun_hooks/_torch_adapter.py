"""All that recovery below the tree knows about PyTorch: process groups, errors of collectives, and memory of tensors.

PyTorch is never imported here: what the program has not loaded needs no treatment.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from ctypes import memmove
from types import FunctionType
from typing import Any

from ._report import OURS

# What gloo, NCCL and torch's store say in a RuntimeError when a peer is gone.  Compared in lower case.
BROKEN = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection refused",
    "gloo/transport",
    "connectfullmesh failed",
    "nccl error",
    "nccl communicator was aborted",
    "failed to recv, got",
    "timed out waiting",
)
KINDS = ("DistBackendError", "DistNetworkError", "DistStoreError")


def prepare() -> None:
    """Before the first process group: NCCL's own watchdog must not end the process that ftrun keeps."""
    for name in OURS:
        os.environ.setdefault(name, "0")


def is_collective_error(error: BaseException) -> bool:
    """Whether a collective, or its preparation, failed because of another rank."""
    if any(kind.__name__ in KINDS and kind.__module__.startswith("torch") for kind in type(error).__mro__):
        return True
    text = str(error)[:4096].lower()
    return isinstance(error, RuntimeError) and "torch" in sys.modules and any(said in text for said in BROKEN)


def abort() -> None:
    """Called in a side thread when the round ends: free the main thread from a collective of NCCL.

    A collective of gloo is freed when its peers leave; aborting it would free nothing.
    """
    groups = sys.modules.get("torch.distributed.distributed_c10d")
    if groups is not None and groups.is_initialized() and "nccl" in groups.get_backend():
        groups._abort_process_group()


def end_groups() -> str | None:
    """The function has been left: end its process groups.  Returns why this process cannot work in another round, or
    None."""
    groups: Any = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        if groups is not None:
            if groups.is_initialized():
                groups.destroy_process_group()
            _release(_holders_of_groups(groups), groups)
    except Exception as error:
        return f"its process groups cannot be ended: {error}"
    return None


def forget_ended_groups() -> None:
    """The function has returned: where it has ended its process groups, end their threads, too.  Never raises.

    A thread of gloo frees the tensors of a collective after it has announced its end.  If Python is finalizing by
    then, the process aborts (https://github.com/pytorch/pytorch/issues/190489).
    """
    groups: Any = sys.modules.get("torch.distributed.distributed_c10d")
    with suppress(Exception):  # the training has succeeded
        if groups is not None and not groups.is_initialized() and (holders := _holders_of_groups(groups)):
            gc.collect()  # first: as its last owner, a DistributedDataParallel would end it with the GIL held
            _release(holders, groups)


def give_memory_back() -> str | None:
    """Give back the memory of the device that nothing uses any more.  Returns why this process cannot work in another
    round, or None."""
    torch: Any = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()  # raises for ever once an error has corrupted the context
            torch.cuda.empty_cache()
    except Exception as error:
        return f"CUDA does not work any more: {error}"
    return None


def allocated() -> dict[int, int]:
    """The bytes of tensors on each device of CUDA."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    return {number: torch.cuda.memory_allocated(number) for number in range(torch.cuda.device_count())}


def store_port() -> int | None:
    """The port of the store over which the ranks of this round have met, or None if there is none."""
    groups: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if groups is None or not groups.is_initialized():
        return None
    store = groups._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "port", None)


def _holders_of_groups(groups: Any) -> list[FunctionType]:
    """Functions of `torch.distributed.nn` have the group as the default of a parameter, if they were loaded while it
    existed, as by the first optimizer.  While anything refers to a group of gloo, its connections stay open, and the
    other ranks wait in their collectives."""
    return [
        function
        for name, module in [*sys.modules.items()]
        if name.startswith("torch.distributed.") and module is not None
        for function in [*vars(module).values()]
        if type(function) is FunctionType
        if any(isinstance(one, groups.ProcessGroup) for one in function.__defaults__ or ())
    ]


def _release(holders: list[FunctionType], groups: Any) -> None:
    """Replace these groups, as defaults of parameters, by None, which stands for the group at the time of the call."""
    for function in holders:
        defaults = function.__defaults__ or ()
        function.__defaults__ = tuple(None if isinstance(one, groups.ProcessGroup) else one for one in defaults)


def is_tensor(value: object) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


class TensorData:
    """A tensor that is to be kept: its description, and its size in bytes.  TypeError for one that is spread over
    ranks."""

    def __init__(self, tensor: Any) -> None:
        torch: Any = sys.modules["torch"]
        if hasattr(tensor, "to_local") or tensor.layout is not torch.strided or tensor.is_quantized:
            raise TypeError(f"run.keep cannot copy a {type(tensor).__name__} ({tensor.layout}): keep its local tensor")
        self._tensor = tensor.detach()
        self.dtype, self.shape = str(tensor.dtype).rpartition(".")[2], list(tensor.shape)
        self.size: int = tensor.numel() * tensor.element_size()

    def write(self, memory: memoryview) -> None:
        source = self._tensor
        if not self.size:
            return
        copy = _tensor(memory, self.dtype, self.shape)
        if source.device.type == "cpu" and source.is_contiguous() and not (source.is_conj() or source.is_neg()):
            # Without the GIL, and without torch's threads, which wait for each other on a busy machine.
            memmove(copy.data_ptr(), source.data_ptr(), self.size)
        else:
            copy.copy_(source)


def read(memory: memoryview, dtype: str, shape: list[int]) -> Any:
    """A new tensor on the CPU with this content."""
    import torch

    if not memory.nbytes:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return _tensor(memory, dtype, shape).clone()


def _tensor(memory: memoryview, dtype: str, shape: list[int]) -> Any:
    import torch

    return torch.frombuffer(memory, dtype=getattr(torch, dtype)).reshape(shape)


def write_in_place(target: Any, value: Any) -> None:
    import torch

    with torch.no_grad():
        target.copy_(value)
