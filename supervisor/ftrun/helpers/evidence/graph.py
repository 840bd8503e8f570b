"""Whether something outside the job can end the wait of a process, by following which process waits for which.  Pure.

A learned timeout alone never kills a rank.  It does so only if the wait is closed: every process that could end it is
in the job and waits, in the end, for nothing outside either.  A timer, a connection to something outside, a file, a
terminal or a device may end a wait from outside: such a wait is open.  So is a wait that cannot be observed.

Which threads count:
* The main thread of the suspect and of each process for which it waits.
* Where a main thread waits for its own process (a lock, a queue, a future), also the other threads if they wait for
  something outside or compute.  A timer of a side thread counts only where the main thread waits for a task of an
  executor or for the end of a thread: progress bars, watchdogs and keep-alives sleep in every hung process.
* Threads without Python in a Python process count only if they use a file: pollers of collectives, store daemons and
  the like are connected to other hosts and do nothing.  The data that they exchange is counted as traffic.

A rank in a collective waits for all other ranks.  Where some of them run on other nodes, one of those may be working,
which cannot be observed here: the wait is open if every rank of this process tree waits like that.  A rank that hangs
in any other way is found on its own node.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from ftrun.core.text import durations, sentences
from ftrun.helpers.evidence.classification import BUSY_CPU, Change
from ftrun.helpers.evidence.connections import Connections, inode
from ftrun.helpers.evidence.waits import Descriptor, WaitingProcess, WaitingThread, World, host

TICK: Final = 0.05  # s by which two readings of the same timer may differ
# Frames in which the main thread waits for its children, whatever the call: it polls to check that they are alive.
_LOADERS: Final = ("torch/utils/data/dataloader.py", frozenset({"_try_get_data", "_get_data"}))
_TASK: Final = ("concurrent/futures/thread.py", frozenset({"run"}))
_FUTURES: Final = (
    ("concurrent/futures/_base.py", frozenset({"result", "exception", "wait", "as_completed", "result_iterator"})),
    ("concurrent/futures/thread.py", frozenset({"shutdown"})),
    ("threading.py", frozenset({"join", "_shutdown"})),
    ("multiprocessing/pool.py", frozenset({"get", "wait", "join"})),
)


class Outcome(NamedTuple):
    """`open_reason`: why the wait may be ended from outside; None: it is closed.  `chain`: the pids from the first
    process to the last one that is waited for; `why`: why that one waits."""

    open_reason: str | None
    why: str
    chain: tuple[int, ...]


class Graph:
    """Two observations of the same processes.  `patience`: seconds from now within which a timer must end to open a
    wait.  `ranks`: by pid, the rank that is suspected and those that stopped as well.  `works`: the work that a process
    does, or None."""

    def __init__(
        self,
        before: World,
        after: World,
        found: Sequence[Change],
        ranks: Mapping[int, int],
        patience: float,
        works: Callable[[Change], str | None],
    ) -> None:
        self.before = self._before = before
        self.after = self._world = after
        self._changes = {change.pid: change for change in found if not change.gone}
        self._ranks, self._patience, self._works = ranks, patience, works
        self._connections = Connections(after)

    def follow(self, pid: int, path: tuple[int, ...] = ()) -> Outcome:
        """Whether something outside ends the wait of this process; `path`: the pids that wait for it."""
        chain, change = (*path, pid), self._changes.get(pid)
        if pid in path:
            return Outcome(None, f"it waits for {self.name(pid)} in turn", path)
        if change is None:
            return Outcome(None, "its process is gone", chain)
        if change.seen.stat.state in "Tt":
            return Outcome(None, "stopped", chain)
        if path and (work := self._works(change)):
            return Outcome(f"{self.name(pid)}: {work}", "", chain)
        process = self._world.processes.get(pid)
        if process is None or not process.threads:
            why = (
                "the answer did not arrive in time"
                if process is None
                else process.problem or "it has no visible threads"
            )
            return Outcome(f"it is unknown what {self.name(pid)} waits for: {why}", "", chain)
        return self._process_wait(pid, change, process, chain)

    def _process_wait(self, pid: int, change: Change, process: WaitingProcess, chain: tuple[int, ...]) -> Outcome:
        ranks = sorted(self._ranks.keys() - {pid})
        elsewhere = None
        if change.waits_for_ranks or change.waits_in_backward:
            elsewhere = self._connections.elsewhere(process, [pid, *ranks], self.name)
        if change.waits_for_ranks or (change.waits_in_backward and (ranks or elsewhere)):
            outcome = self._any_of(ranks, "it waits for other ranks", chain)
            if outcome.open_reason is None and elsewhere and all(self._waits_for_all(rank) for rank in ranks):
                outcome = Outcome(f"{self.name(pid)} waits for other ranks, {elsewhere}", "", chain)
            if change.waits_for_ranks or outcome.open_reason is not None:
                return outcome
            inside = self._thread_wait(pid, process.threads[0], process, chain)
            return inside if inside.open_reason is not None else outcome
        children = [c.pid for c in self._changes.values() if c.seen.stat.parent == pid]
        if children and change.inside(*_LOADERS):
            return self._any_of(children, "it waits for the workers of its DataLoader", chain)
        main = process.threads[0]
        if main.running and (earlier := self._earlier(pid, main.tid)) is not None:
            main = earlier
        outcome = self._thread_wait(pid, main, process, chain)
        if outcome.open_reason is None and main.io > (self._earlier(pid, main.tid) or main).io:
            return outcome._replace(open_reason=f"{self.name(pid)} reads or writes slowly")
        if outcome.open_reason is None and len(chain) > 1:  # any of its threads may have to answer
            inside = self._own_process(pid, process.threads[0], process, chain)
            return outcome if inside.open_reason is None else inside
        return outcome

    def _waits_for_all(self, pid: int) -> bool:
        """Whether this rank waits for all others as well."""
        change = self._changes.get(pid)
        return (
            change is not None
            and change.seen.stat.state not in "Tt"
            and (change.waits_for_ranks or change.waits_in_backward)
        )

    def _thread_wait(self, pid: int, thread: WaitingThread, process: WaitingProcess, chain: tuple[int, ...]) -> Outcome:
        call, name = thread.call, self.name(pid)
        if thread.problem or call is None:
            reason = thread.problem or ("it is running" if thread.running else "its system call is unknown")
            return Outcome(f"it is unknown what {name} waits for: {reason}", "", chain)
        match call.kind:
            case "sleep":
                return self._timer(pid, thread, chain)
            case "restart":
                return Outcome(f"{name} waits for a timer ({call.name})", "", chain)
            case "signal":
                return (
                    self._timer(pid, thread, chain) if thread.timed else self._own_process(pid, thread, process, chain)
                )
            case "futex":
                return self._futex(pid, thread, process, chain)
            case "child":
                children = [c.pid for c in self._changes.values() if c.seen.stat.parent == pid]
                awaited = [thread.child] if thread.child in children else children
                return self._any_of(awaited, f"it waits for a child ({call.name})", chain)
            case "lock":
                return self._file_lock(pid, thread, process, chain)
            case "in" | "out" | "accept" | "poll" | "select" | "epoll":
                return self._descriptor_wait(pid, thread, process, chain)
        return Outcome(f"{name} waits in {call.name}, which something outside the job ends", "", chain)

    # --- timers and locks -----------------------------------------------------------------------------------------

    def _timer(self, pid: int, thread: WaitingThread, chain: tuple[int, ...]) -> Outcome:
        assert thread.call is not None
        if thread.until is None:
            return Outcome(f"{self.name(pid)} waits for a timer ({thread.call.name})", "", chain)
        left = max(0.0, thread.until - self._world.at)
        what = f"waits for a timer that ends in {durations.seconds(left)} ({thread.call.name})"
        if left > self._patience:
            return Outcome(None, f"it {what}, which is later than the maximum of the timeout", chain)
        return Outcome(f"{self.name(pid)} {what}", "", chain)

    def _futex(self, pid: int, thread: WaitingThread, process: WaitingProcess, chain: tuple[int, ...]) -> Outcome:
        if thread.shared:
            if thread.shared in self._world.outside:
                return Outcome(f"{self.name(pid)} waits for a lock shared with a process outside the job", "", chain)
            sharing = self._world.holders.get(thread.shared, {}).keys() - {pid}
            if sharing:
                outcome = self._any_of(sorted(sharing), "it waits for a shared lock", chain)
                if outcome.open_reason is not None:
                    return outcome
        outcome = self._own_process(pid, thread, process, chain)
        if outcome.open_reason is None and thread.timed and self._same_timer(pid, thread):
            return self._timer(pid, thread, chain)
        return outcome

    def _same_timer(self, pid: int, thread: WaitingThread) -> bool:
        """Whether it has waited for the same timer in both observations, and does not poll."""
        earlier = self._earlier(pid, thread.tid)
        if earlier is None or earlier.until is None or thread.until is None:
            return earlier is None
        return abs(earlier.until - thread.until) < TICK

    def _file_lock(self, pid: int, thread: WaitingThread, process: WaitingProcess, chain: tuple[int, ...]) -> Outcome:
        holders = self._world.locks.get(thread.lock, set())
        if holders == {pid}:
            return self._own_process(pid, thread, process, chain)
        if holders and holders <= self._changes.keys():
            return self._any_of(sorted(holders - {pid}), "it waits for a file lock", chain)
        return Outcome(f"{self.name(pid)} waits for a file lock that a process outside the job may hold", "", chain)

    # --- descriptors ----------------------------------------------------------------------------------------------

    def _descriptor_wait(
        self, pid: int, thread: WaitingThread, process: WaitingProcess, chain: tuple[int, ...]
    ) -> Outcome:
        """Follow each descriptor of the call: one that is open opens the wait."""
        assert thread.call is not None
        ends = []
        for fd, mode in thread.fds:
            end = process.fds.get(fd)
            if end is not None and end.kind == "epoll":
                ends += [(process.fds.get(inner), inner_mode) for inner, inner_mode in end.members]
            else:
                ends.append((end, mode))
        outcomes, own = [], False
        for end, mode in ends:
            outcome = self._wait_on(pid, end, mode, chain, thread.call.name)
            own = own or outcome is None
            if outcome is not None and outcome.open_reason is not None:
                return outcome
            outcomes += [outcome] if outcome is not None else []
        if own or not ends:
            outcome = self._own_process(pid, thread, process, chain)
            if outcome.open_reason is not None:
                return outcome
            if thread.timed and not outcomes:  # an event loop that only has timers
                return self._timer(pid, thread, chain)
            outcomes.append(outcome)
        return _most_informative(outcomes)

    def _wait_on(
        self, pid: int, end: Descriptor | None, mode: str, chain: tuple[int, ...], call: str
    ) -> Outcome | None:
        """Follow one descriptor; None: only the process itself has the other end."""
        name = self.name(pid)
        if end is None:
            return Outcome(f"it is unknown what {name} waits for: its descriptor was closed", "", chain)
        match end.kind:
            case "socket":
                return self._socket(pid, end, chain, call)
            case "pipe" | "eventfd":
                needed = mode if end.kind == "eventfd" else ("w" if "r" in mode else "") + ("r" if "w" in mode else "")
                if set(self._world.outside.get(end.key, "")) & set(needed):
                    return Outcome(
                        f"{name} waits for {end.key}, whose other end is outside the job ({call})", "", chain
                    )
                holders = self._world.holders.get(end.key, {})
                others = sorted(p for p, modes in holders.items() if set(modes) & set(needed))
                if not others:
                    return Outcome(
                        f"{name} waits for {end.key}, whose other end is outside the job ({call})", "", chain
                    )
                rest = [p for p in others if p != pid]
                return self._any_of(rest, f"it waits for {end.key} ({call})", chain) if rest else None
            case "pidfd":
                return self._any_of([end.pid], f"it waits for the end of a process ({call})", chain)
            case "signalfd":
                return None
        return Outcome(f"{name} waits for {end.key} ({call}), which something outside the job ends", "", chain)

    def _socket(self, pid: int, end: Descriptor, chain: tuple[int, ...], call: str) -> Outcome | None:
        name, found = self.name(pid), self._world.sockets.get(inode(end.key))
        if found is None:
            return Outcome(f"{name} waits for an unknown socket ({call})", "", chain)
        if found.listens:
            return Outcome(f"{name} waits for a connection ({call} on {found.text})", "", chain)
        if found.kind == "unix":
            other = found.peer
        elif found.kind == "tcp":
            other = self._connections.other_end(found)
            if other is None and host(found.remote) in self._world.group:
                return Outcome(None, f"it waits for {found.remote}, another member of the group ({call})", chain)
        else:
            other = None
        holders = sorted(self._world.holders.get(f"socket:[{other}]", {})) if other else []
        if not holders:
            where = f"{found.remote}, which is" if found.remote else "a socket whose other end is"
            return Outcome(f"{name} waits for {where} outside the job ({call} on {found.text})", "", chain)
        rest = [p for p in holders if p != pid]
        return self._any_of(rest, f"it waits for {found.text} ({call})", chain) if rest else None

    # --- threads and processes --------------------------------------------------------------------------------------

    def _own_process(self, pid: int, thread: WaitingThread, process: WaitingProcess, chain: tuple[int, ...]) -> Outcome:
        """Another thread of the same process has to end the wait."""
        closed = Outcome(None, f"it waits for its own process ({thread.call.name if thread.call else '-'})", chain)
        if thread.tid != pid:
            return closed
        change = self._changes[pid]
        python = {t.tid for t in change.stack.threads if t.frames} if change.stack else None
        joins = any(change.inside(*row) for row in _FUTURES)
        for other in process.threads[1:]:
            if (why := self._side_thread(pid, other, process, chain, python, joins)) is not None:
                return Outcome(f"{why}, in a side thread", "", chain)
        return closed

    def _side_thread(
        self,
        pid: int,
        thread: WaitingThread,
        process: WaitingProcess,
        chain: tuple[int, ...],
        python: set[int | None] | None,
        joins: bool,
    ) -> str | None:
        """Why a side thread may end the wait of the main thread, or None.

        `python`: the threads that run Python; None: not known."""
        call, name = thread.call, self.name(pid)
        runs_python = python is None or thread.tid in python or None in python
        earlier = self._earlier(pid, thread.tid)
        seconds = max(0.001, self._world.at - self._before.at)
        if runs_python and earlier is not None and (thread.cpu - earlier.cpu) / seconds >= BUSY_CPU:
            return f"{name} computes"
        if call is None or thread.problem:
            return None
        ends = [process.fds.get(fd) for fd, _ in thread.fds]
        if call.kind in ("in", "out") and any(end is not None and end.kind == "file" for end in ends):
            return f"{name} waits for {next(e.key for e in ends if e)} ({call.name})"
        if not runs_python:
            return None
        if call.kind in ("sleep", "futex") and thread.timed:
            task = joins or self._changes[pid].has(thread.tid, *_TASK)
            if not (task and (call.kind == "sleep" or self._same_timer(pid, thread))):
                return None
            return self._timer(pid, thread, chain).open_reason
        if call.kind == "other":
            return f"{name} waits in {call.name}"
        if call.kind == "child":
            return self._thread_wait(pid, thread, process, chain).open_reason
        if call.kind in ("in", "out", "poll", "select", "epoll"):
            descriptors = [(e, mode) for e, mode in zip(ends, (m for _, m in thread.fds), strict=True) if e is not None]
            inner = [pair for end, _ in descriptors if end.kind == "epoll" for pair in end.members]
            descriptors += [(process.fds[fd], mode) for fd, mode in inner if fd in process.fds]
            for end, mode in descriptors:
                if end.kind not in ("socket", "pipe", "pidfd") or self._accepts_connections(end):
                    continue
                outcome = self._wait_on(pid, end, mode, chain, call.name)
                if outcome is not None and outcome.open_reason is not None:
                    return outcome.open_reason
        return None

    def _accepts_connections(self, end: Descriptor) -> bool:
        """Whether it is a listening socket: waiting for connections does not end the main thread's wait."""
        found = self._world.sockets.get(inode(end.key)) if end.kind == "socket" else None
        return end.kind == "socket" and (found is None or found.listens)

    def _any_of(self, pids: Sequence[int], why: str, chain: tuple[int, ...]) -> Outcome:
        """One of these processes has to end the wait."""
        outcomes = []
        for pid in pids:
            if pid not in self._changes and pid not in self._world.processes:
                return Outcome(f"{why}, process {pid}, which is outside the job", "", chain)
            outcome = self.follow(pid, chain)
            if outcome.open_reason is not None:
                return outcome._replace(open_reason=f"{why}; {outcome.open_reason}")
            outcomes.append(outcome)
        return _most_informative(outcomes) if outcomes else Outcome(None, why, chain)

    def _earlier(self, pid: int, tid: int) -> WaitingThread | None:
        process = self._before.processes.get(pid)
        return next((thread for thread in process.threads if thread.tid == tid), None) if process else None

    def name(self, pid: int) -> str:
        change = self._changes.get(pid)
        if pid in self._ranks:
            return sentences.rank(self._ranks[pid])
        return f"process {pid} ({change.seen.stat.name})" if change else f"process {pid}"


def _most_informative(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome for a process that is stopped, else the one with the longest chain."""
    return max(outcomes, key=lambda o: (o.why == "stopped", len(o.chain)))
