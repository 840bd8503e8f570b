"""Sentences about waits: what waits for what, and where in the program.  Pure."""

import functools
import os
from collections.abc import Iterable, Mapping
from typing import Final

from waitproof import recognized, text
from waitproof.calls import Call
from waitproof.connections import Connections
from waitproof.handlers import held_by_child
from waitproof.stacks import Frame, Stack, outermost, own_frame
from waitproof.wakers import Wakers
from waitproof.world import Descriptor, Socket, ThreadId, WaitingThread, World

MOST: Final = 1024  # descriptors of one wait that are followed
NAMED: Final = 2  # side threads, or processes of a cycle, that a sentence names
OUTSIDE: Final = "which is outside the job"
STOPPED: Final = {"T": "is stopped by SIGSTOP", "t": "is stopped by a debugger"}
UNKNOWN: Final = "something unknown"
COMPUTES: Final = "computes"
SLEEPS: Final = "sleeps"
# What a thread waits for in functions of libraries: file, functions, the object.  The first row decides of which a
# function is on the stack, before the first frame of the program itself.
_OBJECTS: Final = (
    ("torch/utils/data/dataloader.py", {"_try_get_data", "_get_data"}, "a batch of its DataLoader"),
    ("torchdata/stateful_dataloader/stateful_dataloader.py", {"_try_get_data"}, "a batch of its DataLoader"),
    ("torch/distributed/elastic/agent/server/api.py", {"_invoke_run"}, "the ranks that it has started"),
    ("torch/distributed/elastic/multiprocessing/api.py", {"wait"}, "the ranks that it has started"),
    ("torch/multiprocessing/spawn.py", {"join"}, "the processes that it has started"),
    ("multiprocessing/managers.py", {"serve_forever"}, "what its Manager is asked for"),
    ("queue.py", {"get"}, "an item in a queue"),
    ("queue.py", {"put"}, "room in a queue"),
    ("queue.py", {"join"}, "the end of a queue's work"),
    ("multiprocessing/queues.py", {"get"}, "an item in a queue of processes"),
    ("multiprocessing/queues.py", {"put"}, "room in a queue of processes"),
    ("multiprocessing/queues.py", {"join"}, "the end of the work of a queue of processes"),
    ("multiprocessing/synchronize.py", {"wait", "wait_for"}, "a condition of processes"),
    ("multiprocessing/pool.py", {"get", "wait", "next"}, "a result of a pool"),
    ("threading.py", {"join", "_wait_for_tstate_lock", "_shutdown"}, "the end of a thread"),
    ("concurrent/futures/_base.py", {"result", "exception", "wait", "as_completed"}, "the result of a future"),
    ("threading.py", {"wait", "wait_for"}, "a condition"),
)


class Describer:
    """`ranks`: the ranks by pid.  `wakers`: of all threads."""

    def __init__(
        self, world: World, stacks: Mapping[int, Stack], ranks: Mapping[int, int], wakers: Mapping[ThreadId, Wakers]
    ) -> None:
        self._world, self._ranks, self._wakers = world, ranks, wakers
        known = {(pid, thread.tid or 0): thread for pid, stack in stacks.items() for thread in stack.threads}
        self._python = {node: thread for node, thread in known.items() if node in wakers}
        self._threads = {(pid, t.tid): t for pid, process in world.processes.items() for t in process.threads}
        self._connections = Connections(world)

    # --- names ------------------------------------------------------------------------------------------------------

    def who(self, pid: int) -> str:
        """`rank 1`, or `process 812 (python)`."""
        if pid in self._ranks:
            return text.rank(self._ranks[pid])
        process = self._world.processes.get(pid)
        return f"process {pid} ({process.name})" if process and process.name else f"process {pid}"

    def thread(self, pid: int, tid: int) -> str:
        """`main thread`, or the name of the thread in Python, or else in the kernel."""
        if pid == tid:
            return "main thread"
        python, native = self._python.get((pid, tid)), self._threads.get((pid, tid))
        return f"thread {((python.name if python else '') or (native.name if native else '') or tid)!r}"

    def place(self, pid: int, tid: int) -> str:
        """`train.py:12`: the innermost line of the program's own code; empty if there is no Python."""
        frame = self._own(pid, tid)
        return f"{os.path.basename(frame.file)}:{frame.line}" if frame else ""

    def wait(self, pid: int) -> tuple[str, str, bool]:
        """What the main thread of a process waits for, the name of its collective (or of a backward pass) or empty,
        whether it is stopped."""
        return self.waits(pid, pid), self._calls(pid), self._is_stopped(pid)

    def launches(self, pid: int) -> bool:
        """Whether this process is a launcher of ranks, which waits for their ends."""
        return recognized.launches(self._frames(pid, pid))

    def location(self, pid: int, tid: int) -> str:
        """`train.py:12 step, in threading.py:331 wait`; empty if there is no Python."""
        thread = self._python.get((pid, tid))
        return thread.location if thread and thread.frames else ""

    def awaited(self, pid: int, tid: int) -> set[int]:
        """The other processes for which this thread waits.  In a collective these are the other ranks with which its
        process is connected, or else all that are known."""
        if not self._calls(pid, tid):
            return self._others(pid, [(pid, tid)])
        connected = self._others(pid, [node for node in self._wakers if node[0] == pid])
        return connected & self._ranks.keys() or connected or self._ranks.keys() - {pid}

    def may_end_itself(self, pid: int, tid: int) -> bool:
        """Whether another thread of its own process may end the wait of this one."""
        thread, found = self._threads[pid, tid], self._wakers[pid, tid]
        inside = thread.call is not None and thread.call.kind == "futex" and not self._calls(pid, tid)
        return inside or pid in found.awaited

    def fails(self, pid: int, tid: int) -> bool:
        """Whether this thread is itself the fault, and not only waits for another thread: it is stopped, or stuck."""
        thread = self._threads[pid, tid]
        return thread.state in STOPPED or (thread.state == "D" and not held_by_child(thread))

    def _own(self, pid: int, tid: int) -> Frame | None:
        return _own(self._frames(pid, tid))

    def _frames(self, pid: int, tid: int) -> tuple[Frame, ...]:
        thread = self._python.get((pid, tid))
        return thread.frames if thread else ()

    def waits(self, pid: int, tid: int) -> str:
        """`waits for a lock at train.py:12`."""
        does, thread = self.does(pid, tid), self._python.get((pid, tid))
        keeps = thread is not None and thread.gil and does != COMPUTES
        return self._at(does, pid, tid) + (" and keeps the lock of the interpreter" if keeps else "")

    def _at(self, does: str, pid: int, tid: int) -> str:
        """The predicate with the place of this thread."""
        if not (place := self.place(pid, tid)):
            return does
        does = does.removesuffix(f" for {UNKNOWN}")
        return f"{does}{',' if ', ' in does else ''} at {place}"

    # --- what one thread does -----------------------------------------------------------------------------------------

    def does(self, pid: int, tid: int) -> str:
        """`waits for a lock`, `computes`, `is stopped by SIGSTOP`."""
        thread, frames = self._threads.get((pid, tid)), self._frames(pid, tid)
        if thread is None:
            return f"waits for {UNKNOWN}"
        if thread.state in STOPPED:
            return STOPPED[thread.state]
        if call := recognized.common_call(frames):
            return f"waits in {call}"
        if thread.running or thread.state == "R":
            return COMPUTES
        if held_by_child(thread):
            return "waits for a child that shares its memory"
        if thread.state == "D":
            return f"is stuck in the kernel in {thread.wchan or 'an unknown function'}"
        if thread.call is None:
            return f"waits for {UNKNOWN}"
        if recognized.awaits_task_of_pool(frames):
            return "waits for its next task"
        if recognized.runs_event_loop(frames):
            return "waits for what its tasks of asyncio await"
        if found := _object(frames):
            return f"waits for {found}"
        return self._in_call(pid, thread, thread.call)

    def _in_call(self, pid: int, thread: WaitingThread, call: Call) -> str:
        match call.kind:
            case "sleep":
                return SLEEPS
            case "futex":
                return "waits for a lock in shared memory" if thread.shared else "waits for a lock"
            case "child":
                return f"waits for the end of {f'process {thread.child}' if thread.child else 'a child'}"
            case "lock":
                holders = sorted(self._world.locks.get(thread.lock, set()) - {pid, -1})
                return f"waits for a file lock{f' that process {holders[0]} holds' if holders else ''}"
            case "signal" | "restart":
                return f"waits for a {'signal' if call.kind == 'signal' else 'timer'}"
            case "in" | "out" | "accept" | "poll" | "select" | "epoll":
                return f"waits for {self._descriptors(pid, thread)}"
        return f"waits in the system call {call.name}"

    def _descriptors(self, pid: int, thread: WaitingThread) -> str:
        opened = self._world.processes[pid].fds
        ends = [(opened.get(fd), mode) for fd, mode in thread.fds]
        for end, _ in ends:  # the descriptors in an epoll are appended, and followed in turn
            if end is not None and end.kind == "epoll" and len(ends) < MOST:
                ends += [(opened.get(fd), mode) for fd, mode in end.members]
        names = dict.fromkeys(self._end(pid, end, mode) for end, mode in ends if end and end.kind != "epoll")
        if not names:
            return "a timer" if thread.timed else "a signal"
        first = next(iter(names))
        return first if len(names) == 1 else f"one of {len(names)} descriptors, among them {first}"

    def _end(self, pid: int, end: Descriptor, mode: str) -> str:
        world, read = self._world, "r" in mode
        match end.kind:
            case "socket":
                found = world.sockets.get(end.key)
                return "a socket" if found is None else self._socket(pid, found, read)
            case "pipe":
                needed = "w" if read else "r"
                holders = {p for p, held in world.holders.get(end.key, {}).items() if needed in held}
                nobody = f", {OUTSIDE}" if needed in world.outside.get(end.key, "") else "; nobody has its other end"
                return ("data from a pipe" if read else "room in a pipe") + _held(holders, pid, nobody)
            case "pidfd":
                return f"the end of process {end.pid}"
        names = {"terminal": "input from the terminal", "eventfd": "an eventfd", "timerfd": "a timer"}
        return names.get(end.kind) or ("a signal" if end.kind == "signalfd" else f"the {end.kind} {end.key}")

    def _socket(self, pid: int, found: Socket, read: bool) -> str:
        if found.listens:
            return f"a connection on {found.local}"
        holders = set(self._world.holders.get(self._connections.other_end(found) or "", {}))
        if found.kind == "unix":
            what = f"{'a reply' if read else 'room'} on a Unix socket"
        elif found.state.startswith("SYN"):
            what = f"the connection to {found.remote}"
        else:
            what = f"{'a reply from' if read else 'room in the connection to'} {found.remote or found.local}"
        return what + _held(holders, pid, f", {OUTSIDE}")

    # --- open waits ---------------------------------------------------------------------------------------------------

    def what_it_waits_for(self, pid: int, reasons: Mapping[ThreadId, ThreadId | None]) -> str:
        """Why the main thread of this process may go on: `reasons` has for each thread the one that may wake it."""
        node: ThreadId = (pid, pid)
        found = self._wakers.get(node)
        if found is None:
            process = self._world.processes.get(pid)
            return f"the threads of {self.who(pid)} are not known: {process.problem if process else 'it is gone'}"
        if (reason := found.open_reason) is not None:
            if self.does(pid, pid) == COMPUTES:
                return f"{self.who(pid)} {self.waits(pid, pid)}"
            if reason.startswith(("waits ", "is ")):
                return f"{self.who(pid)} {self._at(reason, pid, pid)}"
            return f"{self.who(pid)} {self.waits(pid, pid)}, and {reason}"
        text = f"{self.who(pid)} {self.waits(pid, pid)}"
        # A thread that only another member of the group can wake is in none of the `reasons`.
        return f"{text}; {self.may_wait_for(node, reasons)}" if node in reasons else text

    def may_wait_for(self, node: ThreadId, reasons: Mapping[ThreadId, ThreadId | None]) -> str:
        """`it may wait for` the thread that may wake this one, and why that may run."""
        pid, seen = node[0], {node}
        while (following := reasons.get(node)) is not None and following not in seen:
            node = following
            seen.add(node)
        last = self._wakers.get(node)
        if node[1] == 0 or last is None:
            problem = self._world.processes[node[0]].problem or "it is gone"
            return f"it may wait for {self.who(node[0])}, of which nothing is known: {problem}"
        thread = self.thread(*node)
        other = thread if node[0] == pid else f"{self.who(node[0])}, {thread}"
        return f"it may wait for {other}, which {last.open_reason}"

    def explain(self, pid: int, reasons: Mapping[ThreadId, ThreadId | None]) -> tuple[str, tuple[int, ...]]:
        """What the main thread of this process waits for in the end, and the pids from it to the last one that is
        waited for."""
        path = [pid]
        while (found := self._wakers.get((path[-1], path[-1]))) is not None and found.open_reason is None:
            following = self._next(path[-1], self._ranks)
            if following is None or following in path:
                break
            path.append(following)
        if not self._is_stopped(path[-1]):  # which a person has to know first, whatever else there is
            # In a collective it is the other ranks that matter, whatever side threads may do.
            may_run = (n for n, one in enumerate(path) if (one, one) in reasons and not self._calls(one))
            path = path[: next(may_run, len(path)) + 1]
        last = path[-1]
        before = f"{self.who(pid)} {self.waits(pid, pid)}; " if last != pid else ""
        node: ThreadId | None = (last, last)
        if self._is_stopped(last):
            waiting = f", and {self.who(pid)} {self._because(pid)}" if last != pid else ""
            return f"{self.who(last)} {self.waits(last, last)}{waiting}", tuple(path)
        if self.does(last, last) == SLEEPS:
            location = self.location(last, last)
            text = f"{self.who(last)} {SLEEPS}" + (f" at {location}" if location else "")
        elif node not in self._wakers or node in reasons:
            text = self.what_it_waits_for(last, reasons)
            while node is not None and (node := reasons.get(node)) is not None and node[0] not in path:
                path.append(node[0])
        elif elsewhere := self._elsewhere(last):
            text = f"{self.who(last)} waits for other ranks, {elsewhere}"
        else:
            turn = self._next(last, self._ranks)
            text = f"{self.who(last)} {self.waits(last, last)}" + (f", for {self.who(turn)} in turn" if turn else "")
        return before + text, tuple(path)

    def _calls(self, pid: int, tid: int | None = None) -> str:
        """The collective, or the backward pass, in which a thread waits, by default the main thread; or empty."""
        return recognized.common_call(self._frames(pid, pid if tid is None else tid))

    def _elsewhere(self, pid: int) -> str | None:
        """Why ranks outside this process tree may have to enter the collective in which this one waits."""
        process = self._world.processes.get(pid)
        if process is None or self._is_stopped(pid) or not self._calls(pid):
            return None
        ranks = [pid, *sorted(self._ranks.keys() - {pid})]
        return self._connections.elsewhere(process, ranks, self.who)

    # --- deadlocks ----------------------------------------------------------------------------------------------------

    def deadlock(self, pid: int, group: Iterable[ThreadId]) -> tuple[int, str]:
        """The process in which the deadlock is, and the sentence that says what waits for what, beginning with the
        wait of this process.  `group`: all threads on which that depends."""
        if (text := self._mismatch(group)) is not None:
            return pid, text
        path = [pid]
        while (following := self._next(path[-1])) is not None:
            if following in path and (following := self._beyond(path[path.index(following) :], following)) in path:
                break
            path.append(following)
        root = path[-1]
        before = [f"{self.who(one)} {self._because(one)}" for one in path[-2::-1][:NAMED]]
        if self._is_stopped(root):
            text = f"{self.who(root)} is stopped by SIGSTOP"
            return root, ", and ".join([text, *before])
        if following is not None and following != root:
            cycle = path[path.index(following) :]
            waits = [f"{self._exact(one)} {self.waits(one, one)}" for one in cycle[: NAMED + 1]]
            root = next((one for one in reversed(cycle) if not recognized.manages(self._frames(one, one))), root)
            others = path[: path.index(following)]
            before = [f"{self.who(one)} {self._because(one)}" for one in others[::-1][:NAMED]]
            return root, "; ".join([f"deadlock: {', and '.join(waits)}, each of which needs the next", *before])
        text = f"deadlock: {self._exact(root)} {self.waits(root, root)}, which only its own threads can end"
        if sides := [node for node in self._sides(root) if node[1] != root]:
            text += ": " + ", ".join(f"{self.thread(*node)} {self.waits(*node)}" for node in sides[:NAMED])
        return root, "; ".join([text, *before])

    def _exact(self, pid: int) -> str:
        rank = self._ranks.get(pid, -2) >= -1
        return f"{self.who(pid)} (process {pid}, main thread)" if rank else f"{self.who(pid)}, main thread,"

    def _because(self, pid: int) -> str:
        """How a process waits for another process, which was named just before."""
        frames, place = self._frames(pid, pid), self.place(pid, pid)
        if call := recognized.common_call(frames):
            return f"waits for it in {call}{f' at {place}' if place else ''}"
        return self.waits(pid, pid)

    def _mismatch(self, group: Iterable[ThreadId]) -> str | None:
        """A sentence about ranks that wait in different collectives; None if there are none."""
        waits: dict[str, tuple[int, str]] = {}
        for pid in sorted({pid for pid, _ in group if pid in self._ranks}, key=lambda pid: self._ranks[pid]):
            call = recognized.common_call(self._frames(pid, pid))
            if not call:
                return None
            waits.setdefault(call, (pid, self.place(pid, pid)))
        if len(waits) < 2:
            return None
        parts = [
            f"{self.who(pid)} {'waits ' * (not n)}in {name} at {place}"
            for n, (name, (pid, place)) in enumerate(waits.items())
        ]
        return f"collective mismatch: {', '.join(parts)}"

    def _next(self, pid: int, beside: Iterable[int] = ()) -> int | None:
        """The process for which this one waits in the first place; None: only for itself.  `beside`: the ranks for
        which it may wait in a collective, where no connection tells."""
        if self._is_stopped(pid):
            return None
        frames = self._frames(pid, pid)
        own = self._others(pid, [(pid, pid)])
        if recognized.common_call(frames):
            everything = self._others(pid, [node for node in self._wakers if node[0] == pid])
            own = {other for other in everything if other in self._ranks} or everything or set(beside) - {pid}
        elif recognized.serves_job(frames):  # a forkserver: who waits for it waits for a child of it
            own = {one for one, process in self._world.processes.items() if process.parent == pid} or own
        elif not own:
            own = self._others(pid, self._sides(pid))
        if not own:
            return None
        return min(own, key=lambda other: (not self._is_stopped(other), self._serves_others(other), other))

    def _beyond(self, cycle: Iterable[int], following: int) -> int:
        """The process for which all of this cycle wait, too, and which is not in it, as a shell and its `tee` wait for
        the program that writes to that: so the cause is there.  Else `following`."""
        common = set.intersection(*(self._others(one, [(one, one)]) for one in cycle)).difference(cycle)
        return min((one for one in common if not self._serves_others(one)), default=following)

    def _sides(self, pid: int) -> list[ThreadId]:
        """The threads of this process that run Python, but for those that only serve others, or report what training
        does, where the main thread does not wait for that."""
        frames = {node: self._frames(*node) for node in self._python if node[0] == pid}
        asks = recognized.awaits_report(self._frames(pid, pid))
        return [
            node
            for node, found in frames.items()
            if found and not recognized.serves_job(found) and (asks or not recognized.reports(found))
        ]

    def _others(self, pid: int, nodes: Iterable[ThreadId]) -> set[int]:
        return {other for node in nodes if node in self._wakers for other in self._wakers[node].awaited} - {pid}

    def _serves_others(self, pid: int) -> bool:
        """Whether this process waits in a collective, or for work that others send, so that it is not the cause."""
        frames = self._frames(pid, pid)
        if pid in self._world.processes and recognized.reports_alone(self._world.processes[pid].program):
            return True
        idle = recognized.awaits_work(frames) or recognized.awaits_task_of_pool(frames)
        serves = recognized.manages(frames) or recognized.serves_job(frames)
        return bool(recognized.common_call(frames)) or idle or serves

    def _is_stopped(self, pid: int) -> bool:
        threads = self._world.processes[pid].threads if pid in self._world.processes else ()
        return bool(threads) and threads[0].is_stopped


@functools.lru_cache(maxsize=1024)  # of thousands of threads most have the same frames
def _own(frames: tuple[Frame, ...]) -> Frame | None:
    return own_frame(frames) or outermost(frames)


@functools.lru_cache(maxsize=1024)
def _object(frames: tuple[Frame, ...]) -> str:
    """The object for which a thread waits in functions of libraries; empty if they are not in the table."""
    found = list[int]()
    for frame in frames:
        rows = [n for n, (file, names, _) in enumerate(_OBJECTS) if recognized.is_in(frame, file, frozenset(names))]
        if not rows and not frame.library:
            break
        found += rows
    return _OBJECTS[min(found)][2] if found else ""


def _held(holders: set[int], pid: int, nobody: str) -> str:
    if not holders:
        return nobody
    others = sorted(holders - {pid})
    return f" of process {others[0]}" if others else ", whose other end it holds itself"
