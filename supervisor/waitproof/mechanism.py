"""Sentences about waits: what waits for what, and where in the program.  Pure."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from waitproof import recognized
from waitproof import text as words
from waitproof.connections import Connections
from waitproof.stacks import Frame, Stack, outermost
from waitproof.wakers import Wakers
from waitproof.world import World

Node = tuple[int, int]  # pid and tid
NAMED: Final = 2  # side threads, or processes of a cycle, that a sentence names
# File and functions of the standard library, and what a thread waits for in them.
_OBJECTS: Final = (
    ("torch/utils/data/dataloader.py", {"_try_get_data", "_get_data"}, "a batch of its DataLoader"),
    ("queue.py", {"get"}, "an item in a queue"),
    ("queue.py", {"put"}, "room in a queue"),
    ("queue.py", {"join"}, "the end of a queue's work"),
    ("multiprocessing/queues.py", {"get"}, "an item in a queue of processes"),
    ("multiprocessing/queues.py", {"put"}, "room in a queue of processes"),
    ("threading.py", {"join", "_wait_for_tstate_lock", "_shutdown"}, "the end of a thread"),
    ("concurrent/futures/_base.py", {"result", "exception"}, "the result of a future"),
    ("threading.py", {"wait"}, "a condition"),
)
_BEGINS: Final = frozenset({"_bootstrap", "_bootstrap_inner", "run"})  # in threading.py: where each thread begins
_DEPTH: Final = 6  # frames from the innermost one in which such a function is looked for


class Describer:
    """`ranks`: the ranks by pid.  `wakers`: of all threads."""

    def __init__(
        self, world: World, stacks: Mapping[int, Stack], ranks: Mapping[int, int], wakers: Mapping[Node, Wakers]
    ) -> None:
        self._world, self._ranks, self._wakers = world, ranks, wakers
        known = {(pid, thread.tid or 0): thread for pid, stack in stacks.items() for thread in stack.threads}
        self._python = {node: thread for node, thread in known.items() if node in wakers}
        self._native = {(pid, t.tid): t.name for pid, process in world.processes.items() for t in process.threads}

    # --- names ------------------------------------------------------------------------------------------------------

    def who(self, pid: int) -> str:
        """`rank 1`, or `process 812 (python)`."""
        if pid in self._ranks:
            return words.rank(self._ranks[pid])
        process = self._world.processes.get(pid)
        return f"process {pid} ({process.name})" if process and process.name else f"process {pid}"

    def thread(self, pid: int, tid: int) -> str:
        """`main thread`, or the name of the thread in Python, or else in the kernel."""
        if pid == tid:
            return "main thread"
        python = self._python.get((pid, tid))
        return f"thread {(python.name if python else '') or self._native.get((pid, tid)) or tid!r}"

    def place(self, pid: int, tid: int) -> str:
        """`train.py:12`: the innermost line of the program's own code; empty if there is no Python."""
        frame = self._own(pid, tid)
        return f"{os.path.basename(frame.file)}:{frame.line}" if frame else ""

    def wait(self, pid: int) -> tuple[str, str, bool]:
        """What the main thread of a process waits for, the name of its collective (or of a backward pass) or empty,
        whether it is stopped."""
        return self.waits(pid, pid), recognized.common_call(self._frames(pid, pid)), self._is_stopped(pid)

    def launches(self, pid: int) -> bool:
        """Whether this process is a launcher of ranks, which waits for their ends."""
        return recognized.launches(self._frames(pid, pid))

    def _own(self, pid: int, tid: int) -> Frame | None:
        frames = self._frames(pid, tid)
        own = next((frame for frame in frames if not frame.library), None)
        below = [frame for frame in frames if not recognized.is_in(frame, "threading.py", _BEGINS)]
        return own or (outermost(below) if below else None)

    def _frames(self, pid: int, tid: int) -> Sequence[Frame]:
        thread = self._python.get((pid, tid))
        return thread.frames if thread else ()

    def waits(self, pid: int, tid: int) -> str:
        """`waits for a lock at train.py:12`."""
        frames, place = self._frames(pid, tid), self.place(pid, tid)
        at = f" at {place}" if place else ""
        if call := recognized.common_call(frames):
            return f"waits in {call}{at}"
        what = self._wakers[pid, tid].what if (pid, tid) in self._wakers else ""
        thread = self._python.get((pid, tid))
        if thread is not None and thread.gil:
            return f"waits for {what}{at} and keeps the lock of the interpreter"
        for file, names, text in _OBJECTS:
            if any(recognized.is_in(frame, file, frozenset(names)) for frame in frames[:_DEPTH]):
                return f"waits for {text}{at}"
        if not what and at:
            return f"waits{at}"
        return f"waits for {what or 'something unknown'}{at}"

    # --- open waits ---------------------------------------------------------------------------------------------------

    def what_it_waits_for(self, pid: int, reasons: Mapping[Node, Node | None]) -> str:
        """Why the main thread of this process may go on: `reasons` has for each thread the one that may wake it."""
        node: Node = (pid, pid)
        found = self._wakers.get(node)
        if found is None:
            process = self._world.processes.get(pid)
            return f"the threads of {self.who(pid)} are not known: {process.problem if process else 'it is gone'}"
        if found.open_reason is not None:
            return f"{self.who(pid)} {found.open_reason}"
        return f"{self.who(pid)} {self.waits(pid, pid)}; {self.may_wait_for(node, reasons)}"

    def may_wait_for(self, node: Node, reasons: Mapping[Node, Node | None]) -> str:
        """`it may wait for` the thread that may wake this one, and why that may run."""
        pid, seen = node[0], {node}
        while (following := reasons.get(node)) is not None and following not in seen:
            node = following
            seen.add(node)
        last = self._wakers.get(node)
        if node[1] == 0 or last is None:
            problem = self._world.processes[node[0]].problem
            return f"it may wait for {self.who(node[0])}, of which nothing is known: {problem}"
        thread = self.thread(*node)
        other = thread if node[0] == pid else f"{self.who(node[0])}, {thread}"
        return f"it may wait for {other}, which {last.open_reason}"

    def explain(self, pid: int, reasons: Mapping[Node, Node | None]) -> tuple[str, tuple[int, ...]]:
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
        node: Node | None = (last, last)
        if self._is_stopped(last):
            text = f"{self.who(last)} is stopped by SIGSTOP"
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

    def _calls(self, pid: int) -> str:
        return recognized.common_call(self._frames(pid, pid))

    def _elsewhere(self, pid: int) -> str | None:
        """Why ranks outside this process tree may have to enter the collective in which this one waits."""
        process = self._world.processes.get(pid)
        if process is None or self._is_stopped(pid) or not self._calls(pid):
            return None
        ranks = [pid, *sorted(self._ranks.keys() - {pid})]
        return Connections(self._world).elsewhere(process, ranks, self.who)

    # --- deadlocks ----------------------------------------------------------------------------------------------------

    def deadlock(self, pid: int, group: Iterable[Node]) -> tuple[int, str]:
        """The process in which the deadlock is, and the sentence that says what waits for what, beginning with the
        wait of this process.  `group`: all threads on which that depends."""
        if (text := self._mismatch(group)) is not None:
            return pid, text
        path = [pid]
        while (following := self._next(path[-1])) is not None and following not in path:
            path.append(following)
        root = path[-1]
        before = [f"{self.who(one)} {self._because(one)}" for one in path[-2::-1][:NAMED]]
        if self._is_stopped(root):
            text = f"{self.who(root)} is stopped by SIGSTOP"
            return root, ", and ".join([text, *before])
        if following is not None and following != root:
            cycle = path[path.index(following) :]
            waits = [f"{self._exact(one)} {self.waits(one, one)}" for one in cycle[: NAMED + 1]]
            others = path[: path.index(following)]
            before = [f"{self.who(one)} {self._because(one)}" for one in others[::-1][:NAMED]]
            return root, "; ".join([f"deadlock: {', and '.join(waits)}, each of which needs the next", *before])
        text = f"deadlock: {self._exact(root)} {self.waits(root, root)}, which only its own threads can end"
        sides = [node for node in self._python if node[0] == root and node[1] != root and self._frames(*node)]
        if sides:
            text += ": " + ", ".join(f"{self.thread(*node)} {self.waits(*node)}" for node in sides[:NAMED])
        return root, "; ".join([text, *before])

    def _exact(self, pid: int) -> str:
        rank = pid in self._ranks
        return f"{self.who(pid)} (process {pid}, main thread)" if rank else f"{self.who(pid)}, main thread,"

    def _because(self, pid: int) -> str:
        """How a process waits for another one that was named just before."""
        frames, place = self._frames(pid, pid), self.place(pid, pid)
        if call := recognized.common_call(frames):
            return f"waits for it in {call}{f' at {place}' if place else ''}"
        return self.waits(pid, pid)

    def _mismatch(self, group: Iterable[Node]) -> str | None:
        """Ranks that wait in different collectives."""
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
        elif not own:
            own = self._others(pid, [node for node in self._python if node[0] == pid and self._frames(*node)])
        if not own:
            return None
        return min(own, key=lambda other: (not self._is_stopped(other), self._serves_others(other), other))

    def _others(self, pid: int, nodes: Iterable[Node]) -> set[int]:
        return {other for node in nodes if node in self._wakers for other in self._wakers[node].awaited} - {pid}

    def _serves_others(self, pid: int) -> bool:
        """Whether it waits for what others do, and is no cause."""
        frames = self._frames(pid, pid)
        return bool(recognized.common_call(frames)) or recognized.awaits_work(frames)

    def _is_stopped(self, pid: int) -> bool:
        threads = self._world.processes[pid].threads if pid in self._world.processes else ()
        return bool(threads) and threads[0].is_stopped
