"""What each thread of a process waits for, as the kernel shows it: the system call, its arguments, and their meaning.

Reading this may block while the process holds the lock of its own memory (execve(2) from a dead disk does).
"""

import os
import struct
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from waitproof import calls, families, interrupts, locks, procfs, recognized, same_objects, timeouts
from waitproof.calls import Call
from waitproof.files import directions
from waitproof.mappings import Mappings
from waitproof.procfs import TICKS
from waitproof.world import Descriptor, WaitingProcess, WaitingThread

THREADS: Final = 16384  # of one process
AGAIN: Final = 20  # times that a thread which should wait is read again,
PAUSE: Final = 0.005  # s apart
SPARE: Final = 0.3  # s of one observation in which threads that are not known to wait are read again
POLLED: Final = 1024  # descriptors of one call that are read
INTERPRETER: Final = 0.1  # s: a wait for the interpreter's own lock has a timeout of 5 ms
FIELDS: Final = 20  # of a `stat` file that are used
DIGITS: Final = 20  # of a number of the kernel, at most
_CALLS: Final = calls.table(os.uname().machine)
_FUTEX: Final = next((str(number) for number, call in _CALLS.items() if call.kind == "futex"), "")
_VARIABLES: Final = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT")
# The signals up to 31 without SIGKILL and SIGSTOP, and the real-time signals without the two that the C library uses.
_BLOCKABLE: Final = sum(1 << number - 1 for number in range(1, 65) if number not in (9, 19, 32, 33, 34))
_LATE: Final = "TORCH_GLOO_LAZY_INIT"


class ThreadReader:
    """Reads the processes of one observation.  `before`: what an earlier one has found, by pid."""

    def __init__(self, before: Mapping[int, WaitingProcess]) -> None:
        self.mappings = Mappings()
        self._before, self._spare = before, SPARE

    def process(self, pid: int, fds: dict[int, Descriptor]) -> WaitingProcess:
        """The process with all its threads; `fds`: its open files."""
        variables = procfs.environment(pid)
        (rank, size, local_size, port), late = (
            map(partial(_number, variables), _VARIABLES),
            variables.get(_LATE, "0") != "0",
        )
        found = WaitingProcess(fds, rank=rank, size=size, local_size=local_size, store_port=port, connects_late=late)
        stat, earlier = procfs.stat(pid), dict[int, WaitingThread]()
        try:
            tids = sorted(map(int, os.listdir(f"/proc/{pid}/task")), key=lambda tid: tid != pid)
        except OSError:
            tids = []
        if stat is not None:
            limit = families.limit(procfs.words(pid)) if stat.name == families.LIMIT else None
            found = found._replace(name=stat.name, start=stat.start, parent=stat.parent, limit=limit)
            if (before := self._before.get(pid)) is not None and before.start == stat.start:
                earlier = {thread.tid: thread for thread in before.threads}
        read = [_unchanged(pid, earlier[tid]) if tid in earlier else None for tid in tids[:THREADS]]
        threads = [one or self._at_rest(pid, tid, fds) for one, tid in zip(read, tids[:THREADS], strict=True)]
        program = procfs.program(pid)
        found = found._replace(program=program, interrupts=interrupts.read(pid, program), threads=tuple(threads))
        if not same_objects.share_files([one.tid for one in threads if one.state != "Z"]):
            found = found._replace(problem="a thread of it has open files of its own")
        return found if len(tids) <= THREADS else found._replace(problem="it has too many threads")

    def _at_rest(self, pid: int, tid: int, fds: Mapping[int, Descriptor]) -> WaitingThread:
        """The thread; one that runs is read again, a few times: on a crowded machine a thread that waits again and
        again is often on its way back to its wait, like those that wait for the lock of their interpreter."""
        found = thread(pid, tid, self.mappings)
        polls, times = found.name in recognized.POLLING, 0
        while (found.running or found.state == "R") and (times < AGAIN if polls else self._spare > 0):
            begun = time.monotonic()
            time.sleep(PAUSE)
            found, times = thread(pid, tid, self.mappings), times + 1
            self._spare -= 0.0 if polls else time.monotonic() - begun
        return _with_socket_timeout(pid, found, fds)


def _unchanged(pid: int, before: WaitingThread) -> WaitingThread | None:
    """The thread as it was in an earlier observation, if it has not been on a processor since, and is in the same call:
    everything that the kernel says of it is as it was.  None: it has to be read.

    A new thread with the number of one that has ended has another time on processors, which is counted in nanoseconds.
    """
    if before.running or before.call is None or before.runs is None:
        return None
    task = f"/proc/{pid}/task/{before.tid}"
    same = _line(task) == before.line and _scheduled(task) == (before.cpu, before.runs)
    return before if same else None


def _with_socket_timeout(pid: int, found: WaitingThread, fds: Mapping[int, Descriptor]) -> WaitingThread:
    """The thread, with the timeout that its socket has: SO_RCVTIMEO and SO_SNDTIMEO are no arguments of the call."""
    if found.call is None or found.call.kind not in ("in", "out", "accept") or not found.fds:
        return found
    fd, mode = found.fds[0]
    if fd not in fds or fds[fd].kind != "socket":
        return found
    try:
        return found._replace(timed=timeouts.has_timeout(pid, fd, mode == "w"))
    except OSError:
        return found._replace(unseen=True)


def _number(variables: Mapping[str, str], name: str) -> int | None:
    value = variables.get(name, "")
    return int(value) if value.isdecimal() and len(value) < 10 else None


def thread(pid: int, tid: int, mappings: Mappings) -> WaitingThread:
    """One thread at this instant.  Nothing is stopped."""
    task = f"/proc/{pid}/task/{tid}"
    found = _call(pid, _state(task, tid), task, mappings)
    if not (tid == pid or found.timed):
        return found  # what it reads and writes is of no interest: it cannot do either before its wait has ended
    moved = [line.rpartition(b":")[2] for line in (procfs.read(f"{task}/io", 4096) or b"").splitlines()[:2]]
    return found._replace(io=sum(map(int, moved)))


def _call(pid: int, found: WaitingThread, task: str, mappings: Mappings) -> WaitingThread:
    line = _line(task)
    fields, wchan = line.split(), ""
    if found.tid == pid or found.state == "D" or fields[:1] not in ([], ["running"], [_FUTEX]):  # idle threads of pools
        wchan = (procfs.read(f"{task}/wchan", 128, at_once=True) or b"").decode("ascii", "replace")
    if not fields:
        return found._replace(line=line, wchan=wchan, problem="its system call is not visible")
    if fields[0] == "running":
        return found._replace(line=line, wchan=wchan, running=True)
    if fields[0] == "-1":  # blocked outside any call: a page of its memory is being read
        return found._replace(line=line, wchan=wchan, call=Call("a page fault", "other"))
    number, arguments = int(fields[0]), [int(field, 16) for field in fields[1:7]]
    call = _CALLS.get(number) or Call(f"system call {number}", "other")
    found = found._replace(line=line, wchan=wchan, call=call)
    try:
        return _interpret(pid, found, call, arguments, mappings)
    except (OSError, struct.error, ValueError, IndexError):
        return found._replace(problem=f"the arguments of its {call.name} cannot be read")


def _line(task: str) -> str:
    """The system call of a thread with its arguments; `running` also if its wait is over and it has no processor
    yet."""
    return (procfs.read(f"{task}/syscall", 512, at_once=True) or b"").decode("ascii", "replace").strip()


def _scheduled(task: str) -> tuple[float, int]:
    """The CPU seconds of a thread, and how often it was put on a processor; zero for a kernel without
    CONFIG_SCHED_INFO (Documentation/scheduler/sched-stats.rst of Linux)."""
    fields = (procfs.read(f"{task}/schedstat", 128, at_once=True) or b"").split()
    return (int(fields[0][:DIGITS]) / 1e9, int(fields[2])) if len(fields) > 2 else (0.0, 0)


def _state(task: str, tid: int) -> WaitingThread:
    """The state of a thread, from its `stat` and `schedstat` (proc_pid_stat(5))."""
    name, fields = procfs.fields(f"{task}/stat")
    if len(fields) < FIELDS:
        return WaitingThread(tid, None)
    cpu, runs = _scheduled(task)
    known = runs or _switches(task)
    if not runs:
        cpu = sum(int(field[:DIGITS]) for field in fields[11:13]) / TICKS
    return WaitingThread(tid, None, cpu=cpu, name=name, state=fields[0].decode(), start=int(fields[19]), runs=known)


def _switches(task: str) -> int | None:
    """The context switches of a thread, for a kernel without CONFIG_SCHED_INFO."""
    fields = procfs.status(task.removeprefix("/proc/"))
    found = [int(value) for name, value in fields.items() if name.endswith("ctxt_switches")]
    return sum(found) if found else None


def _interpret(
    pid: int, thread: WaitingThread, call: Call, arguments: Sequence[int], mappings: Mappings
) -> WaitingThread:
    """The thread with the meaning of the call's arguments; OSError, struct.error or ValueError if they cannot be
    read."""
    fd = arguments[0] & 0xFFFFFFFF
    if call.mask >= 0 and (mask := arguments[call.mask]):
        if call.name == "pselect6":  # the address of the address of the set, and its size
            (mask,) = struct.unpack("=Q", _memory(pid, mask, 8))
        thread = thread._replace(masked=mask != 0)
    if call.unit:
        thread = _timed(pid, thread, call, arguments)
    match call.kind:
        case "in" | "accept":
            return thread._replace(fds=((fd, "r"),))
        case "out":
            return thread._replace(fds=((fd, "w"),))
        case "lock" if call.name == "flock" or arguments[1] in (calls.F_SETLKW, calls.F_OFD_SETLKW):
            if call.name != "flock" and arguments[1] == calls.F_OFD_SETLKW:
                thread = thread._replace(call=call._replace(name=calls.OPEN_FILE_LOCK))
            return thread._replace(lock=locks.inode(pid, fd), fds=((fd, "w"),))
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
        case "signal" if call.name == "rt_sigtimedwait":
            (signals,) = struct.unpack("=Q", _memory(pid, arguments[0], 8))
            return thread._replace(awaited=frozenset(n for n in range(1, 65) if signals >> n - 1 & 1))
        case "futex":
            thread = thread._replace(at=arguments[0], deaf=thread.timed and _blocks_all(pid, thread.tid))
            if not arguments[1] & calls.FUTEX_PRIVATE:
                return thread._replace(shared=mappings.futex(pid, arguments[0]))
            if thread.left is not None and thread.left < INTERPRETER:
                return thread._replace(static=mappings.is_interpreters(pid, arguments[0]))
    return thread


def _timed(pid: int, thread: WaitingThread, call: Call, arguments: Sequence[int]) -> WaitingThread:
    timeout = arguments[call.time]
    if call.unit == "ms":
        milliseconds = struct.unpack("=i", struct.pack("=I", timeout & 0xFFFFFFFF))[0]
        return thread if milliseconds < 0 else thread._replace(timed=True, left=milliseconds / 1000)
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
    return thread._replace(timed=True, left=left)


def _blocks_all(pid: int, tid: int) -> bool:
    """Whether this thread blocks all signals, but for those that cannot be blocked and those of the C library."""
    blocked = int(procfs.status(f"{pid}/task/{tid}").get("SigBlk", "0"), 16)
    return blocked & _BLOCKABLE == _BLOCKABLE


def _polled(pid: int, arguments: Sequence[int]) -> tuple[tuple[int, str], ...]:
    """struct pollfd; descriptors below zero are ignored (poll(2))."""
    if arguments[1] > POLLED:
        raise ValueError("too many descriptors")
    content = _memory(pid, arguments[0], 8 * arguments[1]) if arguments[1] else b""
    return tuple((fd, directions(events)) for fd, events, _ in struct.iter_unpack("=ihh", content) if fd >= 0)


def _selected(pid: int, arguments: Sequence[int]) -> tuple[tuple[int, str], ...]:
    count = arguments[0] & 0xFFFFFFFF
    if count > POLLED:
        raise ValueError("too many descriptors")
    selected: dict[int, str] = {}
    for pointer, mode in zip(arguments[1:4], "rwr", strict=True):
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
