"""Which of the NVIDIA devices that NVML lists a job may use, by CUDA_VISIBLE_DEVICES.  Pure.

The CUDA Programming Guide ("CUDA environment variables") has the rules: unset means all; entries are positions or
UUIDs, and a UUID may be abbreviated as long as it names one device; the first entry that names none ends the list (-1
is used for that).  As in the driver, "1gpu" is 1, and a repeated entry makes the list empty.

NVIDIA_VISIBLE_DEVICES is ignored.  It is meant for the container runtime, and NVML does not list what that leaves out;
inside a container it misleads: with GPUs from CDI it is `void` (nvidia-container-toolkit#395).
"""

import re
from collections.abc import Sequence

from ftrun.core.named_tuple import NamedTuple


class Mig(NamedTuple):
    """A MIG device: a compute instance within a GPU instance."""

    uuid: str
    gpu_instance: int
    compute_instance: int


class Gpu(NamedTuple):
    """`number`: as in nvidia-smi; `uuid`: empty if unknown; `migs`: its MIG devices if it is partitioned."""

    number: int
    uuid: str
    migs: tuple[Mig, ...] = ()


Unit = tuple[Gpu, Mig | None]


def selected(setting: str | None, gpus: Sequence[Gpu]) -> dict[Unit, str]:
    """The devices of `gpus`, in order, that this value of CUDA_VISIBLE_DEVICES (None: unset) selects: GPUs that are not
    partitioned, and MIG devices.  Each with the entry that names it, or "" if there is none that names it alone."""
    if setting is None:
        return {unit: "" for gpu in gpus for unit in _units(gpu)}
    found: dict[Unit, str] = {}
    for entry in map(str.strip, setting.split(",")):
        named = _named(entry, gpus)
        if any(unit in found for unit in named):
            return {}
        if not named:
            break
        found |= dict.fromkeys(named, entry if len(named) == 1 else "")
    return found


def has_positions(setting: str | None) -> bool:
    """Whether the order of the devices matters."""
    return setting is not None and re.match(r"\s*\+?\d", setting) is not None


def _units(gpu: Gpu) -> list[Unit]:
    return [(gpu, mig) for mig in gpu.migs] or [(gpu, None)]


def _named(entry: str, gpus: Sequence[Gpu]) -> list[Unit]:
    position = re.match(r"\+?(\d+)", entry)
    if position:
        return [unit for gpu in gpus[int(position[1]) :][:1] for unit in _units(gpu)]
    if entry.startswith("GPU-"):
        # A GPU that was lost before its UUID was read must be the one that no other GPU matches.
        matching = [gpu for gpu in gpus if gpu.uuid.startswith(entry)] or [gpu for gpu in gpus if not gpu.uuid]
        return _units(matching[0]) if len(matching) == 1 else []
    if entry.startswith("MIG-"):
        migs = [(gpu, mig) for gpu in gpus for mig in gpu.migs]
        # Until driver 470 a MIG device was called MIG-<GPU-UUID>/<GPU instance>/<compute instance>; that still works.
        exact = [(g, m) for g, m in migs if entry == f"MIG-{g.uuid}/{m.gpu_instance}/{m.compute_instance}"]
        named: list[Unit] = [*(exact or [(gpu, mig) for gpu, mig in migs if mig.uuid.startswith(entry)])]
        return named if len(named) == 1 else []
    return []
