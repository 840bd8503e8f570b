"""Files in a folder to which processes of several containers write, mostly on a network disk: one writer at a time,
atomic replacement, and recognition of content that ftrun did not write.  The mirror and the state store share this
(ADR 11).  Every call may block indefinitely, and raises OSError if the disk fails."""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ftrun.host import safe_files

PATIENCE: Final = 10.0  # s for the lock: the process that holds it may be stopped, or blocked on the disk
TURN: Final = 0.05  # s between attempts
ASIDE: Final = 99  # files that are set aside; the last is overwritten


class ForeignContent(Exception):
    """A file was not written by ftrun; the text is one line with the reason."""


class NoLocks(OSError):
    """The disk supports no locks."""


def open_file(path: str, flags: int, mode: int = 0o600) -> int:
    """Open a file; a symbolic link is not followed, and a pipe is not waited for."""
    return os.open(path, flags | safe_files.OPEN_FLAGS, mode)


def read(path: str, limit: int) -> bytes | None:
    """None if the file does not exist.  `ForeignContent` for anything but a file of at most `limit` bytes."""
    try:
        fd = open_file(path, os.O_RDONLY)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a symbolic link; a socket
            raise ForeignContent("it is not a regular file") from None
        raise
    try:
        return safe_files.read_regular(fd, limit)
    except ValueError as error:
        raise ForeignContent(str(error)) from None


def try_lock(path: str, mode: int = 0o600) -> int | None:
    """The descriptor that holds the lock, which works over NFS; None if another process holds it.  `NoLocks` if the
    disk has none."""
    fd = open_file(path, os.O_RDWR | os.O_CREAT, mode)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fd
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return None
        raise NoLocks(error.errno, error.strerror, path) from None


class Folder:
    """A folder with a lock; a disk without locks is written to anyway.  `problem` receives one line for a person."""

    def __init__(self, path: str, problem: Callable[[str], None]) -> None:
        self.path, self._problem = path, problem
        self._has_lock = False

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold the lock, a file of this name, if the disk supports locks.  Creates the folder if it is missing."""
        fd, path = None, f"{self.path}/{name}"
        try:
            os.makedirs(self.path, 0o755, exist_ok=True)
            until = time.monotonic() + PATIENCE
            while (fd := try_lock(path, 0o644)) is None and time.monotonic() < until:
                time.sleep(TURN)
            if fd is None:
                self._report_no_lock(path, f"another process has held it for {PATIENCE:.0f} s")
        except OSError as error:  # reading is possible without the lock
            self._report_no_lock(path, str(error.strerror))
        self._has_lock = fd is not None
        try:
            yield
        finally:
            self._has_lock = False
            if fd is not None:
                os.close(fd)

    def _report_no_lock(self, path: str, why: str) -> None:
        self._problem(f"{path}: {why}; ftrun continues without a lock")

    def read(self, name: str, limit: int) -> bytes | None:
        return read(f"{self.path}/{name}", limit)

    def write(self, name: str, content: bytes) -> None:
        """Replace the file atomically; the new content is on disk when this returns."""
        # With the lock the name is used by one process of a machine, and reused, so that a kill leaves at most one file
        # behind.  Some disks keep locks on each machine alone (NFS with `nolock`, FUSE), hence the machine's name.
        who = os.uname().nodename if self._has_lock else os.urandom(6).hex()
        fresh = f"{name}.{who}.new"
        safe_files.replace(f"{self.path}/{name}", content, 0o644, fresh=f"{self.path}/{fresh}")
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def set_aside(self, name: str, why: object) -> None:
        names = (f"{name}.corrupt-{n}" for n in range(1, ASIDE))
        free = next((n for n in names if not os.path.lexists(f"{self.path}/{n}")), f"{name}.corrupt-{ASIDE}")
        os.rename(f"{self.path}/{name}", f"{self.path}/{free}")
        self._problem(f"{self.path}/{name} was not written by ftrun ({why}); kept as {free}, and a new one is begun")
