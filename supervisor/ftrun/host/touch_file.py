"""The touch file of the beat folder: each change of its modification time or its content is a heartbeat."""

import os

from ftrun_hooks import layout as at

Key = tuple[int, int, int]  # what a touch changes: inode, modification time, size


class TouchFile:
    """The touch file of the folder `path`, created if necessary.  Raises OSError if that fails.

    A program may keep the file open that ftrun made, and touch it when that has no name any more; another program may
    touch a new file of that name.  Both files are looked at.  What changes no content (chmod, chown, rename, link,
    deletion) leaves the modification time as it is, and is no touch.
    """

    def __init__(self, path: str) -> None:
        self._path = f"{path}/{at.TOUCH}"
        self._fd = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        self.forget()

    def forget(self) -> None:
        """What was done until now is no touch."""
        self._own, self._named = self._look()

    @property
    def missing(self) -> bool:
        """Whether there was no file of that name when this last forgot."""
        return self._named is None

    @property
    def is_touched(self) -> bool:
        """Whether it was touched since this last forgot."""
        return self._differs(*self._look())

    def take(self) -> bool:
        """Whether it was touched since this last forgot, which it does now."""
        found = self._look()
        touched = self._differs(*found)
        self._own, self._named = found
        return touched

    def _differs(self, own: Key, named: Key | None) -> bool:
        if own != self._own or named is None:
            return own != self._own
        if self._named is not None and named[0] == self._named[0]:
            return named != self._named
        # A new file: one that is older than the last touch was only given this name.
        return named[1] > max(found[1] for found in (own, self._named) if found is not None)

    def _look(self) -> tuple[Key, Key | None]:
        """The file that ftrun made, and the one that has its name."""
        own = _key(os.fstat(self._fd))
        try:
            return own, _key(os.stat(self._path))
        except OSError:
            return own, None

    def close(self) -> None:
        os.close(self._fd)


def _key(found: os.stat_result) -> Key:
    return found.st_ino, found.st_mtime_ns, found.st_size
