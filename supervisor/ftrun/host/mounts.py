"""Which paths lie on a disk that may not answer, told without asking any disk that may not (ADR 11).

`/proc/self/mountinfo` (proc(5)) is the kernel's own list: reading it waits for no server, while stat, statfs and
readlink below a dead mount wait for ever.
"""

import os
import re
from typing import Final, NamedTuple

from ftrun.host import procfs

# File systems that need no other machine and no other program to answer.  What is not known here counts as one that
# does: NFS, SMB, Lustre, GPFS, BeeGFS, CephFS, AFS, 9p, virtiofs, FUSE, autofs ...  The root of a container may be any
# of them.  It is looked at all the same: where it does not answer, ftrun's own program and libraries do not either.
LOCAL: Final = frozenset(
    {
        *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs", "nilfs2", "ubifs"),
        *("vfat", "exfat", "msdos", "ntfs", "ntfs3", "fuseblk", "hfsplus"),
        *("squashfs", "erofs", "iso9660", "udf"),
        *("tmpfs", "ramfs", "rootfs", "devtmpfs", "hugetlbfs", "proc", "sysfs", "devpts", "cgroup", "cgroup2"),
        *("overlay", "overlayfs", "aufs", "fuse.fuse-overlayfs"),
    }
)
LINKS: Final = 40  # that are followed, as the kernel does (MAXSYMLINKS)
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    id: int
    parent: int
    point: str
    kind: str


class Mounts:
    """As they are now, seen from our root."""

    def __init__(self, text: str | None = None) -> None:
        if text is None:
            text = os.fsdecode(procfs.read("/proc/self/mountinfo", 1 << 22) or b"")
        found = [mount for line in text.split("\n") if (mount := _parse(line)) is not None]
        ids = {mount.id for mount in found}
        roots = [m for m in found if m.point == "/" and (m.parent == m.id or m.parent not in ids)]
        # In a chroot that is no mount point the root is not listed; nor is anything where there is no /proc.
        first = roots[0] if roots else Mount(0, 0, "/", "rootfs")
        parents = {m.id: m.parent if m.parent in ids else first.id for m in found}
        self._on = {(parents[m.id], m.point): m for m in found if m.id not in (first.id, m.parent)}
        self._root = self._top(first)

    def network(self, path: str) -> str | None:
        """The file system, as the kernel calls it, that `path` (absolute) depends on and that is not known as a local
        one; None where there is none.  Symbolic links are followed; what does not exist lies where it would be."""
        mount = self._lies(path)
        return None if mount.kind in LOCAL else mount.kind

    def on_root(self, path: str) -> bool:
        """Whether `path` lies on the root file system, and depends on no other network disk."""
        return self._lies(path).id == self._root.id

    def _lies(self, path: str) -> Mount:
        """The mount that `path` lies on, whatever the root is; or the first network disk on the way other than the
        root: the kernel asks it for each name below it, also for the mount point of a local disk."""
        todo, at, links = _names(path), "/", 0
        mount = self._root
        while (mount.kind in LOCAL or mount.id == self._root.id) and todo:
            name = todo.pop()
            if name == "..":
                at = os.path.dirname(at)
                mount = self._of(at)
                continue
            below = f"{at.rstrip('/')}/{name}"
            if (mount.id, below) in self._on:  # a mount point is no link
                at, mount = below, self._top(self._on[mount.id, below])
                continue
            try:
                target = os.readlink(below)  # `at` is on a local disk, or on the root
            except (OSError, ValueError):  # none, or no name at all
                at = below
                continue
            links += 1
            if links > LINKS:
                return self._root  # the kernel does not follow it either: whoever opens it says so
            todo += _names(target)
            if target.startswith("/"):
                at, mount = "/", self._root
        return mount

    def _of(self, path: str) -> Mount:
        """Of a path without links."""
        at, mount = "", self._root
        for name in reversed(_names(path)):
            at += f"/{name}"
            mount = self._top(self._on.get((mount.id, at), mount))
        return mount

    def _top(self, mount: Mount) -> Mount:
        """What is mounted over the very same point is what one sees."""
        while (over := self._on.get((mount.id, mount.point))) is not None:
            mount = over
        return mount


def network_kind(path: str) -> str | None:
    return Mounts().network(path)


def is_network_volume(path: str) -> bool:
    """Whether `path` is on a network disk that may be unmounted: any but the root."""
    now = Mounts()
    return now.network(path) is not None and not now.on_root(path)


def _parse(line: str) -> Mount | None:
    left, _, right = line.partition(" - ")
    words = left.split(" ")
    try:
        point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), words[4])
        return Mount(int(words[0]), int(words[1]), point, right.split(" ", 1)[0])
    except (ValueError, IndexError):
        return None


def _names(path: str) -> list[str]:
    """The last first."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]
