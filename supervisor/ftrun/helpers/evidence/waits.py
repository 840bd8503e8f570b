"""The wait of each thread of the job, as the kernel shows it: the system call, its arguments, and their meaning.

Reading this may block while a process holds the lock of its own memory (execve(2) from a dead disk does), so it is done
in a separate thread, the suspect first; what does not arrive in time is unknown.
"""

import os
import re
import struct
import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ftrun.helpers.evidence import calls, sockets
from ftrun.helpers.evidence.sockets import Socket
from ftrun.host import procfs

PROCESSES: Final = 512
THREADS: Final = 256  # of one process
FILES: Final = 4096
POLLED: Final = 1024  # descriptors of one call that are read
OTHERS: Final = 4096  # processes outside the job that are searched for the other end of a pipe
_CALLS: Final = calls.table(os.uname().machine)
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_POLLIN, _POLLOUT = 1, 4
_VARIABLES: Final = (b"RANK", b"WORLD_SIZE", b"LOCAL_WORLD_SIZE")


class Descriptor(NamedTuple):
    """The object behind a descriptor.  `key` identifies it across processes; `mode` contains `r`, `w` or both."""

    kind: str  # pipe, socket, file, terminal, device, eventfd, timerfd, pidfd, signalfd, epoll, or other
    key: str
    mode: str = "rw"
    pid: int = 0  # the target of a pidfd
    members: tuple[tuple[int, str], ...] = ()  # the descriptors in an epoll


class WaitingThread(NamedTuple):
    """One thread.  `call` is None where it is unknown; `running`: the thread is in no call.

    `fds`: the descriptors that it waits for, each with `r`, `w` or both.  `timed`: the call has a timeout; `until`:
    when that ends, in CLOCK_MONOTONIC seconds, if known.  `shared`: the mapping that holds the futex, if it is shared.
    `lock`: the inode that it waits to lock.  `child`: the pid that it waits for; 0: any child.
    """

    tid: int
    call: calls.Call | None
    problem: str = ""
    running: bool = False
    fds: tuple[tuple[int, str], ...] = ()
    timed: bool = False
    until: float | None = None
    shared: str = ""
    lock: str = ""
    child: int = 0
    cpu: float = 0.0  # seconds so far
    switches: int = 0
    io: int = 0  # bytes read and written so far


class WaitingProcess(NamedTuple):
    """One process.  `threads`: the main thread first.  `rank`, `size`, `local_size`: RANK, WORLD_SIZE and
    LOCAL_WORLD_SIZE in its initial environment, None where they are not set."""

    threads: tuple[WaitingThread, ...]
    fds: dict[int, Descriptor]
    problem: str = ""
    rank: int | None = None
    size: int | None = None
    local_size: int | None = None


class World(NamedTuple):
    """One observation of all waits.

    `holders`: by the key of a `Descriptor`, the pids of the job that have it open, and the mode.  `outside`: by key,
    the mode in which visible processes outside the job have it open.  `locks`: by inode, the pids that hold a file
    lock.  `group`: the hosts of the group's members.
    """

    at: float
    processes: dict[int, WaitingProcess]
    sockets: dict[int, Socket]
    holders: dict[str, dict[int, str]]
    outside: dict[str, str]
    locks: dict[str, set[int]]
    group: frozenset[str]


def empty(group: frozenset[str]) -> World:
    return World(time.monotonic(), {}, {}, {}, {}, {}, group)


def observe(world: World, pids: Sequence[int]) -> None:
    """Fill `world` in the order of `pids`.  It may be read before this returns, and is incomplete then."""
    shared: set[str] = set()
    world.sockets.update(sockets.list_all(pids[0] if pids else os.getpid()))
    for pid in pids[:PROCESSES]:
        process = _process(pid)
        for end in process.fds.values():
            holders = world.holders.setdefault(end.key, {})
            holders[pid] = "".join(sorted({*holders.get(pid, ""), *end.mode}))
        for key in {thread.shared for thread in process.threads if thread.shared}:
            shared.add(key)
        world.processes[pid] = process
    for pid in pids[:PROCESSES] if shared else ():
        for key in shared & _shared(pid):
            world.holders.setdefault(key, {})[pid] = "rw"
    world.locks.update(_locks())
    awaited = {key for process in world.processes.values() for key in _awaited_keys(process)}
    if awaited:
        members = {*pids, os.getpid()}
        others = [process.pid for process in procfs.all_processes() if process.pid not in members]
        for pid in others[:OTHERS]:
            for end in _files(pid, only=("pipe:", "anon_inode:[eventfd]")).values():
                if end.key in awaited:
                    world.outside[end.key] = world.outside.get(end.key, "") + end.mode
            for key in awaited & _shared(pid):
                world.outside[key] = "rw"


def group(excluded: Iterable[int]) -> frozenset[str]:
    """The hosts to which ftrun's own helpers are connected: the other members of the group."""
    found = sockets.list_all(os.getpid())
    inodes = {end.key for pid in excluded for end in _files(pid).values() if end.kind == "socket"}
    own = [s for inode, s in found.items() if f"socket:[{inode}]" in inodes and s.kind == "tcp" and not s.listens]
    return frozenset(host(s.remote) for s in own)


def host(address: str) -> str:
    return address.rpartition(":")[0]


def _awaited_keys(process: WaitingProcess) -> set[str]:
    """The keys of pipes, event descriptors and shared mappings for which a thread waits."""
    kinds = ("pipe", "eventfd")
    ends = [process.fds.get(fd) for thread in process.threads for fd, _ in thread.fds]
    return {end.key for end in ends if end and end.kind in kinds} | {t.shared for t in process.threads if t.shared}


# --- one process ------------------------------------------------------------------------------------------------------


def _process(pid: int) -> WaitingProcess:
    try:
        tids = sorted(map(int, os.listdir(f"/proc/{pid}/task")), key=lambda tid: tid != pid)[:THREADS]
        fds = _files(pid, strict=True)
    except OSError as error:
        return WaitingProcess((), {}, error.strerror or str(error))
    threads = tuple(_thread(pid, tid) for tid in tids)
    pairs = (entry.partition(b"=") for entry in (procfs.read(f"/proc/{pid}/environ", 1 << 20) or b"").split(b"\0"))
    numbers = {
        name: int(value) for name, _, value in pairs if name in _VARIABLES and value.isdigit() and len(value) < 10
    }
    return WaitingProcess(threads, fds, "", *map(numbers.get, _VARIABLES))


def _thread(pid: int, tid: int) -> WaitingThread:
    task = f"/proc/{pid}/task/{tid}"
    fields = (procfs.read(f"{task}/stat", 4096) or b"").rpartition(b")")[2].split()
    cpu = (int(fields[11]) + int(fields[12])) / _TICKS if len(fields) > 12 else 0.0
    switched = re.search(rb"^voluntary_ctxt_switches:\s+(\d+)", procfs.read(f"{task}/status") or b"", re.M)
    moved = [line.rpartition(b":")[2] for line in (procfs.read(f"{task}/io", 4096) or b"").splitlines()[:2]]
    thread = WaitingThread(
        tid, None, cpu=cpu, switches=int(switched[1]) if switched else 0, io=sum(map(int, moved)) if moved else 0
    )
    fields = (procfs.read(f"{task}/syscall", 512) or b"").split()
    if not fields:
        return thread._replace(problem="its system call is not visible")
    if fields[0] == b"running":
        return thread._replace(running=True)
    if fields[0] == b"-1":  # blocked outside any call: a page of its memory is being read
        return thread._replace(call=calls.Call("a page fault", "other"))
    number, arguments = int(fields[0]), [int(field, 16) for field in fields[1:7]]
    call = _CALLS.get(number, calls.Call(f"system call {number}", "other"))
    return _read(pid, thread._replace(call=call), arguments)


def _read(pid: int, thread: WaitingThread, arguments: Sequence[int]) -> WaitingThread:
    """The thread with the meaning of the call's arguments, or with a problem if they cannot be read."""
    call = thread.call
    assert call is not None
    fd = arguments[0] & 0xFFFFFFFF
    try:
        if call.kind in ("in", "out", "accept"):
            return thread._replace(fds=((fd, {"in": "r", "accept": "r"}.get(call.kind, "w")),))
        if call.kind == "lock":
            waits = call.name == "flock" or arguments[1] in calls.F_SETLKW
            other = thread._replace(call=call._replace(kind="other"))
            return thread._replace(lock=_inode(pid, fd)) if waits else other
        if call.kind == "child":
            child = arguments[1] if call.name == "waitid" and arguments[0] == 1 else 0
            if call.name == "wait4" and 0 < arguments[0] < 1 << 31:
                child = arguments[0]
            return thread._replace(child=child)
        thread = _timed(pid, thread, arguments)
        if call.kind == "poll":
            return thread._replace(fds=_polled(pid, arguments))
        if call.kind == "select":
            return thread._replace(fds=_selected(pid, arguments))
        if call.kind == "epoll":
            return thread._replace(fds=((fd, "rw"),))
        if call.kind == "futex" and not arguments[1] & calls.FUTEX_PRIVATE:
            return thread._replace(shared=_mapping(pid, arguments[0]))
    except (OSError, struct.error, ValueError):
        return thread._replace(problem=f"the arguments of its {call.name} cannot be read")
    return thread


def _timed(pid: int, thread: WaitingThread, arguments: Sequence[int]) -> WaitingThread:
    call, now = thread.call, time.monotonic()
    assert call is not None
    if not call.unit:
        return thread
    raw = arguments[call.time]
    if call.unit == "ms":
        milliseconds = struct.unpack("=i", struct.pack("=I", raw & 0xFFFFFFFF))[0]
        return thread if milliseconds < 0 else thread._replace(timed=True, until=now + milliseconds / 1000)
    if raw == 0:
        return thread
    seconds, part = struct.unpack("=qq", _memory(pid, raw, 16))
    length = seconds + part / (1e9 if call.unit == "spec" else 1e6)
    clock, absolute = time.CLOCK_MONOTONIC, False
    if call.kind == "futex":  # FUTEX_WAIT has a relative timeout, the other operations an absolute one
        absolute = arguments[1] & 127 != 0
        clock = time.CLOCK_REALTIME if arguments[1] & calls.CLOCK_REALTIME else clock
    elif call.name == "clock_nanosleep":
        absolute = bool(arguments[1] & calls.TIMER_ABSTIME)
        clock = arguments[0] if arguments[0] < 16 else clock
    left = length - time.clock_gettime(clock) if absolute else length
    return thread._replace(timed=True, until=now + left)


def _polled(pid: int, arguments: Sequence[int]) -> tuple[tuple[int, str], ...]:
    """struct pollfd; descriptors below zero are ignored (poll(2))."""
    content = _memory(pid, arguments[0], 8 * min(arguments[1], POLLED)) if arguments[1] else b""
    found = struct.iter_unpack("=ihh", content)
    return tuple((fd, _directions(bool(ev & _POLLIN), bool(ev & _POLLOUT))) for fd, ev, _ in found if fd >= 0)


def _selected(pid: int, arguments: Sequence[int]) -> tuple[tuple[int, str], ...]:
    count = min(arguments[0] & 0xFFFFFFFF, POLLED)
    selected: dict[int, str] = {}
    for pointer, mode in zip(arguments[1:3], "rw", strict=True):
        if pointer and count:
            bits = _memory(pid, pointer, (count + 63) // 64 * 8)
            for fd in range(count):
                if bits[fd // 8] >> fd % 8 & 1:
                    selected[fd] = selected.get(fd, "") + mode
    return tuple(selected.items())


def _directions(reads: bool, writes: bool) -> str:
    return ("r" if reads or not writes else "") + ("w" if writes else "")


def _memory(pid: int, at: int, length: int) -> bytes:
    fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.pread(fd, length, at)
    finally:
        os.close(fd)
    if len(content) < length:
        raise ValueError("the memory is not mapped completely")
    return content


# --- descriptors, mappings, locks -------------------------------------------------------------------------------------


def _files(pid: int, strict: bool = False, only: tuple[str, ...] = ()) -> dict[int, Descriptor]:
    """`only`: prefixes of the links to return.  `strict`: raise OSError if access is denied."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")[:FILES]
    except OSError:
        if strict:
            raise
        return {}
    found = {}
    for number in numbers:
        try:
            link = os.readlink(f"/proc/{pid}/fd/{number}")
            if link.startswith(only) if only else True:
                found[int(number)] = _end(pid, number, link)
        except FileNotFoundError:
            continue  # closed in the meantime
        except OSError:
            if strict:
                raise
    return found


def _end(pid: int, number: str, link: str) -> Descriptor:
    if link.startswith("pipe:"):
        mode = os.lstat(f"/proc/{pid}/fd/{number}").st_mode  # r and w of the owner, as it was opened (proc_pid_fd(5))
        return Descriptor("pipe", link, ("r" if mode & 0o400 else "") + ("w" if mode & 0o200 else ""))
    if link.startswith("socket:"):
        return Descriptor("socket", link)
    if not link.startswith("anon_inode:"):
        return _named(pid, number, link)
    info = (procfs.read(f"/proc/{pid}/fdinfo/{number}") or b"").decode("ascii", "replace")
    name = link.removeprefix("anon_inode:").strip("[]")
    if name == "eventfd":
        match = re.search(r"^eventfd-id:\s*(\d+)", info, re.M)
        return Descriptor("eventfd", f"eventfd:{match[1] if match else f'{pid}/{number}'}")
    if name == "eventpoll":
        pairs = re.findall(r"^tfd:\s*(\d+)\s+events:\s*([0-9a-f]+)", info, re.M)
        members = [
            (int(fd), _directions(bool(int(ev, 16) & _POLLIN), bool(int(ev, 16) & _POLLOUT))) for fd, ev in pairs
        ]
        return Descriptor("epoll", f"epoll:{pid}/{number}", members=tuple(members[:POLLED]))
    if name == "pidfd":
        match = re.search(r"^Pid:\s*(-?\d+)", info, re.M)
        return Descriptor("pidfd", f"pidfd:{pid}/{number}", pid=int(match[1]) if match else 0)
    kind = name if name in ("timerfd", "signalfd") else "other"
    return Descriptor(kind, f"{name}:{pid}/{number}")


def _named(pid: int, number: str, link: str) -> Descriptor:
    """A file, by its name alone, because its file system may not respond.  A named pipe counts as a file."""
    if link.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
        return Descriptor("terminal", link)
    if link.startswith("/dev/") and not link.startswith(("/dev/shm/", "/dev/mqueue/")):
        return Descriptor("device", link)
    return Descriptor("file", link)


def _mapping(pid: int, at: int) -> str:
    """The shared file that is mapped at this address, by device and inode; empty for private memory."""
    for start, end, permissions, key in _mappings(pid):
        if start <= at < end:
            return key if permissions[3:4] == "s" else ""
    raise ValueError("the address is not mapped")


def _shared(pid: int) -> set[str]:
    try:
        return {key for _, _, permissions, key in _mappings(pid) if permissions[3:4] == "s"}
    except (OSError, ValueError):
        return set()


def _mappings(pid: int) -> list[tuple[int, int, str, str]]:
    content = procfs.read(f"/proc/{pid}/maps", 16 << 20)
    if content is None:
        raise OSError("its mappings cannot be read")
    found = []
    for line in content.decode("ascii", "replace").splitlines():
        fields = line.split(None, 5)
        if len(fields) > 4:
            start, _, end = fields[0].partition("-")
            found.append((int(start, 16), int(end, 16), fields[1], f"map:{fields[3]}:{fields[4]}"))
    return found


def _locks() -> dict[str, set[int]]:
    """The processes that hold a file lock, by inode (proc_locks(5)); those that wait for one are left out."""
    found: dict[str, set[int]] = {}
    for line in (procfs.read("/proc/locks", 4 << 20) or b"").decode("ascii", "replace").splitlines():
        fields = line.split()
        if len(fields) > 6 and fields[1] != "->":
            found.setdefault(fields[5].rpartition(":")[2], set()).add(int(fields[4]))
    return found


def _inode(pid: int, fd: int) -> str:
    """The inode as in /proc/locks, from fdinfo, which does not access the file system."""
    match = re.search(rb"^ino:\s*(\d+)", procfs.read(f"/proc/{pid}/fdinfo/{fd}") or b"", re.M)
    if match is None:
        raise ValueError("fdinfo has no inode")
    return match[1].decode()
