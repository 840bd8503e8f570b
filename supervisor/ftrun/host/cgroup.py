"""What the kernel did to our control group for memory (cgroups(7); Documentation/admin-guide/cgroup-v2.rst)."""

import os
from collections.abc import Iterator


def oom_kills() -> int | None:
    """How many processes of our control group the kernel has killed for memory since it exists; None if nobody counts.

    With version 2 those of groups below are among them.
    """
    for path in files(_text("/proc/self/cgroup"), _text("/proc/self/mountinfo")):
        for line in _text(path).splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill" and value.isdecimal():
                return int(value)
    return None


def killed_together(folder: str | None = None) -> bool:
    """Whether the kernel kills all of our control group, or of one above it that we see, when it kills one process of
    it for memory (version 2, `memory.oom.group`).  `folder`: of that group, where it is known."""
    found = files(_text("/proc/self/cgroup"), _text("/proc/self/mountinfo")) if folder is None else [f"{folder}/"]
    for path in found:
        inner = os.path.dirname(path)
        while setting := _text(f"{inner}/memory.oom.group"):  # the group at the very top has none
            if setting.strip() == "1":
                return True
            inner = os.path.dirname(inner)
    return False


def files(cgroup: str, mountinfo: str) -> Iterator[str]:
    """Where that may be counted, the likeliest first, by what /proc/self/cgroup and /proc/self/mountinfo say.

    A container sees its own group as `/` where it has a namespace for them; else by the host's path, of which only a
    part may be mounted, at the mount's root.
    """
    mounts = list(_mounts(mountinfo))
    for line in sorted(cgroup.splitlines(), key=lambda line: line.startswith("0::")):  # memory is of one version only
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        kind, name = ("cgroup", "memory.oom_control") if controllers else ("cgroup2", "memory.events")
        for root, point, of_kind, options in mounts:
            if of_kind == kind and (kind == "cgroup2" or "memory" in options.split(",")):
                yield f"{point}{_below(root, path)}/{name}"


def _below(root: str, path: str) -> str:
    """`path` as seen from a mount of `root`; the mount's own group where it lies outside."""
    if root != "/":
        path = path.removeprefix(root) if path == root or path.startswith(f"{root}/") else ""
    return "" if path == "/" or path.startswith("/..") else path.rstrip("/")


def _mounts(mountinfo: str) -> Iterator[tuple[str, str, str, str]]:
    """Root, mount point, kind and the options of the file system."""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        first, last = left.split(" "), right.split(" ")
        if len(first) > 4 and len(last) > 2:
            yield first[3], first[4], last[0], last[2]


def _text(path: str) -> str:
    """At most 1 MiB of it.  The kernel gives these in pieces of a page, so that one read is not all."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""
