"""File system queries.  Each call may block for as long as the disk does not answer."""

import ctypes
import errno
import fcntl
import itertools
import os
import stat as st
import struct
from collections.abc import Iterator
from typing import Final

from ftrun.core.named_tuple import NamedTuple

GONE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)  # there is no such entry
WALK: Final = 10_000  # entries of a folder that are read

_AT_FDCWD: Final = -100
_AT_SYMLINK_NOFOLLOW: Final = 0x100
_AT_STATX_FORCE_SYNC: Final = 0x2000
_STATX_BASIC_STATS: Final = 0x7FF
_libc = ctypes.CDLL(None, use_errno=True)
_statx = getattr(_libc, "statx", None)


class FileLook(NamedTuple):
    """A match at one instant.  `print`: a number for its size and time; for a folder, for those of all its content.
    `newest`: when it was written, or the last file in it; 0 if there is none, or the folder was not read."""

    ino: int
    print: int
    folder: bool = False
    newest: int = 0


class FileStat(NamedTuple):
    dev: int
    ino: int
    mode: int
    size: int
    mtime_ns: int

    @property
    def folder(self) -> bool:
        return st.S_ISDIR(self.mode)

    @property
    def link(self) -> bool:
        return st.S_ISLNK(self.mode)


def stat(path: str, follow: bool = True, fresh: bool = False) -> FileStat:
    """`fresh`: ask the server; an NFS client may otherwise return attributes that are up to a minute old (acdirmax in
    nfs(5)).  OSError."""
    if fresh and _statx is not None:
        # statx(2): without a cache it is the same as stat; a sandbox may forbid it.
        flags = _AT_STATX_FORCE_SYNC | (0 if follow else _AT_SYMLINK_NOFOLLOW)
        buffer = ctypes.create_string_buffer(256)
        if _statx(_AT_FDCWD, os.fsencode(path), flags, _STATX_BASIC_STATS, buffer) == 0:
            mode, ino, size, seconds, nanoseconds, major, minor = struct.unpack("=28xH2xQQ64xqI12xII", buffer.raw[:144])
            return FileStat(os.makedev(major, minor), ino, mode, size, seconds * 10**9 + nanoseconds)
    found = os.stat(path, follow_symlinks=follow)
    return FileStat(found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns)


def look(path: str, fresh: bool = False, walk: bool = True) -> FileLook | None:
    """The state of a match; None if it cannot be a checkpoint.  A link is followed; a dangling link is a match like any
    other.  `walk`: read the content of a folder.  OSError if the disk fails."""
    link = None
    try:
        found = stat(path, follow=False, fresh=fresh)
        if found.link:
            link = found
            found = stat(path, fresh=fresh)
    except OSError as error:
        if error.errno not in GONE:
            raise
        return FileLook(link.ino, link.mtime_ns) if link else None
    if found.folder:
        content, newest = _walk(path) if walk else (0, 0)
        return FileLook(found.ino, content, folder=True, newest=newest)
    print_ = hash((found.size, found.mtime_ns))
    return FileLook(found.ino, print_, newest=found.mtime_ns) if st.S_ISREG(found.mode) else None


def busy(path: str, folder: bool) -> bool:
    """Whether a process on this machine has it, or anything in it, open for writing.  False where that is unknown: a
    file of another user, a network disk."""
    if folder:
        return any(entry.is_file(follow_symlinks=False) and busy(entry.path, False) for entry in _below(path))
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # fcntl(2): a read lease is refused while a writer has it open.  A process that opens it in this instant waits
        # for the close below, and this process gets SIGIO.
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        return False
    except OSError as error:
        return error.errno == errno.EAGAIN
    finally:
        os.close(fd)


def folders(path: str) -> list[str]:
    """The names of the folders in this folder; none if it cannot be read."""
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _walk(path: str) -> tuple[int, int]:
    """One number for the names, inodes, sizes and times of the whole content, and the time of its newest file."""
    total = newest = 0
    for entry in _below(path):
        try:
            found = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        total ^= hash((entry.path, found.st_ino, found.st_size, found.st_mtime_ns))
        if not st.S_ISDIR(found.st_mode):
            newest = max(newest, found.st_mtime_ns)
    return total, newest


def _below(path: str) -> Iterator["os.DirEntry[str]"]:
    """The entries below a folder, at most WALK of them."""
    left, todo = WALK, [path]
    while todo and left:
        try:
            with os.scandir(todo.pop()) as entries:
                for entry in itertools.islice(entries, left):
                    left -= 1
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
                    yield entry
        except OSError:
            continue
