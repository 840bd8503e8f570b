"""System calls in which a thread can wait, by their numbers (asm/unistd.h), and what their arguments mean.  Pure.

A call that is not in the table is taken for one on a file system or a device, which something outside the job can end.
"""

from typing import Final, NamedTuple

FUTEX_PRIVATE: Final = 128
CLOCK_REALTIME: Final = 256  # of a futex call: its timeout is on the wall clock
TIMER_ABSTIME: Final = 1
F_SETLKW: Final = 7  # fcntl(2)
F_OFD_SETLKW: Final = 38
OPEN_FILE_LOCK: Final = "fcntl with F_OFD_SETLKW"
# Their locks belong to open files, of which anybody may have been sent a descriptor.
HANDED_OVER: Final = ("flock", OPEN_FILE_LOCK)


class Call(NamedTuple):
    """`mask`: the index of the argument with a set of signals that is in effect during the call, if it has one.

    `kind`: `in`, `out`, `accept` (on the descriptor in the first argument), `poll`, `select`, `epoll`, `sleep`,
    `futex`, `child`, `signal`, `lock`, `restart`, `device`, or `other`.

    `time`: the index of the timeout among the arguments.  `unit`: how it is passed: `ms` (a number, negative for no
    timeout), `spec` or `val` (the address of a timespec or a timeval); empty for a call without a timeout.
    """

    name: str
    kind: str
    time: int = -1
    unit: str = ""
    mask: int = -1


# The number on x86_64, that on aarch64 (None: no such call), and the call.
_TABLE: Final[tuple[tuple[tuple[int | None, int | None], Call], ...]] = (
    ((0, 63), Call("read", "in")),
    ((1, 64), Call("write", "out")),
    ((17, 67), Call("pread64", "in")),
    ((18, 68), Call("pwrite64", "out")),
    ((19, 65), Call("readv", "in")),
    ((20, 66), Call("writev", "out")),
    ((40, 71), Call("sendfile", "out")),
    ((42, 203), Call("connect", "out")),
    ((43, 202), Call("accept", "accept")),
    ((288, 242), Call("accept4", "accept")),
    ((44, 206), Call("sendto", "out")),
    ((45, 207), Call("recvfrom", "in")),
    ((46, 211), Call("sendmsg", "out")),
    ((47, 212), Call("recvmsg", "in")),
    ((299, 243), Call("recvmmsg", "in")),
    ((307, 269), Call("sendmmsg", "out")),
    ((74, 82), Call("fsync", "out")),
    ((75, 83), Call("fdatasync", "out")),
    ((7, None), Call("poll", "poll", 2, "ms")),
    ((271, 73), Call("ppoll", "poll", 2, "spec", 3)),
    ((23, None), Call("select", "select", 4, "val")),
    ((270, 72), Call("pselect6", "select", 4, "spec", 5)),
    ((232, None), Call("epoll_wait", "epoll", 3, "ms")),
    ((281, 22), Call("epoll_pwait", "epoll", 3, "ms", 4)),
    ((441, 441), Call("epoll_pwait2", "epoll", 3, "spec", 4)),
    ((35, 101), Call("nanosleep", "sleep", 0, "spec")),
    ((230, 115), Call("clock_nanosleep", "sleep", 2, "spec")),
    ((202, 98), Call("futex", "futex", 3, "spec")),
    ((61, 260), Call("wait4", "child")),
    ((247, 95), Call("waitid", "child")),
    ((58, None), Call("vfork", "child")),
    ((56, 220), Call("clone", "child")),
    ((435, 435), Call("clone3", "child")),
    ((34, None), Call("pause", "signal")),
    ((130, 133), Call("rt_sigsuspend", "signal")),
    ((128, 137), Call("rt_sigtimedwait", "signal", 2, "spec")),
    ((73, 32), Call("flock", "lock")),
    ((72, 25), Call("fcntl", "lock")),
    ((65, 193), Call("semop", "other")),
    ((220, 192), Call("semtimedop", "other")),
    ((69, 189), Call("msgsnd", "other")),
    ((70, 188), Call("msgrcv", "other")),
    ((16, 29), Call("ioctl", "device")),
    ((219, 128), Call("restart_syscall", "restart")),
)
_COLUMNS: Final = {"x86_64": 0, "aarch64": 1}


def table(machine: str) -> dict[int, Call]:
    """The calls by number; empty for a machine whose numbers are not in the table."""
    if machine not in _COLUMNS:
        return {}
    return {number: call for numbers, call in _TABLE if (number := numbers[_COLUMNS[machine]]) is not None}
