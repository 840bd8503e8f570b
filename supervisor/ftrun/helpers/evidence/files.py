"""The open files of a process, by the names that the kernel has for them.  No file is opened and no file system is
accessed, because it may not respond."""

import os
import re
from typing import Final

from ftrun.helpers.evidence.world import Descriptor
from ftrun.host import procfs

FILES: Final = 4096  # of one process
POLLED: Final = 1024  # descriptors in one epoll
POLLIN, POLLOUT = 1, 4


def list_open(pid: int, only: tuple[str, ...] = ("",)) -> dict[int, Descriptor]:
    """The open files by number; `only`: prefixes of the links to return.  OSError if access is denied."""
    found = {}
    for number in os.listdir(f"/proc/{pid}/fd")[:FILES]:
        try:
            link = os.readlink(f"/proc/{pid}/fd/{number}")
            if link.startswith(only):
                found[int(number)] = _descriptor(pid, number, link)
        except FileNotFoundError:
            continue  # closed in the meantime
    return found


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
    info = (procfs.read(f"/proc/{pid}/fdinfo/{number}") or b"").decode("ascii", "replace")
    name = link.removeprefix("anon_inode:").strip("[]")
    if name == "eventfd":
        match = re.search(r"^eventfd-id:\s*(\d+)", info, re.M)
        return Descriptor("eventfd", f"eventfd:{match[1] if match else f'{pid}/{number}'}")
    if name == "eventpoll":
        pairs = re.findall(r"^tfd:\s*(\d+)\s+events:\s*([0-9a-f]+)", info, re.M)[:POLLED]
        members = tuple((int(fd), directions(int(events, 16))) for fd, events in pairs)
        return Descriptor("epoll", f"epoll:{pid}/{number}", members=members)
    if name == "pidfd":
        match = re.search(r"^Pid:\s*(-?\d+)", info, re.M)
        return Descriptor("pidfd", f"pidfd:{pid}/{number}", pid=int(match[1]) if match else 0)
    return Descriptor(name if name in ("timerfd", "signalfd") else "other", f"{name}:{pid}/{number}")
