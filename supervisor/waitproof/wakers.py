"""What may end the wait of a thread: the threads of certain processes, or something that cannot be known.  Pure.

Doubt means that the wait may end.  `KINDS`, at the end of this file, is the table of what can end which kind of wait.
"""

import operator
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from waitproof import calls, families, handlers, recognized
from waitproof.connections import Connections
from waitproof.handled import CHILD
from waitproof.handlers import Handlers
from waitproof.interrupts import HELD
from waitproof.libraries import NOTHING, Code
from waitproof.recognized import Gives, Presumed
from waitproof.stacks import Frame, Stack
from waitproof.world import Descriptor, Socket, WaitingProcess, WaitingThread, World

# Files under /dev that signal no other descriptor.
_PLAIN: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/fuse")
_BEREAVED: Final = "waits for its children, of which one has ended"
_NESTED: Final = 5  # epoll descriptors in epoll descriptors, as in the kernel


class Wakers(NamedTuple):
    """`open_reason`: why the wait may end by something that is no thread of the job, or None: what the thread does, to
    follow its name.  `pids`: the processes of the job of which a thread may end it; `awaited`: those of them that may
    do so otherwise than by a signal or by their end.  `polls`: it runs now and then, only to wait again.

    `handler`: a signal whose handler may run in it while it waits, or 0.

    `own`: which threads of the own process may end it; those of other processes must be able to end the wait `others`.

    In a group also: `links`: the keys of the connections that leave this process tree, of which the other end may end
    it.  `listens`: so may a rank of another member that connects."""

    open_reason: str | None
    pids: frozenset[int] = frozenset()
    polls: bool = False
    links: frozenset[str] = frozenset()
    listens: bool = False
    awaited: frozenset[int] = frozenset()
    handler: int = 0
    own: Gives = Gives.ANYTHING
    others: Gives = Gives.CONNECTION

    def also(self, pids: Collection[int]) -> "Wakers":
        return self._replace(pids=self.pids.union(pids)) if pids else self


# What of a thread decides who can end its wait: all but these, and its name, which only known threads have.
_OF_ONE: Final = frozenset({"tid", "name", "cpu", "io", "start", "runs", "line", "at"})
_alike: Final = operator.itemgetter(*(n for n, name in enumerate(WaitingThread._fields) if name not in _OF_ONE))


class _Open(Exception):
    """The wait may be ended by something that is no thread of the job; the text is the reason."""


class Reader:
    """The wakers of the threads in one observation.  `stacks`: the Python stacks of the processes that were read.
    `enders`: by process, those that may end it (families.py).  `presumes_closed`: stacks that were not read would show
    what closes a wait.  `in_group`: a connection that leaves the process tree may lead to another member of the group,
    so the wait for it is not open, but has it in `links`.  `code`: whose code the threads of these processes run.
    `stepped`: the ranks of which a step has ended.  `ended`: those that have ended on purpose."""

    def __init__(
        self,
        world: World,
        stacks: Mapping[int, Stack],
        enders: Mapping[int, Collection[int]],
        presumes_closed: bool = False,
        in_group: bool = False,
        code: Code = NOTHING,
        stepped: Container[int] = (),
        ended: frozenset[int] = frozenset(),
    ) -> None:
        self._code, self._enders, self._stepped = code, enders, stepped
        self._world, self._presumes_closed, self._in_group = world, presumes_closed, in_group
        self._links, self._listens = set[str](), False  # of the thread that is being followed
        mistaken = {
            pid for pid, mapped in code.mapped.items() if any(recognized.INTERPRETERS in path for path in mapped)
        }
        read = {pid: stack.threads for pid, stack in stacks.items() if pid not in mistaken}
        self._frames = {(pid, thread.tid): thread.frames for pid, threads in read.items() for thread in threads}
        self._interpreters = {
            pid for pid, stack in stacks.items() if any(thread.gil for thread in stack.threads)
        }  # of which a thread holds the interpreter's lock
        self._python = world.processes.keys() if presumes_closed else stacks.keys()
        obeying = {pid for (pid, _), frames in self._frames.items() if recognized.obeys_ftrun(frames)}
        known = [(pid, t.tid or 0, t) for pid, stack in stacks.items() for t in stack.threads]
        mains = {(pid, tid) for pid, tid, thread in known if thread.name == "MainThread"}
        keeping = {(pid, tid) for pid, tid, thread in known if thread.gil}
        self._single, self._known, self._keeping = mains | keeping, dict[object, Wakers](), keeping
        self._handlers = Handlers(world, self.frames, mains, keeping, self._python, obeying, presumes_closed, stepped)
        self._connections = Connections(world)
        self._unknown = frozenset(pid for pid, process in world.processes.items() if process.problem)
        self._ranks = world.ranks_of_whole_job(ended)
        self._has_ranks = any(process.rank is not None for process in world.processes.values())
        self._offspring = dict[int, set[int]]()
        self._rings = set[int]()
        for pid, process in world.processes.items():
            self._offspring.setdefault(process.parent, set()).add(pid)
            if _has_unknown_ring(world, pid):
                self._rings.add(pid)

    def frames(self, pid: int, tid: int) -> tuple[Frame, ...]:
        return self._frames.get((pid, tid), ())

    def of(self, pid: int, thread: WaitingThread) -> Wakers:
        """The wakers of this thread; of thousands of threads most wait alike."""
        node = pid, thread.tid
        if thread.tid == pid or node in self._single:
            return self._of(pid, thread)
        name = thread.name if thread.name in recognized.POLLING else ""
        alike = pid, name, self._frames.get(node, ()), self._code.threads.get(node), _alike(thread)
        if (found := self._known.get(alike)) is None:
            found = self._known[alike] = self._of(pid, thread)
        return found

    def _of(self, pid: int, thread: WaitingThread) -> Wakers:
        process = self._world.processes[pid]
        presumed = self._presumed(pid, thread)
        self._links, self._listens = set(), False
        try:
            awaited, beside = self._wait(pid, process, thread, presumed)
        except _Open as reason:
            return Wakers(str(reason))
        polls = presumed is not None and (thread.timed or not self.frames(pid, thread.tid))
        ending = self._enders.get(pid, ())
        opening = self._world.processes if thread.shared in self._world.spawned else ()
        pids = frozenset({pid, *self._world.memory.get(pid, ()), *awaited, *beside, *ending, *opening})
        handler = 0 if thread.is_stopped else self._handlers.runs(pid, process, thread, presumed)
        own, others = self._gives(pid, thread)
        frames = self.frames(pid, thread.tid)
        loads = recognized.works_for_loader(self.frames(pid, pid)) and not thread.is_stopped
        if loads and (awaited <= {pid} or recognized.awaits_task(frames)):
            others = Gives.LOADER  # of its rank; whatever else runs there neither ends nor feeds it
        links = frozenset(self._links)
        return Wakers(None, pids, polls, links, self._listens, frozenset(awaited), handler, own, others)

    def _gives(self, pid: int, thread: WaitingThread) -> tuple[Gives, Gives]:
        frames = self.frames(pid, thread.tid)
        code = self._code.threads.get((pid, thread.tid))
        serves = recognized.serves_ranks(frames, thread.name)
        group = Gives.TORCH if recognized.is_in_torch(code) else Gives.GROUP
        reads = thread.call is None or thread.call.kind not in ("futex", "child")
        others = group if serves else Gives.CONNECTION if reads else Gives.CODE
        if handlers.held_by_child(thread):
            return Gives.CODE, others  # who may end the child
        if thread.is_stopped or thread.state != "S":
            return Gives.ANYTHING, others
        if kind_of(thread) == "futex" and not thread.timed and recognized.awaits_work_of_torch(frames, code):
            return Gives.CODE, others
        own = group if serves else recognized.needed(frames, code, reads)
        return own, own if own is Gives.REPORT else others

    def gives(self, pid: int, thread: WaitingThread) -> frozenset[Gives]:
        """Which waits this thread can end, in its own process or in others, if it can run."""
        if pid not in self._python or self._presumes_closed:
            return frozenset() if self._presumes_closed and thread.tid != pid else frozenset(Gives)
        node, mapped = (pid, thread.tid), self._code.mapped.get(pid, frozenset())
        main, code = thread.tid == pid, self._code.threads.get(node)
        if (
            thread.deaf
            and node not in self._frames
            and self.frames(pid, pid)  # else not all threads of the interpreter are known
            and self._ends_job(pid)
            and recognized.dumps_traces(self.frames(*node), code)
        ):
            return frozenset()
        waits = thread.call is not None and thread.call.kind in ("epoll", "poll")
        if waits and recognized.only_serves(self.frames(*node), thread.name, code):
            return recognized.SERVED
        found = recognized.given(self.frames(*node), main, code, mapped)
        writes = thread.state == "D" or kind_of(thread) in ("out", "other", "device")
        if node in self._keeping or (writes and found == {Gives.REPORT}):
            return frozenset(Gives)  # it has the interpreter's lock, or may have that of a stream that others write to
        return found

    def _ends_job(self, pid: int) -> bool:
        """Whether the end of this process is that of the job: a rank that has stepped, and nobody's trial."""
        return pid in self._stepped and not families.starters(self._world, pid)

    # --- the whole thread ---------------------------------------------------------------------------------------------

    def _wait(
        self, pid: int, process: WaitingProcess, thread: WaitingThread, presumed: Presumed | None
    ) -> tuple[set[int], set[int]]:
        """Which processes may end its wait, and which by a signal or by their end; _Open if something else may."""
        call, interrupts = thread.call, process.interrupts
        if thread.is_stopped:
            return {*self._above(pid), *self._below(pid)}, set()
        if thread.state == "Z":
            return set(), set()  # for the end of the other threads
        if thread.running or thread.state == "R":
            raise _Open("is running")
        if thread.problem or call is None or interrupts is None:
            raise _Open(f"cannot be observed: {thread.problem or 'it has ended'}")
        if thread.wchan in HELD:
            raise _Open("is frozen, or held by another process")
        if handlers.held_by_child(thread):
            return self._living_children(pid), set()
        if thread.state != "S":
            raise _Open(f"is in state {thread.state}, in {thread.wchan or 'the kernel'}")
        if pid in self._rings:
            raise _Open("may be woken by io_uring")
        if self._passes_signals(pid):
            return self._living_children(pid), set()
        woken = self._signals(pid, process, thread)
        if thread.timed and presumed is None:
            raise _Open(f"waits for a timer ({call.name})")
        pids = self._call(pid, process, thread, presumed)
        private = call.kind == "futex" and not thread.shared
        if (private or pid in pids) and (signal := self._handlers.runs(pid, process, thread, presumed)):
            raise _Open(handlers.woken(signal))
        if presumed is not None and presumed.children:
            if pid in self._world.bereaved:
                raise _Open(_BEREAVED)
            children = self._noticed_children(pid)  # those that have ended before were noticed then
            pids, woken = (pids, woken | children) if pids else (children, woken)
        return pids, woken

    def _presumed(self, pid: int, thread: WaitingThread) -> Presumed | None:
        """What is known about a thread that runs now and then."""
        if self._presumes_closed:
            return Presumed(listens=True, serves_job=True, serves_ftrun=True)
        if self._passes_signals(pid):
            return Presumed(children=True)
        if pid not in self._python or thread.call is None:
            return None
        frames = self.frames(pid, thread.tid)
        if thread.timed and thread.static and pid in self._interpreters:
            return Presumed()  # it waits for the interpreter's lock, which another thread holds, 5 ms at a time
        if thread.call.kind == "poll" and recognized.asks_store(self._code.threads.get((pid, thread.tid)), thread.left):
            return Presumed()
        return recognized.presumed(frames, thread.name, thread.left, thread.call.kind == "sleep")

    def _passes_signals(self, pid: int) -> bool:
        """Whether this is an init or a launcher that only waits for its child: it talks to nobody over a network."""
        world, process = self._world, self._world.processes[pid]
        if not recognized.passes_signals(process.program) or pid in world.zombies.values():
            return False
        sockets = (world.sockets.get(end.key) for end in process.fds.values() if end.kind == "socket")
        return bool(self._living_children(pid)) and all(found and found.kind == "unix" for found in sockets)

    def _signals(self, pid: int, process: WaitingProcess, thread: WaitingThread) -> set[int]:
        """The children, if their end may end the wait, and who may send a signal.  _Open if one from elsewhere may end
        it."""
        assert process.interrupts is not None
        if (why := self._handlers.ends(pid, process, thread)) is not None:
            raise _Open(why)
        _, enders = self._handlers.asking(pid, process)
        return enders | (self._noticed_children(pid) if CHILD in process.interrupts.caught else set())

    def _call(self, pid: int, process: WaitingProcess, thread: WaitingThread, presumed: Presumed | None) -> set[int]:
        rule = BY_CALL.get(kind_of(thread), Reader._outside)
        return rule(self, pid, thread, presumed)

    def _own_threads(self, pid: int, thread: WaitingThread, presumed: Presumed | None) -> set[int]:
        return set()

    def _timer(self, pid: int, thread: WaitingThread, presumed: Presumed | None) -> set[int]:
        call = thread.call
        if presumed is None or call is None or call.kind != "sleep":
            raise _Open(f"waits for a timer ({call.name if call else 'unknown'})")
        return set()

    def _outside(self, pid: int, thread: WaitingThread, presumed: Presumed | None) -> set[int]:
        raise _Open(f"waits in {thread.call.name if thread.call else '?'}, which something outside the job may end")

    # --- locks and children -------------------------------------------------------------------------------------------

    def _shared_lock(self, pid: int, thread: WaitingThread, presumed: Presumed | None) -> set[int]:
        world = self._world
        if thread.shared in world.outside or thread.shared in world.named:
            raise _Open("waits for a lock in memory that processes outside the job can open")
        return {*world.holders.get(thread.shared, {}), *self._unknown}

    def _child(self, pid: int, thread: WaitingThread, presumed: Presumed | None) -> set[int]:
        if thread.child:
            if thread.child not in self._living_children(pid):
                raise _Open(f"waits for process {thread.child}, which is gone")
            return {thread.child}
        if pid in self._world.zombies.values():
            raise _Open(_BEREAVED)
        if not (children := self._living_children(pid)):
            raise _Open("waits for a child that is gone")
        return children

    def _living_children(self, pid: int) -> set[int]:
        return self._offspring.get(pid, set())

    def _noticed_children(self, pid: int) -> set[int]:
        """Those whose end may end a wait that is not for it alone; nobody cares for that of one which only reports."""
        children, processes = self._living_children(pid), self._world.processes
        return {child for child in children if not recognized.reports_alone(processes[child].program)}

    def _above(self, pid: int) -> Iterator[int]:
        while (pid := self._world.processes[pid].parent) in self._world.processes:
            yield pid

    def _below(self, pid: int) -> set[int]:
        """Its children and theirs, of which one may watch it, and stop it for a while."""
        found = [pid]
        for one in found:
            found += self._noticed_children(one) - {*found}
        return {*found[1:]}

    def _handed_lock(self, pid: int, thread: WaitingThread, presumed: Presumed | None) -> set[int]:
        raise _Open("waits for a lock of an open file, which may have been handed to a process outside the job")

    def _file_lock(self, pid: int, thread: WaitingThread, presumed: Presumed | None) -> set[int]:
        blockers = self._world.blockers.get((pid, thread.lock), set())
        if not blockers or not blockers <= self._world.processes.keys():
            raise _Open("waits for a file lock that a process outside the job may hold")
        return {*blockers, *self._world.lock_files.get(thread.lock, ()), *self._unknown}

    # --- descriptors --------------------------------------------------------------------------------------------------

    def _descriptors(self, pid: int, thread: WaitingThread, presumed: Presumed | None) -> set[int]:
        if thread.unseen:
            raise _Open(f"waits in {thread.call.name if thread.call else '?'}, perhaps with a timeout")
        awaited, sharing = self._awaited(pid, thread)
        found = sharing.union(*[self._descriptor(pid, end, mode, presumed) for end, mode in awaited])
        if "handed" in self._world.doubts and presumed is None and not self._is_native(pid, thread):
            for end, _ in awaited:
                if end.kind == "pipe" or (end.kind == "socket" and self._is_inside(end)):
                    raise _Open(f"waits for {end.key}, and {self._world.doubts['handed']}")
        return found

    def _is_native(self, pid: int, thread: WaitingThread) -> bool:
        """Whether it is a thread of torch, or of another library whose descriptors no program hands to others."""
        frames, code = self.frames(pid, thread.tid), self._code.threads.get((pid, thread.tid))
        if pid not in self._python or frames:
            return False
        return recognized.serves_ranks(frames, thread.name) or recognized.carries(code, self._code.mapped.get(pid, ()))

    def _is_inside(self, end: Descriptor) -> bool:
        """Whether the job has the other end of this connection."""
        return bool(self._world.holders.get(self._connections.other_end(self._world.sockets[end.key]) or ""))

    def _awaited(self, pid: int, thread: WaitingThread) -> tuple[Iterable[tuple[Descriptor, str]], set[int]]:
        """The objects for which a call waits, each with the direction; in place of an epoll its members.  And the
        other processes that may add some: they have an epoll open, too."""
        fds = self._world.processes[pid].fds
        waiting = [(fd, mode, 0) for fd, mode in thread.fds]
        found, sharing = dict[tuple[Descriptor, str], None](), set[int]()
        for fd, mode, depth in waiting:
            end = fds.get(fd)
            if end is None:
                raise _Open("waits for a descriptor that was closed")
            if end.kind != "epoll":
                found[end, mode] = None
            elif not end.complete or depth > _NESTED:
                raise _Open("waits for an epoll descriptor whose contents are not known")
            elif end.key in self._world.outside:
                raise _Open("waits for an epoll descriptor that a process outside the job has open, too")
            else:
                sharing |= self._world.holders.get(end.key, {}).keys() - {pid}
                waiting += [(member, direction, depth + 1) for member, direction in end.members]
        return found, sharing

    def _descriptor(self, pid: int, end: Descriptor, mode: str, presumed: Presumed | None) -> set[int]:
        """The processes that may end the wait, beside its own."""
        world = self._world
        if "descriptor" in world.doubts:
            raise _Open(f"waits for {end.key}, and {world.doubts['descriptor']}")
        others = {*self._unknown, *world.receiving, *self._rings}
        return BY_OBJECT.get(end.kind, Reader._anybody)(self, pid, end, mode, presumed, others)

    def _anybody(self, pid: int, end: Descriptor, mode: str, presumed: Presumed | None, others: set[int]) -> set[int]:
        raise _Open(f"waits for {end.key}")

    def _pidfd(self, pid: int, end: Descriptor, mode: str, presumed: Presumed | None, others: set[int]) -> set[int]:
        if end.pid not in self._world.processes:
            raise _Open("waits for the end of a process that is gone, or outside the job")
        return {end.pid}

    def _pipe(self, pid: int, end: Descriptor, mode: str, presumed: Presumed | None, others: set[int]) -> set[int]:
        needed = ("w" if "r" in end.mode else "") + ("r" if "w" in end.mode else "")
        holders = {pid for pid, mode in self._world.holders.get(end.key, {}).items() if set(mode) & set(needed)}
        if not holders or set(self._world.outside.get(end.key, "")) & set(needed):
            raise _Open(f"waits for {end.key}, whose other end is outside the job")
        return holders | others

    def _eventfd(self, pid: int, end: Descriptor, mode: str, presumed: Presumed | None, others: set[int]) -> set[int]:
        holders = self._world.holders.get(end.key, {})
        opened = (e for pid in holders for e in self._world.processes[pid].fds.values())
        devices = [e.key for e in opened if e.kind == "device" and not e.key.startswith(_PLAIN)]
        if presumed is None or not presumed.listens:
            raise _Open("waits for an eventfd, which may have been handed to a process outside the job")
        if devices or "eventfd" in self._world.doubts or end.key in self._world.outside:
            raise _Open("waits for an eventfd that something outside the job may signal")
        return {*holders, *others}

    def _socket(self, pid: int, end: Descriptor, mode: str, presumed: Presumed | None, others: set[int]) -> set[int]:
        found = self._world.sockets.get(end.key)
        if found is None:
            raise _Open("waits for a socket of an unknown kind")
        if found.listens:
            if (
                presumed is not None
                and presumed.listens
                and self._ranks
                and not self._is_other_store(pid, found, presumed)
            ):
                return self._ranks | others
            own = presumed is not None and (
                presumed.serves_job
                or (presumed.manages and recognized.is_managers_own(found.local, self.frames(pid, pid)))
            )
            if own and presumed is not None and not self._connections.on_this_machine(pid):
                return (self._heirs(pid) if presumed.serves_job else self._world.processes.keys()) | others
            if presumed is not None and presumed.listens and self._are_connected(pid):
                return self._world.processes.keys() | others
            if presumed is not None and presumed.listens and self._in_group and self._has_ranks:
                self._listens = True
                return others
            raise _Open(f"waits for a connection ({found.description})")
        if found.kind == "unix" and presumed is not None and presumed.serves_ftrun:
            return others
        if end.key in self._world.outside:
            raise _Open(f"waits for {found.text}, which a process outside the job may shut down")
        others |= self._world.holders.get(end.key, {}).keys()  # each of them may do so (shutdown(2))
        key = self._connections.other_end(found)
        holders = self._world.holders.get(key or "", {})
        where = found.remote or found.description
        if found.expires or self._world.sockets.get(key or "", found).expires:
            raise _Open(f"waits for {where}, whose connection has a timeout")
        if self._in_group and not holders and found.kind == "tcp" and found.state == "ESTABLISHED":
            if "r" in mode and found.queued > found.unsent:
                raise _Open(f"waits for data from {where}, which has arrived")
            self._links.add(end.key)
            return others
        if not found.stream or found.state != "ESTABLISHED" or key is None or not holders:
            what = "a reply from" if "r" in mode else "room in the connection to"
            raise _Open(f"waits for {what} {where}, which is outside the job")
        if key in self._world.outside:
            raise _Open(f"waits for {where}, which a process outside the job has open")
        other = self._world.sockets.get(key, Socket(""))
        if "r" in mode and other.unsent and not other.listens:
            raise _Open(f"waits for data from {where}, which is on its way")
        return holders.keys() | others

    # --- the job ------------------------------------------------------------------------------------------------------

    def _heirs(self, pid: int) -> set[int]:
        """The processes that may have inherited the key of this one: those that run the same program, like all that
        multiprocessing starts."""
        processes = self._world.processes
        return {one for one, process in processes.items() if process.program in ("", processes[pid].program)}

    def _is_other_store(self, pid: int, listening: Socket, presumed: Presumed) -> bool:
        """Whether a rank serves a store of torch there with which its job has not begun: for a process group with a
        server of a language model, for example."""
        expected = self._world.processes[pid].store_port if pid in self._ranks else None
        return presumed.stores and expected is not None and listening.local.rpartition(":")[2] != str(expected)

    def _are_connected(self, pid: int) -> bool:
        """Whether all ranks of the process group of this process are connected with it, and in this process tree,
        although they have no RANK in their environments.

        A process group is complete when one of its ranks is in a collective: each rank has a connection to every other
        one, or at least to the store, which one of them serves.  A rank elsewhere would be seen by its connection."""
        peers = self._connections.peers(pid)
        if peers is None or recognized.joins(self.frames(pid, pid)):
            return False
        return any(recognized.collective(self.frames(peer, peer)) is not None for peer in (pid, *peers))


# --- the table --------------------------------------------------------------------------------------------------------

CallRule = Callable[[Reader, int, WaitingThread, Presumed | None], set[int]]
ObjectRule = Callable[[Reader, int, Descriptor, str, Presumed | None, set[int]], set[int]]


class Kind(NamedTuple):
    """A kind of wait.  `ends`: who can end it; `why`: who cannot, or the reason.  docs/waitproof.md has the first two.

    `calls`: the rule by the kind of the system call (`kind_of`), `objects`: by the kind of what a descriptor stands
    for.  `own`: which threads of the own process can end it, where that is not by the call (recognized.py)."""

    waits: str
    ends: str
    why: str
    calls: Mapping[str, CallRule] = {}
    objects: Mapping[str, ObjectRule] = {}
    own: tuple[Gives, ...] = ()


_DESCRIPTORS: Final = dict.fromkeys(("in", "out", "accept", "poll", "select", "epoll"), Reader._descriptors)
KINDS: Final = (
    Kind(
        "a lock, a condition or an event of its own process",
        "the other threads of the process; a lock of Python only those that may run Python",
        "private memory has no other reader (futex(2)); threads of native libraries never take a lock of Python",
        {"futex": Reader._own_threads},
        own=(Gives.CODE, Gives.ANYTHING, Gives.COMPILER),
    ),
    Kind(
        "a lock in shared memory",
        "the processes that map it; any of the job, if multiprocessing has named it; anybody, if it has another name "
        "or a descriptor (memfd)",
        "that of multiprocessing and torch is sent to processes of the job alone",
        {"shared futex": Reader._shared_lock},
    ),
    Kind(
        "a pipe, a connection",
        "the processes that have an end of it open; anybody, if one of them is outside the job",
        "only an end that is open can be written to, closed or shut down (pipe(7), unix(7), tcp(7))",
        _DESCRIPTORS,
        {"pipe": Reader._pipe, "socket": Reader._socket, "epoll": Reader._anybody},
        (Gives.DATA,),
    ),
    Kind(
        "an eventfd",
        "anybody: it may have been handed on. Not those of the store of torch",
        "no table of the kernel shows who was handed one and has sent it on (eventfd(2))",
        objects={"eventfd": Reader._eventfd},
    ),
    Kind(
        "the end of a child",
        "that child, and who may end it",
        "only its end wakes the one that waits (wait(2), pidfd_open(2))",
        {"child": Reader._child},
        {"pidfd": Reader._pidfd},
    ),
    Kind(
        "a file lock of `fcntl`",
        "the processes that hold it or have the file open",
        "it belongs to a process, and any close of the file releases it (fcntl(2))",
        {"lock": Reader._file_lock},
    ),
    Kind(
        "a lock of an open file (`flock`, `F_OFD_SETLKW`)",
        "anybody: the open file may have been handed on",
        "it belongs to the open file, not to a process (flock(2))",
        {"handed lock": Reader._handed_lock},
    ),
    Kind(
        "SIGCONT",
        "the processes above and below it; other ranks without an accelerator",
        "nobody else in a job continues what was stopped",
    ),
    Kind(
        "a signal",
        "anybody: who waits for one does so on purpose. A handled signal, as below",
        "any process may send one (kill(2)); handlers.py decides before this table",
        {"signal": Reader._own_threads},
    ),
    Kind(
        "a collective, a backward pass",
        "the other ranks, and the threads of torch and of the libraries of collectives; its timeout, if that ends "
        "within 20 minutes, since you gave it and may catch it (torchft)",
        "the default timeout of a process group only raises an error (distributed_c10d.py)",
        own=(Gives.GROUP, Gives.TORCH),
    ),
    Kind(
        "what a library of telemetry waits for, such as the end of an upload",
        "any thread, also those of telemetry",
        "only its own waits are for its own threads (`Run.finish` of wandb)",
        own=(Gives.REPORT,),
    ),
    Kind(
        "a batch of a DataLoader",
        "its workers, and the threads that torch runs for it",
        "its timeout of 5 s only checks that the workers live (dataloader.py)",
        own=(Gives.LOADER,),
    ),
    Kind(
        "a timer, a device, a file, a terminal, a socket that listens, anything outside the job",
        "anybody",
        "nothing that the kernel shows of the job tells when",
        {"sleep": Reader._timer, "restart": Reader._timer, "device": Reader._outside, "other": Reader._outside},
        dict.fromkeys(("file", "terminal", "device", "timerfd", "signalfd", "io_uring", "other"), Reader._anybody),
    ),
)
BY_CALL: Final = {call: rule for kind in KINDS for call, rule in kind.calls.items()}
BY_OBJECT: Final = {name: rule for kind in KINDS for name, rule in kind.objects.items()}


def _has_unknown_ring(world: World, pid: int) -> bool:
    """Whether the process has a ring of io_uring that is not libuv's, of a thread of its own or of a process that has
    forked it, as a worker of a DataLoader has that of torch's store."""
    mapped, opened = _rings(world, pid)
    for above in world.line(pid)[1:]:
        known, numbers = _rings(world, above)
        if max(len(known), len(numbers)) <= _users_of_rings(world, above):
            mapped, opened = mapped - known, opened - numbers
    return max(len(mapped), len(opened)) > _users_of_rings(world, pid)


def _rings(world: World, pid: int) -> tuple[frozenset[bytes], frozenset[int]]:
    """Those that it has mapped, and the numbers of those that it has open."""
    opened = frozenset(number for number, end in world.processes[pid].fds.items() if end.kind == "io_uring")
    return world.rings.get(pid, frozenset()), opened


def _users_of_rings(world: World, pid: int) -> int:
    return sum(thread.name in recognized.RINGS for thread in world.processes[pid].threads)


def kind_of(thread: WaitingThread) -> str:
    """The key of its call in the table."""
    call = thread.call
    if call is None or call.name == "sendfile":  # from a file, which may be a device
        return "other"
    if call.kind == "futex":
        return "shared futex" if thread.shared else "futex"
    return "handed lock" if call.kind == "lock" and call.name in calls.HANDED_OVER else call.kind
