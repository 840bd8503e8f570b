"""Files of ours in folders that others may write to: nothing of theirs is written through, waited for or believed.

What another user of the container can put in our way is a link, a pipe, or a file with a second name.  In a folder that
is theirs they can still remove what is ours.
"""

import errno
import os
import stat
from typing import Final

from ftrun.host import bounded_read

CLOSED: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
OTHERS: Final = 0o002  # not the group's: Kubernetes gives that to its fsGroup


class ForeignFile(ValueError):
    """In a few words: why it is not ours."""


def create(name: str, mode: int = 0o600, folder: int | None = None) -> int:
    """A new file to be written, in place of whatever has that name.  OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | CLOSED
    try:
        return os.open(name, flags, mode, dir_fd=folder)
    except FileExistsError:  # left by a kill, or put there
        os.unlink(name, dir_fd=folder)
        return os.open(name, flags, mode, dir_fd=folder)


def open_append(name: str, folder: int | None = None) -> int:
    """A file that is added to, made where there is none.  OSError, also for what is not ours alone."""
    fd = os.open(name, os.O_RDWR | os.O_APPEND | os.O_CREAT | CLOSED, 0o600, dir_fd=folder)
    try:
        found = os.fstat(fd)
        above = os.stat("." if folder is None else folder)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, f"{name} is no file")
        if found.st_nlink > 1 and not _closed(above):
            raise OSError(errno.EPERM, f"{name} has other names")
        # Whose folder it is can do as he likes there; a disk may also have one owner for all.
        if found.st_uid not in (os.geteuid(), above.st_uid) and not _closed(above):
            raise OSError(errno.EPERM, f"{name} belongs to user {found.st_uid}")
    except OSError:
        os.close(fd)
        raise
    return fd


def read(name: str, limit: int, folder: int | None = None) -> bytes | None:
    """What we wrote, or root; None where nothing can be read.  Foreign, or ValueError for more than `limit` bytes."""
    try:
        fd = os.open(name, os.O_RDONLY | CLOSED, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ForeignFile("it is a link") from None
        return None
    found, above = os.fstat(fd), os.stat("." if folder is None else folder)
    foreign = found.st_uid not in (0, os.geteuid()) or found.st_nlink > 1 or found.st_mode & OTHERS
    if foreign and not _closed(above):
        os.close(fd)
        raise ForeignFile(f"it is of user {found.st_uid}, mode {found.st_mode & 0o7777:o}")
    try:
        return bounded_read.read(fd, limit)
    except OSError:
        return None


def _closed(folder: os.stat_result) -> bool:
    """Whether nobody but us and root can have put anything there, be it as another user in an earlier container."""
    return folder.st_uid in (0, os.geteuid()) and not folder.st_mode & OTHERS


def open_subfolder(name: str, folder: int) -> int:
    """A folder in another one, made where there is none.  OSError, also for a link."""
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
    except FileExistsError:
        pass
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)


def open_trusting_own_links(path: str, flags: int, mode: int = 0o600) -> int:
    """`os.open`, but that a link is followed only if it is ours or root's: what fs.protected_symlinks does, where it is
    on.  OSError."""
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR) or os.lstat(path).st_uid not in (0, os.geteuid()):
            raise
        return os.open(path, flags | os.O_CLOEXEC, mode)
