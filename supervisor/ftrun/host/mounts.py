"""Determines which paths lie on a network disk that may not answer, without accessing any such disk (ADR 11).

`/proc/self/mountinfo` (proc(5)) is the kernel's own list: reading it waits for no server, while stat, statfs and
readlink below a dead mount block forever.
"""

import os
import re
from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.host import procfs

# File systems that need no other machine and no other program to answer.  Any other type counts as a network disk:
# NFS, SMB, Lustre, GPFS, BeeGFS, CephFS, AFS, 9p, virtiofs, FUSE, autofs ...  The root of a container may be any of
# them.  It is accessed all the same: if it does not answer, neither do ftrun's own program and libraries.
LOCAL: Final = frozenset(
    {
        *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs", "nilfs2", "ubifs"),
        *("vfat", "exfat", "msdos", "ntfs", "ntfs3", "fuseblk", "hfsplus"),
        *("squashfs", "erofs", "iso9660", "udf"),
        *("tmpfs", "ramfs", "rootfs", "devtmpfs", "hugetlbfs", "proc", "sysfs", "devpts", "cgroup", "cgroup2"),
        *("overlay", "overlayfs", "aufs", "fuse.fuse-overlayfs"),
    }
)
MAX_LINKS: Final = 40  # symbolic links that are followed; the same as in the kernel (MAXSYMMAX_LINKS)


class Mount(NamedTuple):
    """A line of mountinfo.  `root`: the folder of the file system that is mounted at `point`.  `options`: of the file
    system, not of the mount."""

    id: int
    parent: int
    device: str
    root: str
    point: str
    type: str
    options: list[str]


def parse(mountinfo: str) -> list[Mount]:
    """Return the mounts in a text of that format; lines of another format are skipped."""
    # The kernel quotes a newline in a name, but no other character that Python treats as a line end.
    return [mount for line in mountinfo.split("\n") if (mount := _parse(line)) is not None]


def listed() -> list[Mount]:
    """Return all mounts that are visible here."""
    return parse(os.fsdecode(procfs.read("/proc/self/mountinfo", 1 << 22) or b""))


def memory_folders() -> list[str]:
    """Return the mount points of memory file systems, the usual one first."""
    mounted = {mount.point for mount in listed() if mount.type in ("tmpfs", "ramfs")}
    known = ["/dev/shm", "/run/shm", os.environ.get("XDG_RUNTIME_DIR", ""), "/run", "/tmp"]
    return [folder for folder in known if folder in mounted]


class Mounts:
    """The current mounts, as seen from this process's root."""

    def __init__(self, text: str | None = None) -> None:
        parsed = listed() if text is None else parse(text)
        ids = {mount.id for mount in parsed}
        roots = [m for m in parsed if m.point == "/" and (m.parent == m.id or m.parent not in ids)]
        # The root is not listed in a chroot that is not a mount point, and nothing is listed without /proc.
        first = roots[0] if roots else Mount(0, 0, "", "/", "/", "rootfs", [])
        parents = {m.id: m.parent if m.parent in ids else first.id for m in parsed}
        self._on = {(parents[m.id], m.point): m for m in parsed if m.id not in (first.id, m.parent)}
        self._root = self._top(first)

    def network_kind(self, path: str) -> str | None:
        """Return the type, as the kernel names it, of the file system that `path` (absolute) depends on and that is not
        known to be local; None if there is none.  Symbolic links are followed; a path that does not exist counts as
        where it would be created."""
        mount = self._mount_of(path)
        return None if mount.type in LOCAL else mount.type

    def on_root(self, path: str) -> bool:
        """Return whether `path` lies on the root file system, and depends on no other network disk."""
        return self._mount_of(path).id == self._root.id

    def _mount_of(self, path: str) -> Mount:
        """Return the mount that `path` lies on, whatever the root is; or the first network disk on the way other than
        the root: the kernel asks it for each name below it, also for the mount point of a local disk."""
        todo, at, links = _names(path), "/", 0
        mount = self._root
        while (mount.type in LOCAL or mount.id == self._root.id) and todo:
            name = todo.pop()
            if name == "..":
                at = os.path.dirname(at)
                mount = self._of(at)
                continue
            below = f"{at.rstrip('/')}/{name}"
            if (mount.id, below) in self._on:  # a mount point is not a link
                at, mount = below, self._top(self._on[mount.id, below])
                continue
            try:
                target = os.readlink(below)  # `at` is on a local disk, or on the root
            except (OSError, ValueError):  # not a link, or not a valid name
                at = below
                continue
            links += 1
            if links > MAX_LINKS:
                return self._root  # the kernel does not follow it either: opening the path reports the error
            todo += _names(target)
            if target.startswith("/"):
                at, mount = "/", self._root
        return mount

    def _of(self, path: str) -> Mount:
        """Return the mount of a path without links."""
        at, mount = "", self._root
        for name in reversed(_names(path)):
            at += f"/{name}"
            mount = self._top(self._on.get((mount.id, at), mount))
        return mount

    def _top(self, mount: Mount) -> Mount:
        """Return the visible mount: the last one on the same mount point."""
        while (over := self._on.get((mount.id, mount.point))) is not None:
            mount = over
        return mount


def network_kind(path: str) -> str | None:
    return Mounts().network_kind(path)


def is_network_volume(path: str) -> bool:
    """Return whether `path` is on a network disk that can be unmounted: any but the root."""
    now = Mounts()
    return now.network_kind(path) is not None and not now.on_root(path)


def is_on_network_volume(fd: int) -> bool:
    """Return whether `fd` is a file on such a disk: then fstat and isatty of it, and writes to it, may block."""
    try:
        path = os.readlink(f"/proc/self/fd/{fd}")  # the kernel's own name of it; asks no disk
    except OSError:
        return False
    return path.startswith("/") and not path.startswith("/dev/") and is_network_volume(path)


def _parse(line: str) -> Mount | None:
    left, _, right = line.partition(" - ")
    try:
        number, parent, device, root, point = map(_unquoted, left.split(" ")[:5])
        kind, _, options = right.split(" ")[:3]
        return Mount(int(number), int(parent), device, root, point, kind, options.split(","))
    except ValueError:
        return None


def _unquoted(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field) if "\\" in field else field


def _names(path: str) -> list[str]:
    """Return the names in a path, the last first."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]
