"""How much memory the control group of ftrun, or the machine, has left (cgroup-v2.rst, memory.rst; proc_meminfo(5))."""

import os
from typing import Final

from ftrun.core.rules.standby import Memory
from ftrun.host import mounts, oom, procfs

MEMINFO: Final = "/proc/meminfo"
LIMIT: Final = 1 << 60  # version 1 writes a number near 2**63 for no limit


def available(folder: str | None = None) -> Memory | None:
    """Return the smallest of what is left in the control group, the visible groups above it, and the machine; None if
    the kernel shows none of them.  `folder`: the group's, if known.  Cached files count as free, since the kernel
    drops them first."""
    found = [memory for memory in (_machine(), *_groups(_folder() if folder is None else folder)) if memory is not None]
    return min(found, key=lambda memory: memory.free, default=None)


def _folder() -> str:
    paths = oom.files(oom.text("/proc/self/cgroup"), mounts.listed())
    return next((os.path.dirname(path) for path in paths if procfs.read(path, 1) is not None), "")


def _machine() -> Memory | None:
    fields = _fields(MEMINFO)
    if "MemAvailable:" not in fields or "MemTotal:" not in fields:
        return None
    return Memory(1024 * fields["MemTotal:"], 1024 * fields["MemAvailable:"])


def _groups(folder: str) -> list[Memory | None]:
    """Return what is left in each group from `folder` upwards, as far as they are visible."""
    found: list[Memory | None] = []
    while len(folder) > 1:
        found += [
            _group(folder, "memory.max", "memory.current", "inactive_file"),
            _group(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ]
        folder = os.path.dirname(folder)
    return found


def _group(folder: str, limit: str, usage: str, cached: str) -> Memory | None:
    most, used = (procfs.read(f"{folder}/{name}", 64) for name in (limit, usage))
    if most is None or used is None or not most.strip().isdigit() or not used.strip().isdigit() or int(most) >= LIMIT:
        return None
    return Memory(int(most), max(0, int(most) - int(used)) + _fields(f"{folder}/memory.stat").get(cached, 0))


def _fields(path: str) -> dict[str, int]:
    lines = (line.split() for line in (procfs.read(path, 1 << 16) or b"").decode("ascii", "replace").splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}
