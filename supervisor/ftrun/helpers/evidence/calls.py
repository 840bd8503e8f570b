"""System calls in which a thread can wait, by their numbers (asm/unistd.h), and what their arguments mean.  Pure.

A call that is not in the table is taken for one on a file system or a device, which something outside the job can end.
"""

from typing import Final, NamedTuple

FUTEX_PRIVATE: Final = 128
CLOCK_REALTIME: Final = 256  # of a futex call: its timeout is on the wall clock
TIMER_ABSTIME: Final = 1
F_SETLKW: Final = (7, 38)  # fcntl(2): F_SETLKW and F_OFD_SETLKW


class Call(NamedTuple):
    """`kind`: `in`, `out`, `accept` (on the descriptor in the first argument), `poll`, `select`, `epoll`, `sleep`,
    `futex`, `child`, `signal`, `lock`, `restart`, `device`, or `other`.

    `time`: the index of the timeout among the arguments.  `unit`: how it is passed: `ms` (a number, negative for no
    timeout), `spec` or `val` (the address of a timespec or a timeval); empty for a call without a timeout.
    """

    name: str
    kind: str
    time: int = -1
    unit: str = ""


# Name, number on x86_64, number on aarch64 (None: no such call), kind, timeout argument, unit.
_TABLE: Final[tuple[tuple[str, int | None, int | None, str, int, str], ...]] = (
    ("read", 0, 63, "in", -1, ""),
    ("write", 1, 64, "out", -1, ""),
    ("pread64", 17, 67, "in", -1, ""),
    ("pwrite64", 18, 68, "out", -1, ""),
    ("readv", 19, 65, "in", -1, ""),
    ("writev", 20, 66, "out", -1, ""),
    ("sendfile", 40, 71, "out", -1, ""),
    ("connect", 42, 203, "out", -1, ""),
    ("accept", 43, 202, "accept", -1, ""),
    ("accept4", 288, 242, "accept", -1, ""),
    ("sendto", 44, 206, "out", -1, ""),
    ("recvfrom", 45, 207, "in", -1, ""),
    ("sendmsg", 46, 211, "out", -1, ""),
    ("recvmsg", 47, 212, "in", -1, ""),
    ("recvmmsg", 299, 243, "in", -1, ""),
    ("sendmmsg", 307, 269, "out", -1, ""),
    ("fsync", 74, 82, "out", -1, ""),
    ("fdatasync", 75, 83, "out", -1, ""),
    ("poll", 7, None, "poll", 2, "ms"),
    ("ppoll", 271, 73, "poll", 2, "spec"),
    ("select", 23, None, "select", 4, "val"),
    ("pselect6", 270, 72, "select", 4, "spec"),
    ("epoll_wait", 232, None, "epoll", 3, "ms"),
    ("epoll_pwait", 281, 22, "epoll", 3, "ms"),
    ("epoll_pwait2", 441, 441, "epoll", 3, "spec"),
    ("nanosleep", 35, 101, "sleep", 0, "spec"),
    ("clock_nanosleep", 230, 115, "sleep", 2, "spec"),
    ("futex", 202, 98, "futex", 3, "spec"),
    ("wait4", 61, 260, "child", -1, ""),
    ("waitid", 247, 95, "child", -1, ""),
    ("vfork", 58, None, "child", -1, ""),
    ("clone", 56, 220, "child", -1, ""),
    ("clone3", 435, 435, "child", -1, ""),
    ("pause", 34, None, "signal", -1, ""),
    ("rt_sigsuspend", 130, 133, "signal", -1, ""),
    ("rt_sigtimedwait", 128, 137, "signal", 2, "spec"),
    ("flock", 73, 32, "lock", -1, ""),
    ("fcntl", 72, 25, "lock", -1, ""),
    ("semop", 65, 193, "other", -1, ""),
    ("semtimedop", 220, 192, "other", -1, ""),
    ("msgsnd", 69, 189, "other", -1, ""),
    ("msgrcv", 70, 188, "other", -1, ""),
    ("ioctl", 16, 29, "device", -1, ""),
    ("restart_syscall", 219, 128, "restart", -1, ""),
)
_COLUMNS: Final = {"x86_64": 1, "aarch64": 2}


def table(machine: str) -> dict[int, Call]:
    """The calls by number; empty for a machine whose numbers are not in the table."""
    column = _COLUMNS.get(machine)
    rows = [(row[column], row) for row in _TABLE] if column is not None else []
    return {int(number): Call(row[0], row[3], row[4], row[5]) for number, row in rows if isinstance(number, int)}
