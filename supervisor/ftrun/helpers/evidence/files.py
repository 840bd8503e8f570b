"""The open files of a process, and the call in which it waits."""

import os
import re
import socket
from typing import Final, NamedTuple

from ftrun.accelerators.table import VENDORS
from ftrun.helpers.evidence import calls, sockets
from ftrun.host import procfs

FILES: Final = 256  # files of one process that are described
LINKS: Final = 4096  # links that are read in search of an accelerator
OTHERS: Final = ("/dev/kfd", "/dev/accel", "/dev/dri/render")  # of vendors without a probe
ACCELERATORS: Final = (*(path for vendor in VENDORS for path in vendor.opened), *OTHERS)
_STATES: Final = (
    *("-", "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE", "CLOSE_WAIT"),
    *("LAST_ACK", "LISTEN", "CLOSING"),
)
_CALLS: Final = calls.table(os.uname().machine)
_ON_FILES: Final = ("in", "out", "accept", "epoll", "lock")  # calls whose first argument is a descriptor


class Files(NamedTuple):
    """`opened`: each descriptor and what it leads to; `more`: how many are left out.  `call`: the system call in which
    the main thread waits, if that is a call on a descriptor."""

    opened: tuple[tuple[int, str], ...]
    more: int
    call: str | None


def describe(pid: int) -> Files:
    """The files of a process; OSError if access is denied.  No file is opened and no file system is accessed, because
    it may not respond."""
    numbers = sorted(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
    sockets = _sockets(pid)
    opened = tuple((number, _describe_descriptor(pid, number, sockets)) for number in numbers[:FILES])
    return Files(opened, max(0, len(numbers) - FILES), _call(pid, sockets))


def accelerated(pid: int) -> bool:
    """Whether it has an accelerator open, as far as that is visible."""
    try:
        return any(_link(pid, number).startswith(ACCELERATORS) for number in os.listdir(f"/proc/{pid}/fd")[:LINKS])
    except OSError:
        return False


def _link(pid: int, number: int | str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{number}")
    except FileNotFoundError:
        return "(closed in the meantime)"


def _describe_descriptor(pid: int, number: int, sockets: dict[str, str]) -> str:
    link = _link(pid, number)
    return sockets.get(link, link)


def _call(pid: int, sockets: dict[str, str]) -> str | None:
    fields = (procfs.read(f"/proc/{pid}/syscall", 256) or b"").split()
    if len(fields) < 2 or not fields[0].isdigit():
        return None
    call = _CALLS.get(int(fields[0]))
    number = int(fields[1], 16) & 0xFFFFFFFF
    waits = call is not None and call.kind in _ON_FILES
    return f"{call.name} on {number}, {_describe_descriptor(pid, number, sockets)}" if call and waits else None


def _sockets(pid: int) -> dict[str, str]:
    """A description of each `socket:[inode]` in the network namespace of that process."""
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
    """The address `0100007F:1F90` as 127.0.0.1:8080."""
    packed, port = sockets.unpacked(text)
    if len(packed) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, packed)}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, packed)}]:{port}"
