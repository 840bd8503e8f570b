"""/proc, read without help: every call is bounded and answers for a process that vanished meanwhile."""

import errno
import os
from collections.abc import Iterable
from typing import Final, NamedTuple

LISTINGS: Final = 16
_kept: list[int] = []


class Stat(NamedTuple):
    """Of /proc/<pid>/stat (proc_pid_stat(5)).  `start` is in clock ticks since boot; with `pid` it names a process."""

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
        """A zombie, or gone.  A zombie leader whose other threads still run has not ended."""
        return self.state in "XxZ" and self.threads <= 1


def reserve_descriptor() -> None:
    """From now on a look at /proc has a descriptor where no other is left: who sees nobody takes all for ended."""
    if not _kept:
        try:
            _kept.append(os.open("/", os.O_PATH | os.O_CLOEXEC))
        except OSError:
            pass  # the next look tries again


def _freed(error: OSError) -> bool:
    """Whether there was no descriptor left, and now is one."""
    if error.errno not in (errno.EMFILE, errno.ENFILE) or not _kept:
        return False
    os.close(_kept.pop())
    return True


def read(path: str, limit: int = 65536, at_once: bool = False) -> bytes | None:
    """At most `limit` bytes, or None where there is nothing that we may read.

    The kernel hands out a list of its own about a page at a time; `at_once`: this one is a single record.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
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
    return Stat(
        pid,
        text[opened + 1 : closed].decode("utf-8", "replace"),
        rest[0].decode(),
        int(rest[1]),
        int(rest[2]),
        int(rest[3]),
        int(rest[17]),
        int(rest[19]),
    )


def all_processes() -> list[Stat]:
    """Every process of this PID namespace, each as it was at some instant of the call.

    One that is forked after the listing, by a parent that ends before its turn, would be missed: it is listed again
    until nobody is new, though not for ever where processes come and go all the time.
    """
    found: dict[str, Stat | None] = {}
    for _ in range(LISTINGS):
        fresh = [name for name in _names() if name.isdigit() and name not in found]
        if not fresh:
            break
        found.update({name: stat(int(name)) for name in fresh})
    return [process for process in found.values() if process is not None]


def _names() -> list[str]:
    try:
        return os.listdir("/proc")
    except OSError as error:
        if not _freed(error):
            raise
    try:
        return os.listdir("/proc")
    finally:
        reserve_descriptor()


def environment(pid: int) -> bytes | None:
    """The environment with which it was executed, NUL-separated; None where we may not look."""
    return read(f"/proc/{pid}/environ", 1 << 20)


def children(pid: int) -> list[int]:
    """Direct children of the main thread, zombies included; empty where the kernel does not tell."""
    return [int(word) for word in (read(f"/proc/{pid}/task/{pid}/children", 1 << 20) or b"").split()]


def describe(process: Stat) -> str:
    """`pid (name) state wchan`, for a person."""
    wchan = (read(f"/proc/{process.pid}/wchan", 128) or b"").decode("ascii", "replace").strip("\0 \n")
    return f"{process.pid} ({process.name}) {process.state} {wchan if wchan not in ('', '0') else '-'}"


def describe_with_user(process: Stat) -> str:
    """The same, and the number of its user."""
    try:
        return f"{describe(process)} of user {os.stat(f'/proc/{process.pid}').st_uid}"
    except OSError:
        return describe(process)


def memory_folders() -> list[str]:
    """Mount points of memory file systems, the best known first."""
    mounted = memory_mounts(mount_lines(read("/proc/self/mountinfo", 1 << 20)))
    known = ["/dev/shm", "/run/shm", os.environ.get("XDG_RUNTIME_DIR", ""), "/run", "/tmp"]
    return [folder for folder in known if folder in mounted]


def mount_lines(mountinfo: bytes | None) -> list[str]:
    """Of mountinfo.  The kernel quotes a newline in a name, and no other end of a line that Python knows."""
    lines = os.fsdecode(mountinfo or b"").split("\n")
    return [line for line in lines if len(line.partition(" - ")[0].split(" ")) > 4]


def memory_mounts(lines: Iterable[str]) -> list[str]:
    found = []
    for line in lines:
        left, _, right = line.partition(" - ")
        if right.split(" ", 1)[0] in ("tmpfs", "ramfs"):
            found.append(left.split(" ")[4])
    return found


def boot_id() -> str:
    """Names this boot of the machine; empty where nothing says it."""
    return (read("/proc/sys/kernel/random/boot_id", 64) or b"").decode("ascii", "replace").strip()
