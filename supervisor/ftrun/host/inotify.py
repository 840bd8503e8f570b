"""inotify(7): the kernel reports changes of files that are made on this machine."""

import ctypes
import fcntl
import os
import struct
import sys
import termios
from typing import Final

from ftrun.core.named_tuple import NamedTuple

MODIFY: Final = 0x2
CLOSE_WRITE: Final = 0x8
CLOSE_NOWRITE: Final = 0x10
OPEN: Final = 0x20
MOVED_FROM: Final = 0x40
MOVED_TO: Final = 0x80
CREATE: Final = 0x100
DELETE: Final = 0x200
DELETE_SELF: Final = 0x400
MOVE_SELF: Final = 0x800
UNMOUNT: Final = 0x2000
Q_OVERFLOW: Final = 0x4000
IGNORED: Final = 0x8000
ONLYDIR: Final = 0x1000000
MASK_ADD: Final = 0x20000000
ISDIR: Final = 0x40000000

_ENCODING: Final = sys.getfilesystemencoding()
_HEADER: Final = struct.Struct("=iIII")


class InotifyEvent(NamedTuple):
    """`name` is the entry of a watched folder; it is empty for an event of the watched file or folder itself.  `wd` is
    -1 for Q_OVERFLOW: events were lost."""

    wd: int
    mask: int
    name: str


class Inotify:
    """`fd` is to be polled.  Raises OSError if the kernel provides no instance (EMFILE: max_user_instances)."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise _error("inotify")

    def add(self, path: str, mask: int) -> int:
        """Return the number by which events name this inode; it is the same if the inode is watched already, by
        whatever path.  Raises OSError; ENOSPC: max_user_watches."""
        wd: int = self._libc.inotify_add_watch(self.fd, os.fsencode(path), ctypes.c_uint32(mask))
        if wd < 0:
            raise _error(path)
        return wd

    def remove(self, wd: int) -> None:
        """Remove a watch; harmless if the kernel has removed it already."""
        self._libc.inotify_rm_watch(self.fd, wd)

    def read(self) -> list[InotifyEvent]:
        """Return all queued events, the oldest first.  Never blocks."""
        queued = struct.unpack("i", fcntl.ioctl(self.fd, termios.FIONREAD, bytes(4)))[0]
        content = os.read(self.fd, queued) if queued else b""
        events, at = [], 0
        while at < len(content):
            wd, mask, _, length = _HEADER.unpack_from(content, at)
            at += _HEADER.size
            name = content[at : at + length].rstrip(b"\0")
            events.append(InotifyEvent(wd, mask, name.decode(_ENCODING, "surrogateescape")))
            at += length
        return events

    def close(self) -> None:
        os.close(self.fd)


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), what)
