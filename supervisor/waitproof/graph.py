"""What a suspect waits for, for the sentences of its report: which process waits for which, and where that ends.  Pure.

It is no proof (proof.py), and nothing is ended for it.  A wait is closed if every process that could end it is in the
job and waits, in the end, for nothing outside either.  A timer, a connection to something outside, a file, a terminal
or a device may end a wait from outside: such a wait is open.  So is a wait that cannot be observed.

Which threads count:
* The main thread of the suspect and of each process for which it waits.
* Where a main thread waits for its own process (a lock, a queue, a future), also the other threads if they wait for
  something outside or compute.  A timer of a side thread counts only where the main thread waits for a task of an
  executor or for the end of a thread: progress bars, watchdogs and keep-alives sleep in every hung process.
* Threads without Python in a Python process count only if they use a file: pollers of collectives, store daemons and
  the like are connected to other hosts and do nothing.  The data that they exchange is counted as traffic.

A rank in a collective waits for all other ranks.  Where some of them run on other nodes, one of those may be working,
which cannot be observed here: the wait is open if every rank of this process tree waits like that, as is one for a
connection to another member of the group.  Only all members together can prove the opposite (other_members.py); a rank
that hangs in any other way is found on its own node.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from waitproof import text
from waitproof.changes import BUSY_CPU, Change
from waitproof.connections import Connections
from waitproof.world import LATE, Descriptor, WaitingProcess, WaitingThread, World, host

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
Chain = tuple[int, ...]  # pids, each of which waits for the next one


class Outcome(NamedTuple):
    """`open_reason`: why the wait may be ended from outside; None: it is closed.  `chain`: the pids from the first
    process to the last one that is waited for; `why`: why that one waits."""

    open_reason: str | None
    why: str
    chain: Chain

    @property
    def is_open(self) -> bool:
        return self.open_reason is not None


class Graph:
    """Two observations of the same processes.  `ranks`: by pid, the rank that is suspected and those that stopped as
    well.  `work_of`: the work that a process does, or None."""

    def __init__(
        self,
        before: World,
        after: World,
        changes: Iterable[Change],
        ranks: Mapping[int, int],
        work_of: Callable[[Change], str | None],
    ) -> None:
        self.before, self.after = before, after
        self._changes = {change.pid: change for change in changes if not change.gone}
        self._ranks, self._work_of = ranks, work_of
        self._connections = Connections(after)

    def follow(self, pid: int, path: Chain = ()) -> Outcome:
        """Whether something outside ends the wait of this process; `path`: the pids that wait for it."""
        chain, change = (*path, pid), self._changes.get(pid)
        if pid in path:
            return _closed(f"it waits for {self.name(pid)} in turn", path)
        if change is None:
            return _closed("its process is gone", chain)
        if change.is_stopped:
            return _closed("stopped", chain)
        if path and (work := self._work_of(change)):
            return _open(f"{self.name(pid)}: {work}", chain)
        process = self.after.processes.get(pid)
        if process is None:
            return self._unknown(LATE, chain)
        if not process.threads:
            return self._unknown(process.problem or "it has no visible threads", chain)
        return self._process_wait(change, process, chain)

    def name(self, pid: int) -> str:
        change = self._changes.get(pid)
        if pid in self._ranks:
            return text.rank(self._ranks[pid])
        return f"process {pid} ({change.seen.stat.name})" if change else f"process {pid}"

    def _unknown(self, why: str, chain: Chain) -> Outcome:
        return _open(f"it is unknown what {self.name(chain[-1])} waits for: {why}", chain)

    def _process_wait(self, change: Change, process: WaitingProcess, chain: Chain) -> Outcome:
        main = process.threads[0]
        if change.is_in_collective:
            ranks = sorted(self._ranks.keys() - {change.pid})
            elsewhere = self._connections.elsewhere(process, [change.pid, *ranks], self.name)
            if change.waits_for_ranks or ranks or elsewhere:
                outcome = self._wait_for_ranks(ranks, elsewhere, chain)
                if change.waits_for_ranks or outcome.is_open:
                    return outcome
                inside = self._thread_wait(main, chain)
                return inside if inside.is_open else outcome
        children = self._children(change.pid)
        if children and change.inside(*_LOADERS):
            return self._any_of(children, "it waits for the workers of its DataLoader", chain)
        earlier = self._earlier(change.pid, main.tid)
        waiting = earlier if main.running and earlier is not None else main
        outcome = self._thread_wait(waiting, chain)
        if outcome.is_open:
            return outcome
        if earlier is not None and waiting.io > earlier.io:
            return _open(f"{self.name(change.pid)} reads or writes slowly", outcome.chain)
        if len(chain) > 1:  # any of its threads may have to answer
            inside = self._own_process(main, chain)
            return inside if inside.is_open else outcome
        return outcome

    def _wait_for_ranks(self, ranks: Sequence[int], elsewhere: str | None, chain: Chain) -> Outcome:
        """`elsewhere`: why some ranks run outside this process tree."""
        outcome = self._any_of(ranks, "it waits for other ranks", chain)
        if not outcome.is_open and elsewhere and all(map(self._waits_for_all, ranks)):
            return _open(f"{self.name(chain[-1])} waits for other ranks, {elsewhere}", chain)
        return outcome

    def _waits_for_all(self, pid: int) -> bool:
        """Whether this rank waits for all others as well."""
        change = self._changes.get(pid)
        return change is not None and change.is_in_collective and not change.is_stopped

    def _children(self, pid: int) -> list[int]:
        return [change.pid for change in self._changes.values() if change.seen.stat.parent == pid]

    def _thread_wait(self, thread: WaitingThread, chain: Chain) -> Outcome:
        call, pid = thread.call, chain[-1]
        if thread.problem or call is None:
            running = "it is running" if thread.running else "its system call is unknown"
            return self._unknown(thread.problem or running, chain)
        match call.kind:
            case "sleep":
                return self._timer(thread, chain)
            case "restart":
                return _open(f"{self.name(pid)} waits for a timer ({call.name})", chain)
            case "signal":
                return self._timer(thread, chain) if thread.timed else self._own_process(thread, chain)
            case "futex":
                return self._futex(thread, chain)
            case "child":
                children = self._children(pid)
                awaited = [thread.child] if thread.child in children else children
                return self._any_of(awaited, f"it waits for a child ({call.name})", chain)
            case "lock":
                return self._file_lock(thread, chain)
            case "in" | "out" | "accept" | "poll" | "select" | "epoll":
                return self._descriptor_wait(thread, chain)
        return _open(f"{self.name(pid)} waits in {call.name}, which something outside the job ends", chain)

    # --- timers and locks -----------------------------------------------------------------------------------------

    def _timer(self, thread: WaitingThread, chain: Chain) -> Outcome:
        name, call = self.name(chain[-1]), _call_name(thread)
        if thread.until is None:
            return _open(f"{name} waits for a timer ({call})", chain)
        left = max(0.0, thread.until - self.after.at)
        what = f"waits for a timer that ends in {text.seconds(left)} ({call})"
        return _open(f"{name} {what}", chain)

    def _futex(self, thread: WaitingThread, chain: Chain) -> Outcome:
        pid = chain[-1]
        if thread.shared:
            if thread.shared in self.after.outside:
                return _open(f"{self.name(pid)} waits for a lock shared with a process outside the job", chain)
            sharing = sorted(self.after.holders.get(thread.shared, {}).keys() - {pid})
            outcome = self._any_of(sharing, "it waits for a shared lock", chain)
            if outcome.is_open:
                return outcome
        outcome = self._own_process(thread, chain)
        if not outcome.is_open and thread.timed and self._is_same_timer(thread, pid):
            return self._timer(thread, chain)
        return outcome

    def _is_same_timer(self, thread: WaitingThread, pid: int) -> bool:
        """Whether it has waited for the same timer in both observations, and does not poll."""
        earlier = self._earlier(pid, thread.tid)
        if earlier is None or earlier.until is None or thread.until is None:
            return earlier is None
        return abs(earlier.until - thread.until) < TICK

    def _file_lock(self, thread: WaitingThread, chain: Chain) -> Outcome:
        pid, holders = chain[-1], self.after.locks.get(thread.lock, set())
        if holders == {pid}:
            return self._own_process(thread, chain)
        if holders and holders <= self._changes.keys():
            return self._any_of(sorted(holders - {pid}), "it waits for a file lock", chain)
        return _open(f"{self.name(pid)} waits for a file lock that a process outside the job may hold", chain)

    # --- descriptors ----------------------------------------------------------------------------------------------

    def _descriptor_wait(self, thread: WaitingThread, chain: Chain) -> Outcome:
        """Follow each descriptor of the call: one that is open opens the wait."""
        ends, outcomes = self._awaited(thread, chain[-1]), list[Outcome]()
        for end, mode in ends:
            outcome = self._wait_on(end, mode, chain, _call_name(thread))
            if outcome is not None and outcome.is_open:
                return outcome
            outcomes += [outcome] if outcome is not None else []
        if len(outcomes) < len(ends) or not ends:  # the process itself has the other end of some
            outcome = self._own_process(thread, chain)
            if outcome.is_open:
                return outcome
            if thread.timed and not outcomes:  # an event loop that only has timers
                return self._timer(thread, chain)
            outcomes.append(outcome)
        return _most_informative(outcomes)

    def _awaited(self, thread: WaitingThread, pid: int) -> list[tuple[Descriptor | None, str]]:
        """The objects for which a call waits, and the direction; in place of an epoll its members."""
        fds = self.after.processes[pid].fds
        found = list[tuple[Descriptor | None, str]]()
        for fd, mode in thread.fds:
            end = fds.get(fd)
            if end is not None and end.kind == "epoll":
                found += [(fds.get(member), member_mode) for member, member_mode in end.members]
            else:
                found.append((end, mode))
        return found

    def _wait_on(self, end: Descriptor | None, mode: str, chain: Chain, call: str) -> Outcome | None:
        """Follow one descriptor; None: only the process itself has the other end."""
        name = self.name(chain[-1])
        if end is None:
            return self._unknown("its descriptor was closed", chain)
        match end.kind:
            case "socket":
                return self._socket(end, chain, call)
            case "pipe" | "eventfd":
                needed = mode if end.kind == "eventfd" else ("w" if "r" in mode else "") + ("r" if "w" in mode else "")
                holders = [p for p, m in self.after.holders.get(end.key, {}).items() if set(m) & set(needed)]
                if not holders or set(self.after.outside.get(end.key, "")) & set(needed):
                    return _open(f"{name} waits for {end.key}, whose other end is outside the job ({call})", chain)
                return self._any_other(holders, f"it waits for {end.key} ({call})", chain)
            case "pidfd":
                return self._any_of([end.pid], f"it waits for the end of a process ({call})", chain)
            case "signalfd":
                return None
        return _open(f"{name} waits for {end.key} ({call}), which something outside the job ends", chain)

    def _socket(self, end: Descriptor, chain: Chain, call: str) -> Outcome | None:
        name, found = self.name(chain[-1]), self.after.sockets.get(end.key)
        if found is None:
            return _open(f"{name} waits for an unknown socket ({call})", chain)
        if found.listens:
            return _open(f"{name} waits for a connection ({call} on {found.text})", chain)
        other = self._connections.other_end(found)
        if other is None and found.kind == "tcp" and host(found.remote) in self.after.group:
            return _open(f"{name} waits for {found.remote}, another member of the group ({call})", chain)
        holders = self.after.holders.get(other, {}) if other else {}
        if not holders:
            where = f"{found.remote}, which is" if found.remote else "a socket whose other end is"
            return _open(f"{name} waits for {where} outside the job ({call} on {found.text})", chain)
        return self._any_other(holders, f"it waits for {found.text} ({call})", chain)

    # --- threads and processes --------------------------------------------------------------------------------------

    def _own_process(self, thread: WaitingThread, chain: Chain) -> Outcome:
        """Another thread of the same process has to end the wait."""
        pid = chain[-1]
        for other in self.after.processes[pid].threads[1:] if thread.tid == pid else ():
            if (why := self._side_thread(other, chain)) is not None:
                return _open(f"{why}, in a side thread", chain)
        return _closed(f"it waits for its own process ({_call_name(thread)})", chain)

    def _side_thread(self, thread: WaitingThread, chain: Chain) -> str | None:
        """Why a side thread may end the wait of the main thread, or None."""
        call, pid = thread.call, chain[-1]
        name, change, earlier = self.name(pid), self._changes[pid], self._earlier(pid, thread.tid)
        seconds = max(0.001, self.after.at - self.before.at)
        runs_python = change.may_run_python(thread.tid)
        if runs_python and earlier is not None and (thread.cpu - earlier.cpu) / seconds >= BUSY_CPU:
            return f"{name} computes"
        if call is None or thread.problem:
            return None
        ends = [(end, mode) for end, mode in self._awaited(thread, pid) if end is not None]
        if call.kind in ("in", "out") and (opened := [end for end, _ in ends if end.kind == "file"]):
            return f"{name} waits for {opened[0].key} ({call.name})"
        if not runs_python:
            return None
        if call.kind in ("sleep", "futex") and thread.timed:
            runs_task = any(change.inside(*row) for row in _FUTURES) or change.has(thread.tid, *_TASK)
            counts = runs_task and (call.kind == "sleep" or self._is_same_timer(thread, pid))
            return self._timer(thread, chain).open_reason if counts else None
        if call.kind == "other":
            return f"{name} waits in {call.name}"
        if call.kind == "child":
            return self._thread_wait(thread, chain).open_reason
        if call.kind in ("in", "out", "poll", "select", "epoll"):
            for end, mode in ends:
                if end.kind in ("socket", "pipe", "pidfd") and not self._accepts_connections(end):
                    outcome = self._wait_on(end, mode, chain, call.name)
                    if outcome is not None and outcome.is_open:
                        return outcome.open_reason
        return None

    def _accepts_connections(self, end: Descriptor) -> bool:
        """Whether it is a listening socket: waiting for connections does not end the main thread's wait."""
        found = self.after.sockets.get(end.key)
        return end.kind == "socket" and (found is None or found.listens)

    def _any_of(self, pids: Sequence[int], why: str, chain: Chain) -> Outcome:
        """One of these processes has to end the wait."""
        outcomes = []
        for pid in pids:
            if pid not in self._changes and pid not in self.after.processes:
                return _open(f"{why}, process {pid}, which is outside the job", chain)
            outcome = self.follow(pid, chain)
            if outcome.is_open:
                return outcome._replace(open_reason=f"{why}; {outcome.open_reason}")
            outcomes.append(outcome)
        return _most_informative(outcomes) if outcomes else _closed(why, chain)

    def _any_other(self, pids: Iterable[int], why: str, chain: Chain) -> Outcome | None:
        """The same for all but the process itself; None if there is no other one."""
        others = sorted(set(pids) - {chain[-1]})
        return self._any_of(others, why, chain) if others else None

    def _earlier(self, pid: int, tid: int) -> WaitingThread | None:
        """The thread in the first observation."""
        process = self.before.processes.get(pid)
        return next((thread for thread in process.threads if thread.tid == tid), None) if process else None


def _open(reason: str, chain: Chain) -> Outcome:
    return Outcome(reason, "", chain)


def _closed(why: str, chain: Chain) -> Outcome:
    return Outcome(None, why, chain)


def _call_name(thread: WaitingThread) -> str:
    return thread.call.name if thread.call else "-"


def _most_informative(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome for a process that is stopped, else the one with the longest chain."""
    return max(outcomes, key=lambda outcome: (outcome.why == "stopped", len(outcome.chain)))
