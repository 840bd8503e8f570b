"""Files of ftrun in folders that other users can write to: ftrun never writes through, waits for or trusts a file of
another user.

Another user of the container can put a link, a pipe, or a file with a second name in the way.  In a folder that belongs
to them they can still remove ftrun's files.
"""

import errno
import os
import stat
from contextlib import suppress
from typing import Final

from ftrun.host.signals import writing

OPEN_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
OTHERS_WRITE: Final = 0o002  # write permission for others; not for the group: Kubernetes grants that to its fsGroup


class ForeignFile(ValueError):
    """A short reason why the file may have been written by another user."""


def create(name: str, mode: int = 0o600, folder: int | None = None) -> int:
    """Create a file for writing, replacing any file of that name.  Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | OPEN_FLAGS
    try:
        return os.open(name, flags, mode, dir_fd=folder)
    except FileExistsError:  # left by a killed ftrun, or created by another user
        os.unlink(name, dir_fd=folder)
        return os.open(name, flags, mode, dir_fd=folder)


def replace(
    path: str, content: bytes, mode: int = 0o600, fresh: str = "", durable: bool = True, folder: int | None = None
) -> None:
    """Replace a file atomically; a `durable` one is on disk when this returns, though not yet its name.  The umask is
    ignored, except on a disk that refuses to change modes.  A kill may leave `fresh`, by default `<path>.new`.  Raises
    OSError; the file then has its old content."""
    fresh = fresh or f"{path}.new"
    fd = create(fresh, mode, folder)
    try:
        try:
            with suppress(OSError):  # some network disks refuse every chmod (NTFS-style volumes, some FUSE mounts)
                os.fchmod(fd, mode)
            with writing():
                while content:
                    content = content[os.write(fd, content) :]
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(fresh, path, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        os.unlink(fresh, dir_fd=folder)
        raise


def open_append(name: str, folder: int | None = None) -> int:
    """Open a file for appending; create it if it does not exist.  Raises OSError, also if other users can have written
    it."""
    fd = os.open(name, os.O_RDWR | os.O_APPEND | os.O_CREAT | OPEN_FLAGS, 0o600, dir_fd=folder)
    try:
        status = os.fstat(fd)
        parent = os.stat("." if folder is None else folder)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, f"{name} is not a regular file")
        if status.st_nlink > 1 and not _only_writable_by_us(parent):
            raise OSError(errno.EPERM, f"{name} has other names")
        # The owner of the folder controls its files anyway; some disks show the same owner for all files.
        if status.st_uid not in (os.geteuid(), parent.st_uid) and not _only_writable_by_us(parent):
            raise OSError(errno.EPERM, f"{name} belongs to user {status.st_uid}")
    except OSError:
        os.close(fd)
        raise
    return fd


def read(name: str, limit: int, folder: int | None = None) -> bytes | None:
    """Return the content of a file that this user or root wrote; None if nothing can be read.  Raises ForeignFile, or
    ValueError for more than `limit` bytes."""
    try:
        fd = os.open(name, os.O_RDONLY | OPEN_FLAGS, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ForeignFile("it is a link") from None
        return None
    status, parent = os.fstat(fd), os.stat("." if folder is None else folder)
    foreign = status.st_uid not in (0, os.geteuid()) or status.st_nlink > 1 or status.st_mode & OTHERS_WRITE
    if foreign and not _only_writable_by_us(parent):
        os.close(fd)
        raise ForeignFile(f"it belongs to user {status.st_uid}, mode {status.st_mode & 0o7777:o}")
    try:
        return read_regular(fd, limit)
    except OSError:
        return None


def read_foreign(name: str, limit: int, folder: int | None = None) -> bytes:
    """Return the first `limit` bytes of a file that any user may have created; empty if it is not a regular file, has a
    second name (it may be a file of this user), or cannot be read.  A file that was replaced after it was opened has no
    name any more, and its content is complete."""
    try:
        fd = os.open(name, os.O_RDONLY | OPEN_FLAGS, dir_fd=folder)
    except OSError:
        return b""
    try:
        status = os.fstat(fd)
        return os.read(fd, limit) if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1 else b""
    except OSError:
        return b""
    finally:
        os.close(fd)


def read_bounded(path: str, limit: int) -> bytes:
    """`read_regular` of a file that an option names, which may be a link.  Raises OSError."""
    return read_regular(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), limit)


def read_regular(fd: int, limit: int) -> bytes:
    """Return the content of a regular file and close `fd`: a pipe or a device might never end, and a file might grow
    forever.  Raises ValueError if it is not a regular file or has more than `limit` bytes."""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("it is not a regular file")
        content = b""
        while len(content) <= limit and (chunk := os.read(fd, limit + 1 - len(content))):
            content += chunk
    finally:
        os.close(fd)
    if len(content) > limit:
        raise ValueError(f"it is larger than {limit} bytes")
    return content


def private_folder(path: str) -> str | None:
    """Create `path`, a folder that only this user can write to, or return the existing one; if another user has taken
    that name, one of nine alternatives; None if all are taken.  Raises OSError."""
    for name in (path, *(f"{path}-{number}" for number in range(1, 10))):
        with suppress(FileExistsError):
            os.mkdir(name, 0o700)
        found = os.lstat(name)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
            return name
    return None


def _only_writable_by_us(folder: os.stat_result) -> bool:
    """Return whether only this user and root can have created files there, even in an earlier container."""
    return folder.st_uid in (0, os.geteuid()) and not folder.st_mode & OTHERS_WRITE


def open_subfolder(name: str, folder: int) -> int:
    """Open a folder inside an open folder; create it if it does not exist.  Raises OSError, also for a link."""
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=folder)
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)


def open_trusting_own_links(path: str, flags: int, mode: int = 0o600) -> int:
    """`os.open`, except that a link is followed only if it belongs to this user or root, as the kernel does with
    fs.protected_symlinks.  Raises OSError."""
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR) or os.lstat(path).st_uid not in (0, os.geteuid()):
            raise
        return os.open(path, flags | os.O_CLOEXEC, mode)
