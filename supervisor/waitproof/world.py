"""What is known about the waits of the job at one instant: values that the readers of /proc fill (waits.py, files.py,
sockets.py), from which proof.py proves what can never end.  Pure.
"""

from typing import Any, Final, NamedTuple

from waitproof.calls import Call

GONE: Final = "it has ended"
LATE: Final = "the answer did not arrive in time"
# Prefixes of the files that a process which uses an accelerator has open.
ACCELERATORS: Final = ("/dev/nvidia", "/dev/dxg", "/dev/davinci", "/dev/kfd", "/dev/accel", "/dev/dri/render")

ThreadId = tuple[int, int]  # pid and tid
# The kinds of `Descriptor`.
OBJECTS: Final = frozenset(
    {"pipe", "socket", "file", "terminal", "device", "eventfd", "timerfd", "pidfd", "signalfd", "epoll", "io_uring"}
    | {"other"}
)


class Descriptor(NamedTuple):
    """The object behind a descriptor.  `key` identifies it across processes; `mode` contains `r`, `w` or both."""

    kind: str  # one of OBJECTS
    key: str
    mode: str = "rw"
    pid: int = 0  # the target of a pidfd
    members: tuple[tuple[int, str], ...] = ()  # the descriptors in an epoll
    inodes: tuple[int, ...] = ()  # of the members; 0: not known
    complete: bool = True  # whether `members` has all, and each number still stands for the object that was added

    @property
    def is_accelerator(self) -> bool:
        return self.kind == "device" and self.key.startswith(ACCELERATORS)


class Socket(NamedTuple):
    """`kind`: `tcp`, `udp` or `unix`.  `local`, `remote`: `host:port`, or the name of a Unix socket.  `state`: its
    name in the kernel.

    `peer`: the key of the other end of a Unix socket, empty if it has none.  `moved`: bytes that TCP has received, or
    sent and had acknowledged; None: not known.  `queued`: bytes that wait to be sent or read; `unsent`: those that wait
    to be sent, or to be acknowledged.  `stream`: only the other end can send to it.  `expires`: it ends by itself if
    they are not acknowledged in time."""

    kind: str
    local: str = ""
    remote: str = ""
    state: str = ""
    peer: str = ""
    moved: int | None = None
    queued: int = 0
    unsent: int = 0
    stream: bool = True
    expires: bool = False

    @property
    def listens(self) -> bool:
        return self.kind != "udp" and self.state == "LISTEN"

    @property
    def text(self) -> str:
        return f"{self.kind} {self.local} -> {self.remote}" if self.kind != "unix" else "unix socket"

    @property
    def description(self) -> str:
        """The kind of the socket, with the state of a connection or the name of a Unix socket."""
        return f"unix {self.local}" if self.kind == "unix" else f"{self.text} {self.state}"


class WaitingThread(NamedTuple):
    """One thread.  `call` is None where it is unknown; `running`: the thread is in no call.

    `fds`: the descriptors that it waits for, each with `r`, `w` or both.  `timed`: the call has a timeout; `left`:
    the seconds until that ends, when the thread was read, if known.  `shared`: the mapping that holds the futex, if it
    is shared.
    `lock`: the inode that it waits to lock.  `child`: the pid that it waits for; 0: any child.

    `start`: in clock ticks since boot; together with `tid` it identifies a thread.  `runs`: how often it was put on a
    processor so far; None: not known.  `line`: the call with all its arguments and the stack pointer, as the kernel
    prints it.  `at`: the address of a futex; `static`: it is one of the Python interpreter's own variables.  `masked`:
    signals that are blocked otherwise may end the call.  `unseen`: whether the call has a timeout is not known.
    `awaited`: the signals of which it waits for one, by sigwait(3) and its like.  `deaf`: it has a timeout and blocks
    all signals, as no thread of a program in Python does.
    """

    tid: int
    call: Call | None
    problem: str = ""
    running: bool = False
    fds: tuple[tuple[int, str], ...] = ()
    timed: bool = False
    left: float | None = None
    shared: str = ""
    lock: str = ""
    child: int = 0
    cpu: float = 0.0  # seconds so far
    io: int = 0  # bytes read and written so far
    name: str = ""
    state: str = ""
    start: int = 0
    runs: int | None = None
    line: str = ""
    wchan: str = ""
    at: int = 0
    static: bool = False
    masked: bool = False
    unseen: bool = False
    awaited: frozenset[int] = frozenset()
    deaf: bool = False

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped by a signal.  A debugger's stop has another state, `t`."""
        return self.state == "T"


class Interrupts(NamedTuple):
    """What may end the waits of a process beside the threads of the job.  `caught`: the signals that it handles,
    without the SIGINT of programs that always handle it.  `tracer`: the pid of its debugger, or 0.  `timers`: it has
    POSIX timers."""

    caught: frozenset[int] = frozenset()
    tracer: int = 0
    timers: bool = False


class WaitingProcess(NamedTuple):
    """One process.  `threads`: the main thread first.  `problem`: why they are not known.  `rank`, `size`,
    `local_size`, `store_port`: RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and MASTER_PORT in its initial environment, None
    where they are not set.
    `connects_late`: its environment has gloo connect ranks only when they first need each other.  `program`: the
    path of its file.  `limit`: seconds that `timeout` gives its command."""

    fds: dict[int, Descriptor]
    problem: str = ""
    threads: tuple[WaitingThread, ...] = ()
    rank: int | None = None
    size: int | None = None
    local_size: int | None = None
    store_port: int | None = None
    name: str = ""
    start: int = 0
    parent: int = 0
    interrupts: Interrupts | None = None  # None: not known
    connects_late: bool = False
    program: str = ""
    limit: float | None = None  # None: it is another program, or that is not known


class World(NamedTuple):
    """One observation of all waits.

    `sockets`, `holders`, `outside`: by the key of a `Descriptor`.  `holders`: the pids of the job that have it open,
    and the mode; `outside`: the mode in which visible processes outside the job have it open.  `locks`: by inode, the
    pids that hold a file lock.  `group`: the hosts of the group's members.

    `blockers`: by the pid that waits for a file lock and the inode, the pids that block it.  `lock_files`: by inode,
    the pids of the job that have an open file with a lock on it.  `named`: the shared mappings that have a name, so
    that any program can open them; `spawned`: those that only processes of the job can.  `zombies`: by pid and start,
    the processes that have ended and were not awaited, with their parents; `bereaved`: the pids of which a child has
    ended since an earlier observation (short_lived.py).  `receiving`: the pids to which descriptors are being passed.
    `doubts`: why not all that may signal an object of this kind is known: `descriptor` for any, or `eventfd`; `handed`:
    to whom a pipe or a connection may have been handed that is not visible.
    `memory`: by pid, the other processes that run in the same memory.  `rings`: by pid, the mapped rings of
    io_uring.
    """

    at: float
    processes: dict[int, WaitingProcess]
    sockets: dict[str, Socket]
    holders: dict[str, dict[int, str]]
    outside: dict[str, str]
    locks: dict[str, set[int]]
    group: frozenset[str]
    blockers: dict[tuple[int, str], set[int]]
    lock_files: dict[str, set[int]]
    named: set[str]
    spawned: set[str]
    zombies: dict[tuple[int, int], int]
    bereaved: set[int]
    receiving: set[int]
    doubts: dict[str, str]
    memory: dict[int, frozenset[int]]
    rings: dict[int, frozenset[bytes]]

    def copy(self) -> "World":
        """A copy of what has arrived so far, which `observe` in another thread does not change any more."""
        copied: dict[str, Any] = {
            n: value.copy() for n, value in self._asdict().items() if isinstance(value, dict | set)
        }
        copied["holders"] = {key: holders.copy() for key, holders in copied["holders"].items()}
        return self._replace(**copied)

    @property
    def uses_accelerator(self) -> bool:
        """Whether a process of the job has an accelerator open, as far as that is visible."""
        return any(end.is_accelerator for process in self.processes.values() for end in process.fds.values())

    def line(self, pid: int) -> list[int]:
        """This process and those above it in the job, the lowest first."""
        found = list[int]()
        while pid in self.processes and pid not in found:
            found.append(pid)
            pid = self.processes[pid].parent
        return found

    def ranks_of_whole_job(self, ended: frozenset[int] = frozenset()) -> set[int]:
        """The processes of all ranks; empty if some ranks run elsewhere, or that is not known.  `ended`: those that
        ended on purpose.  Where ftrun has started the ranks, nobody starts these again."""
        ranks = {pid: process for pid, process in self.processes.items() if process.rank is not None}
        sizes = {(process.size, process.local_size) for process in ranks.values()}
        if len(sizes) != 1:
            return set()
        ((size, local),) = sizes
        known = {process.rank for process in ranks.values()}
        if all(self.line(pid)[-1] in ranks for pid in ranks):
            known |= ended
        return set(ranks) if size == local == len(known) else set()


def host(address: str) -> str:
    return address.rpartition(":")[0]


def is_accepted(key: str) -> bool:
    return key.startswith("socket:")
