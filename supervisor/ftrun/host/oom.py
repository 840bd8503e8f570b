"""Out-of-memory kills in ftrun's memory control group (cgroups(7); Documentation/admin-guide/cgroup-v2.rst): counts
them, and exempts ftrun where the kernel kills a whole control group for memory (`memory.oom.group`).

Processes whose oom_score_adj is -1000 are exempt from that kill.  A value below the inherited one requires
CAP_SYS_RESOURCE (proc_pid_oom_score_adj(5)).  Children of ftrun get the value that ftrun was started with.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from ftrun.host import mounts, procfs
from ftrun.host.mounts import Mount

PATH: Final = "/proc/self/oom_score_adj"
EXEMPT: Final = b"-1000"
FIRST_TO_KILL: Final = b"1000"
_given: bytes | None = None  # the value that ftrun was started with, while its own differs


def oom_kills() -> int | None:
    """Return how many processes of this control group the kernel has killed for memory since the group exists; None if
    the kernel does not count them.

    With version 2 the number includes descendant groups.
    """
    for path in files(text("/proc/self/cgroup"), mounts.listed()):
        for line in text(path).splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill" and value.isdecimal():
                return int(value)
    return None


def killed_together(folder: str | None = None) -> bool:
    """Return whether the kernel kills this whole control group, or a visible one above it, when it kills one of its
    processes for memory (version 2, `memory.oom.group`).  `folder`: the group's, if known."""
    paths = files(text("/proc/self/cgroup"), mounts.listed()) if folder is None else [f"{folder}/"]
    for path in paths:
        inner = os.path.dirname(path)
        while setting := text(f"{inner}/memory.oom.group"):  # the root group does not have this file
            if setting.strip() == "1":
                return True
            inner = os.path.dirname(inner)
    return False


def files(cgroup: str, mounted: Iterable[Mount]) -> Iterator[str]:
    """Yield the paths that may hold the counter, the likeliest first, from the content of /proc/self/cgroup.

    With a cgroup namespace a container sees its own group as `/`; otherwise it sees the host's path, of which only a
    part may be mounted, at the mount's root.
    """
    # Memory belongs to one version only: version 2 comes last.
    for line in sorted(cgroup.splitlines(), key=lambda line: line.startswith("0::")):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        fs_type, name = ("cgroup", "memory.oom_control") if controllers else ("cgroup2", "memory.events")
        for mount in mounted:
            if mount.type == fs_type and (fs_type == "cgroup2" or "memory" in mount.options):
                yield f"{mount.point}{_below(mount.root, path)}/{name}"


def _below(root: str, path: str) -> str:
    """Return `path` as seen from a mount of `root`; if it lies outside, the mount's own group."""
    if root != "/":
        path = path.removeprefix(root) if path == root or path.startswith(f"{root}/") else ""
    return "" if path == "/" or path.startswith("/..") else path.rstrip("/")


def text(path: str) -> str:
    return os.fsdecode(procfs.read(path, 1 << 20) or b"")


def exempt_from_group_kill() -> None:
    """Exempt this process if the kernel kills the whole control group for one process, and if it is permitted;
    otherwise nothing changes."""
    global _given
    if _given is not None or not killed_together():
        return
    before = (procfs.read(PATH, 64) or b"").strip()
    # First check that the value can be written back: otherwise all children would be exempt as well.
    if before and before != EXEMPT and write(before) and write(EXEMPT):
        _given = before


@contextmanager
def original_score() -> Iterator[None]:
    """Processes forked inside this context get the value that ftrun was started with."""
    global _given
    if _given is None:
        yield
        return
    if not write(_given):
        raise OSError("cannot write back the oom_score_adj that ftrun was given")
    try:
        yield
    finally:
        if not write(EXEMPT):
            _given = None  # it keeps the original value


def given_score() -> bytes | None:
    """Return the value that ftrun was started with; None if it cannot be read."""
    return _given or (procfs.read(PATH, 64) or b"").strip() or None


def can_be_exempted() -> bool:
    """Return whether this process could be exempted; its value is unchanged afterwards."""
    before = (procfs.read(PATH, 64) or b"").strip()
    if before == EXEMPT:
        return True
    return bool(before) and write(before) and write(EXEMPT) and write(before)


def write(value: bytes) -> bool:
    """Set the value of this process; return whether the kernel permits it."""
    try:
        with open(PATH, "wb", buffering=0) as file:
            return file.write(value) == len(value)
    except OSError:
        return False
