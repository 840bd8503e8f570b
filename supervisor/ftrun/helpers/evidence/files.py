"""What a process has open, and in which call it waits."""

import os
import re
import socket
from typing import Final, NamedTuple

from ftrun.accelerators.table import VENDORS
from ftrun.helpers.evidence import calls, sockets
from ftrun.host import procfs

FILES: Final = 256  # of one process, that are described
LINKS: Final = 4096  # that are read in search of an accelerator
OTHERS: Final = ("/dev/kfd", "/dev/accel", "/dev/dri/render")  # of vendors that are not probed
ACCELERATORS: Final = (*(path for vendor in VENDORS for path in vendor.opened), *OTHERS)
_STATES: Final = (
    *("-", "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE", "CLOSE_WAIT"),
    *("LAST_ACK", "LISTEN", "CLOSING"),
)
_CALLS: Final = calls.table(os.uname().machine)
_ON_FILES: Final = ("in", "out", "accept", "epoll", "lock")  # kinds of calls whose first argument is a descriptor


class Files(NamedTuple):
    """`opened`: descriptor and what it is.  `call`: what the main thread waits in, if that is a call on one of them."""

    opened: tuple[tuple[int, str], ...]
    more: int
    call: str | None


def look(pid: int) -> Files:
    """OSError where we may not look.  Nothing is opened and no file system is asked: one of them may be dead."""
    numbers = sorted(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
    sockets = _sockets(pid)
    opened = tuple((number, _what(pid, number, sockets)) for number in numbers[:FILES])
    return Files(opened, max(0, len(numbers) - FILES), _call(pid, sockets))


def accelerated(pid: int) -> bool:
    """Whether it has an accelerator open, as far as we may see."""
    try:
        return any(_link(pid, number).startswith(ACCELERATORS) for number in os.listdir(f"/proc/{pid}/fd")[:LINKS])
    except OSError:
        return False


def _link(pid: int, number: int | str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{number}")
    except FileNotFoundError:
        return "(closed meanwhile)"


def _what(pid: int, number: int, sockets: dict[str, str]) -> str:
    link = _link(pid, number)
    return sockets.get(link, link)


def _call(pid: int, sockets: dict[str, str]) -> str | None:
    fields = (procfs.read(f"/proc/{pid}/syscall", 256) or b"").split()
    if len(fields) < 2 or not fields[0].isdigit():
        return None
    call = _CALLS.get(int(fields[0]))
    number = int(fields[1], 16) & 0xFFFFFFFF
    waits = call is not None and call.kind in _ON_FILES
    return f"{call.name} on {number}, {_what(pid, number, sockets)}" if call and waits else None


def _sockets(pid: int) -> dict[str, str]:
    """What is behind `socket:[inode]`, in the network namespace of that process."""
    found = {}
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        for line in sockets.table(pid, kind).decode("utf-8", "surrogateescape").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9:
                state = _STATES[int(fields[3], 16)] if int(fields[3], 16) < len(_STATES) else ""
                ends = f"{_address(fields[1])} -> {_address(fields[2])}"
                found[f"socket:[{fields[9]}]"] = f"{kind} {ends}{f' {state}' if kind.startswith('tcp') else ''}"
    for line in sockets.table(pid, "unix").decode("utf-8", "surrogateescape").splitlines()[1:]:
        if match := re.match(r"\S+ \S+ \S+ \S+ \S+ \S+ +(\d+) ?(.*)", line):
            found[f"socket:[{match[1]}]"] = f"unix {match[2]}".rstrip()
    return found


def _address(text: str) -> str:
    """`0100007F:1F90` as 127.0.0.1:8080."""
    packed, port = sockets.unpacked(text)
    if len(packed) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, packed)}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, packed)}]:{port}"
