"""Which processes have the same object of the kernel, where no name of it tells: their memory and their epoll
descriptors (kcmp(2)).

Where that call is refused, the answers are those that leave more waits open, unless that would leave all of them open.
"""

import ctypes
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from waitproof import procfs

T = TypeVar("T")
_CALLS: Final = {"x86_64": 312, "aarch64": 272}
_NUMBER: Final = _CALLS.get(os.uname().machine)
_FILE, _MEMORY, _FILES, _EPOLL_MEMBER = 0, 1, 2, 7
_UNEQUAL: Final = 3  # without an order
_libc: Final = ctypes.CDLL(None, use_errno=True)


class _Refused(Exception):
    pass


class _Slot(ctypes.Structure):
    """struct kcmp_epoll_slot: the epoll descriptor, the number that was added to it, and which one of that number."""

    _fields_ = [("epoll", ctypes.c_uint32), ("member", ctypes.c_uint32), ("place", ctypes.c_uint32)]


def sharing_memory(pids: Iterable[int]) -> dict[int, frozenset[int]]:
    """By pid, the other processes that have the same memory without being threads of it (clone(2), CLONE_VM); only for
    processes that share theirs.  Where the kernel does not say, the processes that look alike."""
    found: dict[int, frozenset[int]] = {}
    alike: dict[bytes, list[int]] = {}
    for pid in pids:
        alike.setdefault(_stack(pid), []).append(pid)
    for bucket in alike.values():
        try:
            groups = _groups(bucket, lambda one, other: _compare(one, other, _MEMORY))
        except _Refused:
            sizes: dict[bytes, list[int]] = {}
            for pid in bucket:
                sizes.setdefault((procfs.read(f"/proc/{pid}/statm", 256) or b"").split(b" ")[0], []).append(pid)
            groups = [*sizes.values()]
        found |= {pid: frozenset(group) - {pid} for group in groups if len(group) > 1 for pid in group}
    return found


def same_files(opened: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Descriptors, each with its process first, in groups that are the same open file; one group where the kernel does
    not say."""
    try:
        return _groups(opened, lambda one, other: _compare(one[0], other[0], _FILE, one[1], other[1]))
    except _Refused:
        return [[*opened]]


def share_files(tids: Sequence[int]) -> bool:
    """Whether all these threads have the same open files: one may have a table of its own (unshare(2), CLONE_FILES)."""
    try:
        return all(_compare(tids[0], tid, _FILES) == 0 for tid in tids[1:])
    except _Refused:
        return True


def is_member(pid: int, epoll: int, number: int) -> bool | None:
    """Whether the descriptor of that number is the object that was added to this epoll descriptor under it: that may
    have been closed, while another number, or another process, keeps it open.  None: the kernel does not say."""
    slot = _Slot(epoll, number, 0)
    try:
        return _compare(pid, pid, _EPOLL_MEMBER, number, ctypes.addressof(slot)) == 0
    except _Refused:
        return None


def _stack(pid: int) -> bytes:
    """The address at which its stack begins, which differs between programs, not within one and what it forks."""
    _, fields = procfs.fields(f"/proc/{pid}/stat")
    return fields[25] if fields else b""


def _groups(items: Sequence[T], compare: Callable[[T, T], int]) -> list[list[T]]:
    """Groups of equal items, by a comparison that also orders them."""
    groups: list[list[T]] = []
    for item in sorted(items, key=functools.cmp_to_key(compare)) if len(items) > 1 else items:
        if groups and compare(groups[-1][-1], item) == 0:
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def _compare(one: int, other: int, kind: int, first: int = 0, second: int = 0) -> int:
    """Zero if they are the same, else their order; _Refused if the kernel does not say."""
    if _NUMBER is None:
        raise _Refused
    result: int = _libc.syscall(_NUMBER, one, other, kind, ctypes.c_ulong(first), ctypes.c_ulong(second))
    if result < 0 or result == _UNEQUAL:
        raise _Refused
    return {0: 0, 1: -1, 2: 1}[result]
