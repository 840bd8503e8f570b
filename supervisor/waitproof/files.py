"""The open files of a process, by the names that the kernel has for them.  No file is opened and no file system is
accessed, because it may not respond."""

import errno
import os
import re
from collections.abc import Mapping
from typing import Final

from waitproof import procfs, same_objects
from waitproof.world import Descriptor

FILES: Final = 65536  # of one process
INFORMATION: Final = 1 << 20  # bytes about one descriptor: an epoll has a line of 80 for each of its members
POLLIN, POLLOUT = 1, 4
_MEMBER: Final = re.compile(r"^tfd:\s*(\d+)\s+events:\s*([0-9a-f]+)(?:.*?\bino:([0-9a-f]+))?", re.M)


def list_open(pid: int, only: tuple[str, ...] = ("",)) -> dict[int, Descriptor]:
    """The open files by number; `only`: prefixes of the links to return.  OSError if access is denied, or there are
    too many."""
    found, numbers = dict[int, Descriptor](), os.listdir(f"/proc/{pid}/fd")
    if len(numbers) > FILES:
        raise OSError(errno.EOVERFLOW, f"it has more than {FILES} open files")
    for number in numbers:
        try:
            link = os.readlink(f"/proc/{pid}/fd/{number}")
            if link.startswith(only):
                found[int(number)] = _descriptor(pid, number, link)
        except FileNotFoundError:
            continue  # closed in the meantime
    for fd, end in found.items():
        if end.kind == "epoll" and not _has_members(pid, fd, end, found):
            found[fd] = end._replace(complete=False)
    return found


def information(pid: int, fd: int | str) -> str:
    """What the kernel says about this descriptor (proc_pid_fdinfo(5)); empty if it is closed."""
    return (procfs.read(f"/proc/{pid}/fdinfo/{fd}", INFORMATION) or b"").decode("ascii", "replace")


def directions(events: int) -> str:
    """The directions of a set of POLL* flags."""
    return ("r" if events & POLLIN or not events & POLLOUT else "") + ("w" if events & POLLOUT else "")


def _descriptor(pid: int, number: str, link: str) -> Descriptor:
    if link.startswith("pipe:"):
        mode = os.lstat(f"/proc/{pid}/fd/{number}").st_mode  # r and w of the owner, as it was opened (proc_pid_fd(5))
        return Descriptor("pipe", link, ("r" if mode & 0o400 else "") + ("w" if mode & 0o200 else ""))
    if link.startswith("socket:"):
        return Descriptor("socket", link)
    if link.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
        return Descriptor("terminal", link)
    if link.startswith("/dev/") and not link.startswith(("/dev/shm/", "/dev/mqueue/")):
        return Descriptor("device", link)
    if not link.startswith("anon_inode:"):
        return Descriptor("file", link)  # a named pipe counts as a file
    info = information(pid, number)
    name = link.removeprefix("anon_inode:").strip("[]")
    if name == "eventfd":
        match = re.search(r"^eventfd-id:\s*(\d+)", info, re.M)
        return Descriptor("eventfd", f"eventfd:{match[1] if match else f'{pid}/{number}'}")
    if name == "eventpoll":
        found = _MEMBER.findall(info)
        members = tuple((int(fd), directions(int(events, 16))) for fd, events, _ in found)
        inodes = tuple(int(inode or "0", 16) for _, _, inode in found)
        return Descriptor(
            "epoll", f"epoll:{pid}/{number}", members=members, inodes=inodes, complete=len(info) < INFORMATION
        )
    if name == "pidfd":
        match = re.search(r"^Pid:\s*(-?\d+)", info, re.M)
        return Descriptor("pidfd", f"pidfd:{pid}/{number}", pid=int(match[1]) if match else 0)
    return Descriptor(name if name in ("timerfd", "signalfd", "io_uring") else "other", f"{name}:{pid}/{number}")


def _has_members(pid: int, number: int, epoll: Descriptor, opened: Mapping[int, Descriptor]) -> bool:
    """Whether each number in the epoll still stands for the object that was added: that may have been closed, while
    another number, or another process, keeps it open."""
    if len({fd for fd, _ in epoll.members}) < len(epoll.members):
        return False
    for (fd, _), inode in zip(epoll.members, epoll.inodes, strict=True):
        end = opened.get(fd)
        if end is None:
            return False
        if end.kind in ("pipe", "socket"):
            if inode and f":[{inode}]" not in end.key:
                return False
        elif same_objects.is_member(pid, number, fd) is False:  # all event and timer descriptors have the same inode
            return False
    return epoll.complete
