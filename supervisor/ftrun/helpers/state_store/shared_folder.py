"""A folder that several state stores write to, perhaps on a network disk: atomic writes, one writer at a time."""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ftrun.helpers.state_store.contents import ForeignContent
from ftrun.host import safe_files

LOCK: Final = "history.lock"
PATIENCE: Final = 10.0  # s for the lock: the process that holds it may be stopped, or blocked on the disk
TURN: Final = 0.01  # s between attempts
ASIDE: Final = 99  # files that are set aside; the last is overwritten


class Folder:
    """`problem` receives one line for a person.  All methods raise OSError if the disk fails."""

    def __init__(self, path: str, problem: Callable[[str], None]) -> None:
        self.path, self._problem = path, problem
        self._has_lock = False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock, if the disk supports locks.  Creates the folder if it is missing."""
        fd = None
        try:
            os.makedirs(self.path, 0o755, exist_ok=True)
            fd = self._open(LOCK, os.O_RDWR | os.O_CREAT)
            self._has_lock = self._lock(fd)
        except OSError as error:  # reading is possible without the lock
            self._report_no_lock(str(error.strerror))
        try:
            yield
        finally:
            self._has_lock = False
            if fd is not None:
                os.close(fd)

    def _lock(self, fd: int) -> bool:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
            if time.monotonic() >= until:
                self._report_no_lock(f"another process has held it for {PATIENCE:.0f} s")
                return False
            time.sleep(TURN)

    def _report_no_lock(self, why: str) -> None:
        self._problem(f"{self.path}/{LOCK}: {why}; ftrun continues without a lock")

    def read(self, name: str, limit: int) -> bytes | None:
        """None if the file does not exist.  `ForeignContent` for anything but a file of at most `limit` bytes."""
        try:
            fd = self._open(name, os.O_RDONLY)
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

    def write(self, name: str, content: bytes) -> None:
        """Replace the file atomically; the new content is on disk when this returns."""
        # With the lock the name is used by one process, and reused, so that a kill leaves at most one file behind.
        fresh = f"{name}.new" if self._has_lock else f"{name}.new-{os.urandom(6).hex()}"
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

    def _open(self, name: str, flags: int) -> int:
        return os.open(f"{self.path}/{name}", flags | safe_files.OPEN_FLAGS, 0o644)
