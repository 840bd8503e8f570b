"""Reads /proc without a library: every call is bounded and handles a process that vanishes meanwhile."""

import errno
import os
from contextlib import suppress
from typing import Final

from ftrun.core.named_tuple import NamedTuple

COMPLETE: Final = 16  # listings of /proc after which a table of all processes is taken to be complete
_reserved: list[int] = []
_pinned: list[int] = []  # the folder /proc


class Stat(NamedTuple):
    """The fields of /proc/<pid>/stat (proc_pid_stat(5)).  `start` is in clock ticks since boot; together with `pid` it
    identifies a process."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    threads: int
    start: int

    @property
    def ended(self) -> bool:
        """Whether it is a zombie or gone.  A zombie leader whose other threads still run has not ended."""
        return self.state in "XxZ" and self.threads <= 1


def problem() -> str | None:
    """Return why /proc does not show the processes of this PID namespace, with the remedy, or None if it does."""
    own = str(os.getpid())
    try:
        shown = os.readlink("/proc/self")
    except OSError:
        if not os.path.lexists("/proc/mounts"):  # every proc file system has this link, whatever its options hide
            return (
                "the proc file system is not mounted at /proc, or something else is mounted over it: ftrun finds the "
                "processes of the command there; mount -t proc proc /proc"
            )
        shown = "none"
    if shown == own:
        return None
    return (
        f"/proc shows another PID namespace (this process is {own}, and {shown} there): ftrun cannot find the "
        "processes of the command in it; mount the proc file system of this namespace (unshare: --mount-proc; a "
        "container: without a volume at /proc)"
    )


def reserve_descriptor() -> None:
    """Reserve a descriptor for reads of /proc when no other is left: a read that shows no process would make all seem
    ended."""
    if not _reserved:
        with suppress(OSError):  # the next call tries again
            _reserved.append(os.open("/", os.O_PATH | os.O_CLOEXEC))


def pin() -> None:
    """Read from the file system that is at /proc now, also when the command has unmounted it, or mounted another one
    over it, in which its processes would seem to have ended."""
    with suppress(OSError):
        _pinned[:] = _pinned or [os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]


def _found(path: str) -> tuple[str, int | None]:
    """The path, and the folder that it is relative to, as functions of `os` take them."""
    return (path[6:], _pinned[0]) if _pinned and path.startswith("/proc/") else (path, None)


def _freed(error: OSError) -> bool:
    """Return whether no descriptor was left and the reserved one has now been released."""
    if error.errno not in (errno.EMFILE, errno.ENFILE) or not _reserved:
        return False
    os.close(_reserved.pop())
    return True


def read(path: str, limit: int = 65536, at_once: bool = False) -> bytes | None:
    """Return at most `limit` bytes of a file, or None if it does not exist or may not be read.

    The kernel returns its lists in pieces of about a page; `at_once`: the file is a single record, and one read is
    enough.
    """
    try:
        name, folder = _found(path)
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        if not _freed(error):
            return None
        try:
            return read(path, limit, at_once)
        finally:
            reserve_descriptor()
    try:
        content = piece = os.read(fd, limit)
        while piece and not at_once and len(content) < limit:
            piece = os.read(fd, limit - len(content))
            content += piece
        return content
    except OSError:
        return None
    finally:
        os.close(fd)


def stat(pid: int) -> Stat | None:
    text = read(f"/proc/{pid}/stat", 4096, at_once=True)
    if not text:
        return None
    # The name may hold spaces and brackets: it ends at the last one.
    opened, closed = text.index(b"("), text.rindex(b")")
    rest = text[closed + 2 :].split(None, 20)
    name, numbers = text[opened + 1 : closed].decode("utf-8", "replace"), (rest[index] for index in (1, 2, 3, 17, 19))
    return Stat(pid, name, rest[0].decode(), *map(int, numbers))


def all_processes(listings: int = COMPLETE) -> list[Stat]:
    """Return every process of this PID namespace, each as it was at some instant of the call.

    A process that is forked after the listing, by a parent that ends before it is read, would be missed.  So /proc is
    listed again until no process is new, but at most `listings` times, since processes may come and go all the time.
    With a single listing such a process may be missing.
    """
    processes: dict[str, Stat | None] = {}
    for _ in range(listings):
        fresh = [name for name in _names() if name.isdigit() and name not in processes]
        if not fresh:
            break
        processes.update({name: stat(int(name)) for name in fresh})
    return [process for process in processes.values() if process is not None]


def _names() -> list[str]:
    folder = _pinned[0] if _pinned else "/proc"
    try:
        return os.listdir(folder)
    except OSError as error:
        if not _freed(error):
            raise
    try:
        return os.listdir(folder)
    finally:
        reserve_descriptor()


def environment(pid: int) -> list[bytes]:
    """Return the entries of the environment with which it was executed; a single empty one if it may not be read."""
    return (read(f"/proc/{pid}/environ", 1 << 20) or b"").split(b"\0")


def pipe(pid: int, fd: int) -> str | None:
    """Return the identifier of the pipe that this descriptor of a process belongs to; None if it is no pipe."""
    try:
        name, folder = _found(f"/proc/{pid}/fd/{fd}")
        target = os.readlink(name, dir_fd=folder)
    except OSError:
        return None
    return target if target.startswith("pipe:") else None


def handles(pid: int, number: int) -> bool:
    """Return whether the process has a handler for this signal; True if that is not known."""
    for line in (read(f"/proc/{pid}/status", 8192) or b"").splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return True


def children(parent: int) -> list[int]:
    """Return the direct children of the main thread, zombies included; empty if the kernel does not provide them."""
    return [int(pid) for pid in (read(f"/proc/{parent}/task/{parent}/children", 1 << 20) or b"").split()]


def child(pid: int) -> Stat | None:
    """Return this child of this process, or None if it is no child any more.

    With `hidepid` (proc(5)) /proc may hide a process that has changed its user, which its parent can signal all the
    same.  Nothing more is known of it then: what it has started is seen once it has ended.
    """
    if (found := stat(pid)) is not None:
        return found if found.parent == os.getpid() else None
    try:
        return Stat(pid, "hidden by /proc", "?", os.getpid(), os.getpgid(pid), os.getsid(pid), 1, 0)
    except OSError:
        return None


def describe(process: Stat) -> str:
    """Return `pid (name) state wchan`, for the user."""
    wchan = (read(f"/proc/{process.pid}/wchan", 128) or b"").decode("ascii", "replace").strip("\0 \n")
    return f"{process.pid} ({process.name}) {process.state} {wchan if wchan not in ('', '0') else '-'}"


def describe_with_user(process: Stat) -> str:
    """Return what `describe` returns, with the number of its user."""
    try:
        return f"{describe(process)} of user {os.stat(f'/proc/{process.pid}').st_uid}"
    except OSError:
        return describe(process)


def boot_id() -> str:
    """Return the identifier of this boot of the machine; empty if unknown."""
    return (read("/proc/sys/kernel/random/boot_id", 64) or b"").decode("ascii", "replace").strip()
