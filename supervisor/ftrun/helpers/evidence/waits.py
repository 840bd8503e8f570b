"""The wait of each thread of the job, as the kernel shows it: the system call, its arguments, and their meaning.

Reading this may block while a process holds the lock of its own memory (execve(2) from a dead disk does), so it is done
in a separate thread; what does not arrive in time is unknown.  Open files never block and are read first.
"""

import os
import re
import struct
import time
from collections.abc import Iterable, Sequence
from typing import Final

from ftrun.helpers.evidence import calls, files, sockets
from ftrun.helpers.evidence.calls import Call
from ftrun.helpers.evidence.files import directions
from ftrun.helpers.evidence.processes import cpu_seconds, environment
from ftrun.helpers.evidence.world import LATE, Descriptor, WaitingProcess, WaitingThread, World, host
from ftrun.host import procfs

PROCESSES: Final = 512
THREADS: Final = 256  # of one process
POLLED: Final = 1024  # descriptors of one call that are read
OTHERS: Final = 4096  # processes outside the job that are searched for the other end of a pipe
_CALLS: Final = calls.table(os.uname().machine)
_VARIABLES: Final = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


def empty(group: frozenset[str]) -> World:
    return World(time.monotonic(), {}, {}, {}, {}, {}, group)


def observe(world: World, pids: Sequence[int]) -> None:
    """Fill `world` in the order of `pids`.  It may be copied before this returns, and is incomplete then."""
    world.sockets.update(sockets.list_all(pids[0] if pids else os.getpid()))
    permitted = []
    for pid in pids[:PROCESSES]:
        try:
            world.processes[pid] = WaitingProcess(files.list_open(pid), LATE)
            permitted.append(pid)
        except OSError as error:
            world.processes[pid] = WaitingProcess({}, error.strerror or str(error))
        for end in world.processes[pid].fds.values():
            holders = world.holders.setdefault(end.key, {})
            holders[pid] = "".join(sorted({*holders.get(pid, ""), *end.mode}))
    world.locks.update(_locks())
    for pid in permitted:
        sizes = _numbers(pid)
        world.processes[pid] = WaitingProcess(world.processes[pid].fds, "", _threads(pid), *sizes)
    shared = {thread.shared for process in world.processes.values() for thread in process.threads if thread.shared}
    for pid in permitted if shared else ():
        for key in shared & _shared(pid):
            world.holders.setdefault(key, {})[pid] = "rw"
    awaited = {key for process in world.processes.values() for key in _awaited_keys(process)}
    if awaited:
        members = {*pids, os.getpid()}
        others = [process.pid for process in procfs.all_processes() if process.pid not in members]
        for pid in others[:OTHERS]:
            for end in _visible_files(pid, ("pipe:", "anon_inode:[eventfd]")):
                if end.key in awaited:
                    world.outside[end.key] = world.outside.get(end.key, "") + end.mode
            for key in awaited & _shared(pid):
                world.outside[key] = "rw"


def group(excluded: Iterable[int]) -> frozenset[str]:
    """The hosts to which ftrun's own helpers are connected: the other members of the group."""
    found = sockets.list_all(os.getpid())
    own = (found.get(end.key) for pid in excluded for end in _visible_files(pid, ("socket:",)))
    return frozenset(host(s.remote) for s in own if s is not None and s.kind == "tcp" and not s.listens)


def _visible_files(pid: int, only: tuple[str, ...]) -> list[Descriptor]:
    """The open files of a process outside the job; empty if access is denied."""
    try:
        return [*files.list_open(pid, only).values()]
    except OSError:
        return []


def _awaited_keys(process: WaitingProcess) -> set[str]:
    """The keys of pipes, event descriptors and shared mappings for which a thread waits."""
    ends = [process.fds.get(fd) for thread in process.threads for fd, _ in thread.fds]
    opened = {end.key for end in ends if end is not None and end.kind in ("pipe", "eventfd")}
    return opened | {thread.shared for thread in process.threads if thread.shared}


# --- one process ------------------------------------------------------------------------------------------------------


def _numbers(pid: int) -> list[int | None]:
    """The values of _VARIABLES."""
    variables = environment(pid)
    values = [variables.get(name, "") for name in _VARIABLES]
    return [int(value) if value.isdecimal() and len(value) < 10 else None for value in values]


def _threads(pid: int) -> tuple[WaitingThread, ...]:
    try:
        tids = sorted(map(int, os.listdir(f"/proc/{pid}/task")), key=lambda tid: tid != pid)
    except OSError:
        return ()
    return tuple(_thread(pid, tid) for tid in tids[:THREADS])


def _thread(pid: int, tid: int) -> WaitingThread:
    task = f"/proc/{pid}/task/{tid}"
    moved = [line.rpartition(b":")[2] for line in (procfs.read(f"{task}/io", 4096) or b"").splitlines()[:2]]
    thread = WaitingThread(tid, None, cpu=cpu_seconds(f"{task}/stat"), io=sum(map(int, moved)))
    fields = (procfs.read(f"{task}/syscall", 512) or b"").split()
    if not fields:
        return thread._replace(problem="its system call is not visible")
    if fields[0] == b"running":
        return thread._replace(running=True)
    if fields[0] == b"-1":  # blocked outside any call: a page of its memory is being read
        return thread._replace(call=Call("a page fault", "other"))
    number, arguments = int(fields[0]), [int(field, 16) for field in fields[1:7]]
    call = _CALLS.get(number, Call(f"system call {number}", "other"))
    thread = thread._replace(call=call)
    try:
        return _interpret(pid, thread, call, arguments)
    except (OSError, struct.error, ValueError):
        return thread._replace(problem=f"the arguments of its {call.name} cannot be read")


def _interpret(pid: int, thread: WaitingThread, call: Call, arguments: Sequence[int]) -> WaitingThread:
    """The thread with the meaning of the call's arguments; OSError, struct.error or ValueError if they cannot be
    read."""
    fd = arguments[0] & 0xFFFFFFFF
    if call.unit:
        thread = _timed(pid, thread, call, arguments)
    match call.kind:
        case "in" | "accept":
            return thread._replace(fds=((fd, "r"),))
        case "out":
            return thread._replace(fds=((fd, "w"),))
        case "lock" if call.name == "flock" or arguments[1] in calls.F_SETLKW:
            return thread._replace(lock=_inode(pid, fd), fds=((fd, "w"),))
        case "lock":
            return thread._replace(call=call._replace(kind="other"))
        case "child":
            child = arguments[1] if call.name == "waitid" and arguments[0] == 1 else 0
            return thread._replace(child=arguments[0] if call.name == "wait4" and 0 < arguments[0] < 1 << 31 else child)
        case "poll":
            return thread._replace(fds=_polled(pid, arguments))
        case "select":
            return thread._replace(fds=_selected(pid, arguments))
        case "epoll":
            return thread._replace(fds=((fd, "rw"),))
        case "futex" if not arguments[1] & calls.FUTEX_PRIVATE:
            return thread._replace(shared=_mapping(pid, arguments[0]))
    return thread


def _timed(pid: int, thread: WaitingThread, call: Call, arguments: Sequence[int]) -> WaitingThread:
    now, timeout = time.monotonic(), arguments[call.time]
    if call.unit == "ms":
        milliseconds = struct.unpack("=i", struct.pack("=I", timeout & 0xFFFFFFFF))[0]
        return thread if milliseconds < 0 else thread._replace(timed=True, until=now + milliseconds / 1000)
    if timeout == 0:
        return thread
    seconds, part = struct.unpack("=qq", _memory(pid, timeout, 16))
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
    return tuple((fd, directions(events)) for fd, events, _ in struct.iter_unpack("=ihh", content) if fd >= 0)


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


def _memory(pid: int, at: int, length: int) -> bytes:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        content = os.pread(memory.fileno(), length, at)
    if len(content) < length:
        raise ValueError("the memory is not mapped completely")
    return content


# --- mappings and locks -----------------------------------------------------------------------------------------------


def _mapping(pid: int, at: int) -> str:
    """The shared file that is mapped at this address, by device and inode; empty for private memory."""
    for start, end, permissions, key in _mappings(pid):
        if start <= at < end:
            return key if permissions[3:4] == "s" else ""
    raise ValueError("the address is not mapped")


def _shared(pid: int) -> set[str]:
    return {key for _, _, permissions, key in _mappings(pid) if permissions[3:4] == "s"}


def _mappings(pid: int) -> list[tuple[int, int, str, str]]:
    """Start, end, permissions and file of each mapping; empty if access is denied."""
    found = []
    for line in (procfs.read(f"/proc/{pid}/maps", 16 << 20) or b"").decode("ascii", "replace").splitlines():
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
