"""What every thread of the job waits in, as the kernel tells it: the call, its arguments, and what they lead to.

Reading this may block where a process holds a lock of its own memory (execve(2) from a dead disk does): it is done in
a thread of its own, the suspect first, and what did not come in time is not known.
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
POLLED: Final = 1024  # descriptors of one call
OTHERS: Final = 4096  # processes beside the job, that are asked for the other end of a pipe
_CALLS: Final = calls.table(os.uname().machine)
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_POLLIN, _POLLOUT = 1, 4
_PLACES: Final = (b"RANK", b"WORLD_SIZE", b"LOCAL_WORLD_SIZE")


class End(NamedTuple):
    """What a descriptor leads to.  `key` names it among all processes; `mode` holds `r` and `w`."""

    kind: str  # pipe, socket, file, terminal, device, eventfd, timerfd, pidfd, signalfd, epoll, or other
    key: str
    mode: str = "rw"
    pid: int = 0  # of a pidfd
    members: tuple[tuple[int, str], ...] = ()  # of an epoll


class Thread(NamedTuple):
    """`call` is None where it is not known, `running` where it is in none.  `fds`: each with `r`, `w` or both.
    `timed`: the call has a timeout; `until`: when that passes, in CLOCK_MONOTONIC seconds, if that is known.
    `shared`: the mapping in which the futex lies, where other processes may have it too.  `lock`: the inode that it
    wants to lock.  `child`: the one that is waited for; 0: any."""

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


class Process(NamedTuple):
    """`threads`: the main one first.  `rank`, `size`, `local_size`: RANK, WORLD_SIZE and LOCAL_WORLD_SIZE of the
    environment that it was executed with, None where that has none."""

    threads: tuple[Thread, ...]
    fds: dict[int, End]
    problem: str = ""
    rank: int | None = None
    size: int | None = None
    local_size: int | None = None


class World(NamedTuple):
    """`holders`: by the key of an `GroupEnd`, the processes of the job that have it, and how.  `outside`: the same of
    all
    others that may be seen.  `locks`: by inode, who holds a file lock.  `group`: the hosts of the group's members."""

    at: float
    processes: dict[int, Process]
    sockets: dict[int, Socket]
    holders: dict[str, dict[int, str]]
    outside: dict[str, str]
    locks: dict[str, set[int]]
    group: frozenset[str]


def empty(group: frozenset[str]) -> World:
    return World(time.monotonic(), {}, {}, {}, {}, {}, group)


def look(world: World, pids: Sequence[int]) -> None:
    """Fill it, the first ones first; whoever reads it before we come back knows the less."""
    shared: set[str] = set()
    world.sockets.update(sockets.look(pids[0] if pids else os.getpid()))
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
    wanted = {key for process in world.processes.values() for key in _waited(process)}
    if wanted:
        job, us = set(pids), os.getpid()
        others = [process.pid for process in procfs.all_processes() if process.pid not in job and process.pid != us]
        for pid in others[:OTHERS]:
            for end in _files(pid, only=("pipe:", "anon_inode:[eventfd]")).values():
                if end.key in wanted:
                    world.outside[end.key] = world.outside.get(end.key, "") + end.mode
            for key in wanted & _shared(pid):
                world.outside[key] = "rw"


def group(spared: Iterable[int]) -> frozenset[str]:
    """The hosts with which ftrun's own helpers are connected: the other members of the group."""
    found = sockets.look(os.getpid())
    inodes = {end.key for pid in spared for end in _files(pid).values() if end.kind == "socket"}
    ours = [s for inode, s in found.items() if f"socket:[{inode}]" in inodes and s.kind == "tcp" and not s.listens]
    return frozenset(host(s.remote) for s in ours)


def host(address: str) -> str:
    return address.rpartition(":")[0]


def _waited(process: Process) -> set[str]:
    """Keys of pipes and the like in which somebody waits."""
    kinds = ("pipe", "eventfd")
    ends = [process.fds.get(fd) for thread in process.threads for fd, _ in thread.fds]
    return {end.key for end in ends if end and end.kind in kinds} | {t.shared for t in process.threads if t.shared}


# --- one process ------------------------------------------------------------------------------------------------------


def _process(pid: int) -> Process:
    try:
        tids = sorted(map(int, os.listdir(f"/proc/{pid}/task")), key=lambda tid: tid != pid)[:THREADS]
        fds = _files(pid, strict=True)
    except OSError as error:
        return Process((), {}, error.strerror or str(error))
    threads = tuple(_thread(pid, tid) for tid in tids)
    pairs = (entry.partition(b"=") for entry in (procfs.read(f"/proc/{pid}/environ", 1 << 20) or b"").split(b"\0"))
    found = {name: int(value) for name, _, value in pairs if name in _PLACES and value.isdigit() and len(value) < 10}
    return Process(threads, fds, "", *map(found.get, _PLACES))


def _thread(pid: int, tid: int) -> Thread:
    task = f"/proc/{pid}/task/{tid}"
    fields = (procfs.read(f"{task}/stat", 4096) or b"").rpartition(b")")[2].split()
    cpu = (int(fields[11]) + int(fields[12])) / _TICKS if len(fields) > 12 else 0.0
    switched = re.search(rb"^voluntary_ctxt_switches:\s+(\d+)", procfs.read(f"{task}/status") or b"", re.M)
    moved = [line.rpartition(b":")[2] for line in (procfs.read(f"{task}/io", 4096) or b"").splitlines()[:2]]
    thread = Thread(
        tid, None, cpu=cpu, switches=int(switched[1]) if switched else 0, io=sum(map(int, moved)) if moved else 0
    )
    words = (procfs.read(f"{task}/syscall", 512) or b"").split()
    if not words:
        return thread._replace(problem="its system call may not be seen")
    if words[0] == b"running":
        return thread._replace(running=True)
    if words[0] == b"-1":  # blocked, and in no call: a page of its memory is being read
        return thread._replace(call=calls.Call("a page fault", "other"))
    number, arguments = int(words[0]), [int(word, 16) for word in words[1:7]]
    call = _CALLS.get(number, calls.Call(f"system call {number}", "other"))
    return _read(pid, thread._replace(call=call), arguments)


def _read(pid: int, thread: Thread, arguments: Sequence[int]) -> Thread:
    """With what its arguments say; where they may not be read, that is the problem."""
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
        return thread._replace(problem=f"the arguments of its {call.name} may not be read")
    return thread


def _timed(pid: int, thread: Thread, arguments: Sequence[int]) -> Thread:
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
    if call.kind == "futex":  # FUTEX_WAIT has a length, the other operations a time
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
    wanted: dict[int, str] = {}
    for pointer, mode in zip(arguments[1:3], "rw", strict=True):
        if pointer and count:
            bits = _memory(pid, pointer, (count + 63) // 64 * 8)
            for fd in range(count):
                if bits[fd // 8] >> fd % 8 & 1:
                    wanted[fd] = wanted.get(fd, "") + mode
    return tuple(wanted.items())


def _directions(reads: bool, writes: bool) -> str:
    return ("r" if reads or not writes else "") + ("w" if writes else "")


def _memory(pid: int, at: int, length: int) -> bytes:
    fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.pread(fd, length, at)
    finally:
        os.close(fd)
    if len(content) < length:
        raise ValueError("it is not all there")
    return content


# --- descriptors, mappings, locks -------------------------------------------------------------------------------------


def _files(pid: int, strict: bool = False, only: tuple[str, ...] = ()) -> dict[int, End]:
    """`only`: those whose link begins so.  `strict`: OSError where we may not look."""
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
            continue  # closed meanwhile
        except OSError:
            if strict:
                raise
    return found


def _end(pid: int, number: str, link: str) -> End:
    if link.startswith("pipe:"):
        mode = os.lstat(f"/proc/{pid}/fd/{number}").st_mode  # r and w of the owner, as it was opened (proc_pid_fd(5))
        return End("pipe", link, ("r" if mode & 0o400 else "") + ("w" if mode & 0o200 else ""))
    if link.startswith("socket:"):
        return End("socket", link)
    if not link.startswith("anon_inode:"):
        return _named(pid, number, link)
    about = (procfs.read(f"/proc/{pid}/fdinfo/{number}") or b"").decode("ascii", "replace")
    name = link.removeprefix("anon_inode:").strip("[]")
    if name == "eventfd":
        match = re.search(r"^eventfd-id:\s*(\d+)", about, re.M)
        return End("eventfd", f"eventfd:{match[1] if match else f'{pid}/{number}'}")
    if name == "eventpoll":
        pairs = re.findall(r"^tfd:\s*(\d+)\s+events:\s*([0-9a-f]+)", about, re.M)
        members = [
            (int(fd), _directions(bool(int(ev, 16) & _POLLIN), bool(int(ev, 16) & _POLLOUT))) for fd, ev in pairs
        ]
        return End("epoll", f"epoll:{pid}/{number}", members=tuple(members[:POLLED]))
    if name == "pidfd":
        match = re.search(r"^Pid:\s*(-?\d+)", about, re.M)
        return End("pidfd", f"pidfd:{pid}/{number}", pid=int(match[1]) if match else 0)
    kind = name if name in ("timerfd", "signalfd") else "other"
    return End(kind, f"{name}:{pid}/{number}")


def _named(pid: int, number: str, link: str) -> End:
    """A file, by its name alone: its file system may be dead.  A named pipe is not told from a file."""
    if link.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
        return End("terminal", link)
    if link.startswith("/dev/") and not link.startswith(("/dev/shm/", "/dev/mqueue/")):
        return End("device", link)
    return End("file", link)


def _mapping(pid: int, at: int) -> str:
    """The file that is mapped at this address and shared, by device and inode; empty for memory of its own."""
    for start, end, permissions, key in _mappings(pid):
        if start <= at < end:
            return key if permissions[3:4] == "s" else ""
    raise ValueError("nothing is mapped there")


def _shared(pid: int) -> set[str]:
    try:
        return {key for _, _, permissions, key in _mappings(pid) if permissions[3:4] == "s"}
    except (OSError, ValueError):
        return set()


def _mappings(pid: int) -> list[tuple[int, int, str, str]]:
    content = procfs.read(f"/proc/{pid}/maps", 16 << 20)
    if content is None:
        raise OSError("its mappings may not be read")
    found = []
    for line in content.decode("ascii", "replace").splitlines():
        fields = line.split(None, 5)
        if len(fields) > 4:
            start, _, end = fields[0].partition("-")
            found.append((int(start, 16), int(end, 16), fields[1], f"map:{fields[3]}:{fields[4]}"))
    return found


def _locks() -> dict[str, set[int]]:
    """Of /proc/locks (proc_locks(5)): by inode, the processes that hold a lock; who waits for one is left out."""
    found: dict[str, set[int]] = {}
    for line in (procfs.read("/proc/locks", 4 << 20) or b"").decode("ascii", "replace").splitlines():
        fields = line.split()
        if len(fields) > 6 and fields[1] != "->":
            found.setdefault(fields[5].rpartition(":")[2], set()).add(int(fields[4]))
    return found


def _inode(pid: int, fd: int) -> str:
    """As in /proc/locks; of fdinfo, which asks no file system."""
    match = re.search(rb"^ino:\s*(\d+)", procfs.read(f"/proc/{pid}/fdinfo/{fd}") or b"", re.M)
    if match is None:
        raise ValueError("the kernel does not tell it")
    return match[1].decode()
