"""Checks of memory limits, process limits and the memory file system."""

import os
from collections.abc import Iterator
from typing import Final

from ftrun.cli.doctor.finding import Finding
from ftrun.host import beats, mounts, oom, procfs
from ftrun_hooks.layout import FILE_BYTES

GIB: Final = 1 << 30
MIB: Final = 1 << 20
WORKERS: Final = GIB  # bytes of /dev/shm: data workers pass batches in it
PIDS: Final = 4096
UNLIMITED: Final = 1 << 60  # bytes; version 1 reports a number of that order if there is no limit


def shared() -> Iterator[Finding]:
    """Heartbeats and data workers need it; the check creates a beat folder in it and removes it."""
    remedy = "docker: --shm-size=8g; Kubernetes: an emptyDir with medium Memory at /dev/shm"
    folders = mounts.memory_folders()
    try:
        made = beats.create()
        folder = os.path.dirname(made.path)
        made.close()
    except (beats.BeatsError, OSError) as error:
        where = folders[0] if folders else "/dev/shm"
        yield Finding(where, "missing", str(error), "ftrun does not start without room for the beat file", remedy)
        return
    found = os.statvfs(folder)
    size, free = found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail
    text = f"{_size(size)}, {_size(free)} free"
    needs = f"the beat file needs {FILE_BYTES // 1024} KiB"
    if folder != "/dev/shm":
        means = f"{needs}, which are available; PyTorch's data workers use /dev/shm, not a memory file system here"
        yield Finding(folder, "warning", text, means, remedy)
    elif free < WORKERS:
        means = f"{needs}, which are available; PyTorch's data workers need far more, and die of SIGBUS without it"
        yield Finding(folder, "warning", text, means, remedy)
    else:
        yield Finding(folder, "ok", text, f"{needs}; the rest is for PyTorch's data workers")


def groups() -> Iterator[Finding]:
    text = os.fsdecode(procfs.read("/proc/self/cgroup", 1 << 20) or b"")
    events = [path for path in oom.files(text, mounts.listed()) if os.path.exists(path)]
    if not events:
        means = "a rank killed by the OOM killer cannot be text from any other SIGKILL"
        yield Finding("cgroup", "warning", "not visible", means, "mount /sys/fs/cgroup; read-only is enough")
        return
    folder, version = os.path.dirname(events[0]), 2 if events[0].endswith("memory.events") else 1
    most = _number(folder, "memory.max" if version == 2 else "memory.limit_in_bytes")
    used = _number(folder, "memory.current" if version == 2 else "memory.usage_in_bytes")
    kills = oom.oom_kills()
    limit = "no memory limit" if most is None or most > UNLIMITED else f"memory limit {_size(most)}"
    now = "" if used is None else f", {_size(used)} used"
    killed = f", {kills} OOM kills so far" if kills else ""
    means = "ftrun distinguishes an OOM kill of a rank from other failures"
    remedy = "raise the memory limit, or use less memory: fewer data workers, a smaller cache" if kills else ""
    yield Finding("cgroup", "warning" if kills else "ok", f"version {version}, {limit}{now}{killed}", means, remedy)
    yield from grouped(folder)
    pids = _pids(text, folder, version)
    means = "each thread of each rank counts; at the limit fork fails"
    if pids is not None and pids < PIDS:
        remedy = "docker: --pids-limit -1; Kubernetes: podPidsLimit of the kubelet"
        yield Finding("pids limit", "warning", f"at most {pids}", means, remedy)
    else:
        yield Finding("pids limit", "ok", "none" if pids is None else f"at most {pids}", means)


def grouped(folder: str) -> Iterator[Finding]:
    """Whether an OOM kill of one rank kills the whole control group (cgroup-v2.rst, `memory.oom.group`).  Child groups
    are killed with it, so a separate group for the command would not protect ftrun."""
    if not oom.killed_together(folder):
        return
    if oom.can_be_exempted():
        means = "an OOM kill of a rank kills the whole command, but not ftrun (oom_score_adj)"
        yield Finding("oom group", "ok", "memory.oom.group is 1, ftrun is exempt", means)
        return
    means = "an OOM kill of a rank kills ftrun as well: no restart in place, no verdict"
    remedy = "Kubernetes: singleProcessOOMKill: true in the configuration of the kubelet; or CAP_SYS_RESOURCE for ftrun"
    yield Finding("oom group", "warning", "memory.oom.group is 1", means, remedy)


def _pids(text: str, folder: str, version: int) -> int | None:
    """The smallest limit of this group and the visible ones above."""
    if version == 2:
        return _number(folder, "pids.max")
    path = next((line.split(":", 2)[2] for line in text.splitlines() if ":pids:" in line), "/")
    found = [_number(f"/sys/fs/cgroup/pids{inner}", "pids.max") for inner in ("", path.rstrip("/"))]
    return min((number for number in found if number is not None), default=None)


def _number(folder: str, name: str) -> int | None:
    """None for `max`, and if there is no such file."""
    text = (procfs.read(f"{folder}/{name}", 64) or b"").strip()
    return int(text) if text.isdigit() else None


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"
