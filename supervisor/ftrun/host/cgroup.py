"""Out-of-memory kills in ftrun's memory control group (cgroups(7); Documentation/admin-guide/cgroup-v2.rst)."""

import os
from collections.abc import Iterator


def oom_kills() -> int | None:
    """Return how many processes of this control group the kernel has killed for memory since the group exists; None if
    the kernel does not count them.

    With version 2 the number includes descendant groups.
    """
    for path in files(_text("/proc/self/cgroup"), _text("/proc/self/mountinfo")):
        for line in _text(path).splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill" and value.isdecimal():
                return int(value)
    return None


def killed_together(folder: str | None = None) -> bool:
    """Return whether the kernel kills this whole control group, or a visible one above it, when it kills one of its
    processes for memory (version 2, `memory.oom.group`).  `folder`: that of the group, if known."""
    paths = files(_text("/proc/self/cgroup"), _text("/proc/self/mountinfo")) if folder is None else [f"{folder}/"]
    for path in paths:
        inner = os.path.dirname(path)
        while setting := _text(f"{inner}/memory.oom.group"):  # the root group does not have this file
            if setting.strip() == "1":
                return True
            inner = os.path.dirname(inner)
    return False


def files(cgroup: str, mountinfo: str) -> Iterator[str]:
    """Yield the paths that may hold the counter, the likeliest first, from the contents of /proc/self/cgroup and
    /proc/self/mountinfo.

    With a cgroup namespace a container sees its own group as `/`; otherwise it sees the host's path, of which only a
    part may be mounted, at the mount's root.
    """
    mounts = list(_mounts(mountinfo))
    for line in sorted(
        cgroup.splitlines(), key=lambda line: line.startswith("0::")
    ):  # memory belongs to one version only
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        fs_type, name = ("cgroup", "memory.oom_control") if controllers else ("cgroup2", "memory.events")
        for root, point, mounted_type, options in mounts:
            if mounted_type == fs_type and (fs_type == "cgroup2" or "memory" in options.split(",")):
                yield f"{point}{_below(root, path)}/{name}"


def _below(root: str, path: str) -> str:
    """Return `path` as seen from a mount of `root`; if it lies outside, the mount's own group."""
    if root != "/":
        path = path.removeprefix(root) if path == root or path.startswith(f"{root}/") else ""
    return "" if path == "/" or path.startswith("/..") else path.rstrip("/")


def _mounts(mountinfo: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield root, mount point, type and options of each mounted file system."""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        first, last = left.split(" "), right.split(" ")
        if len(first) > 4 and len(last) > 2:
            yield first[3], first[4], last[0], last[2]


def _text(path: str) -> str:
    """Return at most 1 MiB of a file.  The kernel returns these files in pieces of a page, so that a single read is not
    enough."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""
