"""The process tree of the command: all descendants of ftrun except its helpers, processes that existed before it, and
processes that entered from outside (`docker exec`)."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.named_tuple import NamedTuple
from ftrun.host import procfs, reaper
from ftrun.host.procfs import COMPLETE, Stat
from ftrun.host.terminal import JobControl

SLICE = 0.5  # s after which one call of `kill` begins no further search for new processes
STORM = 0.05  # s of such a search after which many are stopped in one call
MANY = 200  # children that have ended, after which a walk begins anew
LAST_ROUNDS = 8  # of this search after all were stopped in one call: some may be about to end, and do
DRAINING = 1.0  # s for a process at the end of a pipe to read what is left in it
ANCESTORS = 64  # between a process and its rank
RECHECK = 0.02  # s; ftrun gets no signal when a process that is not its child ends
MAX_NAMED = 20  # at most so many processes are named in a message
RECHECK_EACH = 0.0001  # s; added for each member, so that listing stays cheaper than killing
NEVER = float("inf")  # `math` is a file to load


class Killed(NamedTuple):
    """The processes that got SIGKILL.  `refused`: those of them that ftrun may not signal, by pid and start time.
    `all_stopped`: a complete listing has shown no other process after all of these were stopped."""

    members: list[Stat]
    refused: set[tuple[int, int]]
    all_stopped: bool


class Tree:
    """`marker`: the environment entry that only this ftrun's command and its descendants have."""

    def __init__(self, marker: bytes) -> None:
        self._marker = marker
        self._pid = os.getpid()
        self._session = os.getsid(0)
        self._foreign_sessions: set[int] = set()
        self.processes: dict[int, int] = {}  # of the command, not reaped yet: pid -> local rank
        self.group: int | None = None  # the process group of the command, while one of `processes` is left
        self._refused: set[tuple[int, int]] = set()  # processes that ftrun may not signal (EPERM)
        self._asked: set[tuple[int, int]] = set()  # processes left behind that have got SIGTERM
        self._spared: dict[tuple[int, int], float] = {}  # readers of a pipe, which get no SIGTERM until then
        self._not_forwarded: set[int] = set()
        self._all_stopped = False  # by `_stop_all`
        self._stopped_before: set[tuple[int, int]] = set()  # processes that are not the command's
        # A shell that replaced itself by ftrun (exec) may have left its own children: ftrun must not end them.
        inherited = (procfs.stat(pid) for pid in procfs.children(self._pid))
        self._excluded = {s.pid: s.start for s in inherited if s is not None}  # until they are reaped

    @property
    def marker_environment(self) -> dict[str, str]:
        """The marker, for the environment of the tree's processes."""
        name, _, value = os.fsdecode(self._marker).partition("=")
        return {name: value}

    @property
    def command(self) -> int | None:
        """The first process of the command that is not reaped yet."""
        return next(iter(self.processes), None)

    def started(self, pid: int, local_rank: int = 0) -> None:
        """A process of the command was forked; the first one leads the group."""
        self.group = self.group if self.processes else pid
        self.processes[pid] = local_rank

    def joinable_group(self) -> int:
        """Return the process group for another process of the command; 0: one of its own."""
        return self.group if self.group and any(_group(pid) == self.group for pid in self.processes) else 0

    @staticmethod
    def is_in_own_group(pid: int) -> bool:
        """Return whether a process is in the process group of ftrun."""
        return _group(pid) == os.getpgrp()

    def is_below(self, pid: int, local_rank: int) -> bool:
        """Return whether a process is the process of this rank, or descends from it."""
        for _ in range(ANCESTORS):
            if pid in self.processes:
                return self.processes[pid] == local_rank
            found = procfs.stat(pid)
            if found is None or found.parent <= 1:
                return False
            pid = found.parent
        return False

    def reaped(self, pid: int) -> int:
        """A process of the command was reaped; return its local rank."""
        local_rank = self.processes.pop(pid)
        self.group = self.group if self.processes else None
        return local_rank

    def replaced(self, old: int, new: int) -> None:
        """Another process was forked in place of one that has ended, or is about to, before it became the command."""
        self.processes = {new if pid == old else pid: local_rank for pid, local_rank in self.processes.items()}
        self.group = self.joinable_group() or new

    def include(self, pid: int) -> None:
        """A process that was excluded becomes a part of the command."""
        self._excluded.pop(pid, None)

    def exclude(self, pid: int) -> None:
        """Exclude a helper and its descendants from the command's tree."""
        if found := procfs.stat(pid):
            self._excluded[found.pid] = found.start

    def forget(self, pid: int) -> None:
        """A child was reaped: if it was excluded, nothing has to be known of it any more."""
        self._excluded.pop(pid, None)

    def _is_excluded(self, process: Stat) -> bool:
        return self._excluded.get(process.pid) == process.start

    def members(self, listings: int = COMPLETE) -> list[Stat]:
        """Return all living members, orphans included: as PID 1 or as subreaper, ftrun is their parent.  `listings`: as
        in `procfs.all_processes`."""
        return self._below_roots(self._is_root, listings)

    def rank_members(self, local_rank: int, listings: int = COMPLETE) -> list[Stat]:
        """Return the living members that belong to this rank: the descendants of its process, and orphans that were
        started with its number in their environment."""
        return self._below_roots(partial(self._is_root_of, local_rank), listings)

    def _below_roots(self, is_root: Callable[[Stat], bool], listings: int) -> list[Stat]:
        """Return the living members at and below these children of ftrun.

        What has ended is reaped first: a storm of forks leaves thousands of zombies, and to read them all takes longer
        than to read what lives.
        """
        for pid in procfs.children(self._pid):
            self._reap(pid)
        below: dict[int, list[Stat]] = {}
        for process in procfs.all_processes(listings):
            below.setdefault(process.parent, []).append(process)
        listed = {s.pid for s in below.get(self._pid, ())}
        unlisted = map(procfs.child, (pid for pid in procfs.children(self._pid) if pid not in listed))
        below.setdefault(self._pid, []).extend(s for s in unlisted if s is not None)
        if self._pid == 1:
            self._foreign_sessions |= {s.session for s in below.get(0, ()) if s.pid != 1}
        children = [s for s in below.get(self._pid, ()) if not s.ended]
        roots = {s.pid for s in children if is_root(s)}
        if self._pid == 1:
            entered = [s for s in below.get(0, ()) if s.pid != 1]
            self._continue_others(_descend([*entered, *(s for s in children if s.pid not in roots)], below))
        members = _descend([s for s in children if s.pid in roots], below)
        return [process for process in members if not process.ended]

    def _continue_others(self, others: Sequence[Stat]) -> None:
        """Continue what `_stop_all` has stopped although it is not the command's, except what was stopped before."""
        if self._all_stopped:
            _send([s for s in others if (s.pid, s.start) not in self._stopped_before], signal.SIGCONT)
        else:
            self._stopped_before = {(s.pid, s.start) for s in others if s.state == "T"}

    def _is_root(self, process: Stat) -> bool:
        """Whether a child of ftrun is a member."""
        return not self._is_excluded(process) and not self._foreign(process)

    def _is_root_of(self, local_rank: int, process: Stat) -> bool:
        """Whether a child of ftrun belongs to this rank."""
        if not self._is_root(process):
            return False
        if process.pid in self.processes:
            return self.processes[process.pid] == local_rank
        environment = procfs.environment(process.pid)
        return self._marker in environment and f"LOCAL_RANK={local_rank}".encode() in environment

    def has_ended(self, listed: bool = False) -> bool:
        """Return whether no process of the command is left, reaped or not, without a listing of /proc, which takes long
        where there are many processes.  `listed`: such a listing has found none; where the kernel has no list of
        children, that is needed."""
        pids = procfs.children(self._pid)
        if self.processes or not (pids or listed) or not self.is_empty(pids):
            return False
        self._asked.clear()
        self._spared.clear()
        return True

    def is_empty(self, pids: Sequence[int] | None = None) -> bool:
        """Return whether no process is left, by the kernel's list of ftrun's children (`pids`): a listing of /proc
        could miss a concurrent fork.

        Each member is a descendant of a child of ftrun, new children are put at the end of that list, and only reaping
        by ftrun removes one.  A zombie may have been alive when it was listed: it has to be reaped first.
        """
        children = map(procfs.stat, procfs.children(self._pid) if pids is None else pids)
        return all(s and not s.ended and (self._is_excluded(s) or self._foreign(s)) for s in children)

    def _foreign(self, process: Stat) -> bool:
        """Return whether an orphan that PID 1 adopted stems from a shell that was opened from outside.

        Its parent is dead, so its own properties decide: it has the marker; else it has the session of a shell from
        outside; else it has a complete environment without the marker.  A daemon may clear its environment, a shell
        does not.
        """
        if self._certain(process):
            return False
        return (
            process.session in self._foreign_sessions
            or process.group == 0
            or any(e.startswith(b"PATH=") for e in procfs.environment(process.pid))
        )

    def _certain(self, process: Stat) -> bool:
        """Return whether this child of ftrun stems from the command for certain, also without the sessions of shells
        from outside, which a listing finds."""
        if self._pid != 1 or process.pid in self.processes:
            return True
        if process.session == self._session and (self._session != 0 or process.group != 0):
            return True
        return self._marker in procfs.environment(process.pid)  # read last: it waits while the process forks

    def forward(self, number: int, control: JobControl) -> str | None:
        """Send a signal to the command, or to each rank, and to none of the processes that it has started: those of a
        data loader have no handler for it.  What the terminal sent to ftrun's whole group goes to the command's.

        Returns one line for the user if it cannot be delivered, once for each signal.
        """
        if self.group is None:
            return None
        if number == signal.SIGCONT:
            control.continued(self.group)
        # While none of the command's processes is in the group, its number may belong to others.
        from_terminal = control.may_be_from_terminal(number)
        grouped = [pid for pid in self.processes if _group(pid) == self.group] if from_terminal else []
        targets = [-self.group] if grouped else []  # kill(2): a negative number is a group
        for target in (*targets, *(pid for pid in self.processes if pid not in grouped)):
            try:
                os.kill(target, number)
            except PermissionError:
                return self._refusal(number, abs(target))
            except OSError:
                pass  # it has just ended
        return None

    def _refusal(self, number: int, pid: int) -> str | None:
        """The line for the user about a signal that ftrun may not send to this process."""
        if number in self._not_forwarded:
            return None
        self._not_forwarded.add(number)
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        found = procfs.stat(pid)
        target = procfs.describe_with_user(found) if found else "the command"
        return f"{name} cannot be forwarded to {target}: ftrun has no permission to signal it (CAP_KILL)"

    def is_not_permitted(self, process: Stat) -> bool:
        """Return whether ftrun was not permitted to send the last tree-wide signal to this process."""
        return (process.pid, process.start) in self._refused

    def beyond_reach(self, members: Sequence[Stat]) -> bool:
        """Return whether these living members are all that is left, and ftrun may signal none of them."""
        left = {member.pid for member in members}
        return all(map(self.is_not_permitted, members)) and self.processes.keys() <= left

    def terminate(self) -> list[Stat]:
        """Send SIGTERM to all members, and SIGCONT so that stopped ones can act on it.  What a rank left gets no second
        SIGTERM: it may be handling the first."""
        members = self.members()
        self._refused = _send([s for s in members if (s.pid, s.start) not in self._asked], signal.SIGTERM)
        self._asked.clear()
        _send(members, signal.SIGCONT)
        return members

    def terminate_orphans(self) -> list[Stat]:
        """Send SIGTERM and SIGCONT to the members whose parent has ended, except those that have got SIGTERM, and those
        to which another member still writes: to be called until no member is left.  Returns all members."""
        members = self.members()
        orphans = [s for s in members if s.parent == self._pid]
        self._spare_readers(orphans, members, time.monotonic() + DRAINING)
        orphans = [s for s in orphans if (s.pid, s.start) not in self._asked and not self._is_spared(s)]
        self._refused |= _send(orphans, signal.SIGTERM)
        _send(orphans, signal.SIGCONT)
        self._asked |= {(s.pid, s.start) for s in orphans}
        return members

    def _spare_readers(self, orphans: list[Stat], members: list[Stat], until: float) -> None:
        """Spare the orphans that read what another orphan or its descendants write, like `tee` behind training: SIGTERM
        would only kill them, and the writer with them (SIGPIPE), while they end by themselves at the end of the file.
        One that handles SIGTERM gets it, and so do all if they wait for each other.  Only standard descriptors are
        read, so that it stays cheap."""
        pipes = {s.pid: pipe for s in orphans if (pipe := procfs.pipe(s.pid, 0)) is not None}
        if not pipes:
            return
        above = {s.pid: s.parent for s in members}
        writers: dict[str | None, set[int]] = {}
        for pid in above:
            root = pid
            while above.get(root, self._pid) != self._pid:
                root = above[root]
            for fd in (1, 2):
                writers.setdefault(procfs.pipe(pid, fd), set()).add(root)
        readers = [s for s in orphans if writers.get(pipes.get(s.pid, ""), set()) - {s.pid}]
        if len(readers) < len(orphans):
            self._spared |= {(s.pid, s.start): until for s in readers if not procfs.handles(s.pid, signal.SIGTERM)}

    def _is_spared(self, process: Stat) -> bool:
        return time.monotonic() < self._spared.get((process.pid, process.start), 0.0)

    def terminate_leftovers(self, members: Sequence[Stat]) -> None:
        """Send SIGTERM and SIGCONT to these members alone, before the whole tree is ended."""
        refused = _send(members, signal.SIGTERM)
        self._asked |= {(s.pid, s.start) for s in members} - refused
        _send(members, signal.SIGCONT)

    def kill(self) -> Killed:
        """Send SIGKILL to all members; if they could not be stopped first, it has to be called again."""
        self._asked.clear()
        self._spared.clear()
        killed = kill(self.members, self._walk(self._is_root), self._stop_all)
        self._refused, self._all_stopped = killed.refused, False
        return killed

    def kill_groups(self) -> None:
        """Send SIGKILL to the process groups of ftrun's children, when no listing of /proc is possible."""
        self._signal_groups(signal.SIGKILL)

    def kill_rank(self, local_rank: int) -> Killed:
        """Send SIGKILL to all members that belong to this rank, as `kill` does to the tree."""
        return kill(partial(self.rank_members, local_rank), self._walk(partial(self._is_root_of, local_rank)))

    def _walk(self, is_root: Callable[[Stat], bool]) -> Callable[[set[int]], Iterable[Stat | None]]:
        return partial(walk, lambda process: self._certain(process) and is_root(process), reap=self._reap)

    def _stop_all(self) -> bool:
        """Stop as many members as possible by a few system calls, during which none of them can fork.  Return whether
        these were all.

        As PID 1: all processes of the namespace.  The helpers go on at once, and what else is not the command's after
        the next listing.  Otherwise: the process groups of ftrun's children.
        """
        if self._pid != 1:
            self._signal_groups(signal.SIGSTOP)
            return False
        self._all_stopped = True
        _signal(-1, signal.SIGSTOP)
        for pid in self._excluded:
            _signal(pid, signal.SIGCONT)
        return True

    def _signal_groups(self, number: int) -> None:
        """Send a signal to the process groups of ftrun's children but its helpers."""
        children = {*procfs.children(self._pid), *self.processes}
        for group in {*map(_group, children)} - {os.getpgrp(), *map(_group, self._excluded)}:
            if group is not None and group > 1:
                _signal(-group, number)

    def _reap(self, pid: int) -> bool:
        """Reap this child of ftrun if it has ended and nobody waits for it.  Return whether it was reaped."""
        return pid not in self.processes and pid not in self._excluded and reaper.discard(pid)


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def _signal(target: int, number: int) -> None:
    """Send a signal to a process, a group or all, as kill(2), if there is such a one that ftrun may signal."""
    with suppress(OSError):
        os.kill(target, number)


def _descend(roots: list[Stat], below: dict[int, list[Stat]]) -> list[Stat]:
    """Return these processes and all their descendants.  A pid that is used again while the processes are listed may
    make a circle of them."""
    found: dict[int, Stat] = {}
    while roots:
        process = roots.pop()
        if process.pid not in found:
            found[process.pid] = process
            roots += below.get(process.pid, ())
    return [*found.values()]


def _send(processes: Iterable[Stat], number: int) -> set[tuple[int, int]]:
    """Send a signal to all; return those that ftrun may not signal, by pid and start time."""
    refused = set()
    for process in processes:
        try:
            os.kill(process.pid, number)
        except PermissionError:
            refused.add((process.pid, process.start))
        except OSError:
            pass  # ended meanwhile
    return refused


def kill(
    list_members: Callable[[int], list[Stat]],
    walk_members: Callable[[set[int]], Iterable[Stat | None]] = lambda known: (),
    stop_all: Callable[[], bool] | None = None,
) -> Killed:
    """Stop processes until a listing shows no new one, since a stopped tree cannot fork; then send SIGKILL to all.

    `list_members` gets a number of listings, as in `procfs.all_processes`.  A complete one of a tree that forks all the
    time may take so long on a busy machine that the tree fills the node meanwhile: it comes only after a single listing
    has shown no new process.  Processes that live for milliseconds, each the successor of another, are gone before
    even a single listing has been read to its end.  So each process that `walk_members` yields, which is `walk` for
    these members, is stopped before the next one is read.

    A storm of forks may leave this process a hundredth of a processor, so that it never catches up.  So `stop_all` is
    called if there are new processes after `STORM`; it returns whether none is left that could fork.  Otherwise the
    search ends after `SLICE`, so that the caller can handle what has happened meanwhile, and reap.
    """
    frozen: dict[tuple[int, int], Stat] = {}
    known: set[int] = set()
    now = time.monotonic()
    until, storm = now + SLICE, now + STORM

    def stop(processes: Iterable[Stat | None], until: float = NEVER) -> bool:
        """Stop those that live.  Return whether there was any process."""
        any_found = False
        for process in processes:
            any_found = True
            if process is not None and not process.ended:
                _send([process], signal.SIGSTOP)
                frozen[process.pid, process.start] = process
                known.add(process.pid)
            if time.monotonic() >= until:
                break
        return any_found

    def not_frozen(listings: int) -> list[Stat]:
        return [s for s in list_members(listings) if (s.pid, s.start) not in frozen]

    all_stopped, least = False, 2  # rounds: the second one can show that there is no new process
    while not all_stopped and (least > 0 or time.monotonic() < until):
        least -= 1
        limit = storm if stop_all else until
        while stop(walk_members(known), limit) and time.monotonic() < limit:
            pass
        if stop_all is not None and time.monotonic() >= storm:
            least = LAST_ROUNDS if stop_all() else 2
            stop_all = None
            continue
        all_stopped = not stop(not_frozen(1)) and not stop(not_frozen(COMPLETE))
    refused = _send(frozen.values(), signal.SIGKILL)
    return Killed(list(frozen.values()), refused, all_stopped)


def walk(
    is_root: Callable[[Stat], bool], known: set[int], reap: Callable[[int], bool] = lambda pid: False
) -> Iterator[Stat | None]:
    """Yield the children of this process that are roots, and their descendants, by the kernel's lists of children: each
    as soon as it is read, and before its own children are, so that one that is stopped at once has no more of them.

    Children of threads other than the main one are missed.  Processes that have ended are yielded, too, and None for
    each that `reap` has reaped: one that has just ended may have left a successor, so that another walk is worth while.
    Pids in `known` are left out, and each pid that has been read is added to it.  The caller keeps it only for as long
    as nothing else is reaped: a pid that is used again then belongs to a process that a listing shows.
    """
    me, reaped = os.getpid(), 0
    for root in reversed(procfs.children(me)):  # the newest is the likeliest to live
        if root not in known and reap(root):
            yield None
            if (reaped := reaped + 1) == MANY:
                return  # meanwhile there are newer ones
            continue
        below = [(root, me)]
        while below:
            pid, parent = below.pop()
            process = None if pid in known else procfs.stat(pid)
            if process is None or process.parent not in (parent, me):
                continue
            known.add(pid)
            if pid == root and not is_root(process):
                continue
            yield process
            below += [(child, pid) for child in procfs.children(pid)]


# --- the end of the tree, step by step --------------------------------------------------------------------------------


class TreeKiller:
    """`awaited`: members that the last listing showed and that were not reaped since.  The next look is due at
    `recheck_at`: at once when the last of them was reaped.  `dead`: the pids that got SIGKILL in the attempt that has
    ended."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._killed: set[int] = set()
        self._in_turn = False  # each process gets SIGTERM once its parent has ended
        self.awaited: set[int] = set()
        self.dead: set[int] = set()
        self.recheck_at = 0.0

    def perform(self, effect: do.Terminate | do.Kill | do.Inspect) -> list[ev.Event]:
        """Do one step towards the end of the tree.  TreeEnded may be among its results at once."""
        match effect:
            case do.Terminate(in_turn):
                self._in_turn = in_turn
                if self._tree.has_ended():
                    return self._ended()
                return self._evaluate(self._tree.terminate_orphans() if in_turn else self._tree.terminate())
            case do.Kill():
                return self.kill()
            case do.Inspect():
                return self._inspect()

    def kill(self) -> list[ev.Event]:
        if self._tree.has_ended():
            return self._ended()
        killed = self._tree.kill()
        self._killed |= {member.pid for member in killed.members if not self._tree.is_not_permitted(member)}
        events = self._evaluate(killed.members)
        if not killed.all_stopped:
            self.recheck_at = 0.0  # as soon as what has ended is reaped
        return events

    def check(self) -> list[ev.Event]:
        if self._tree.has_ended():
            return self._ended()
        return self._evaluate(self._tree.terminate_orphans() if self._in_turn else self._tree.members())

    def reaped(self, pid: int) -> None:
        """A process was reaped.  After the last one that is awaited, nothing has to be waited for any more."""
        if pid in self.awaited:
            self.awaited.remove(pid)
            if not self.awaited:
                self.recheck_at = 0.0

    def _inspect(self) -> list[ev.Event]:
        """Name the processes that survived SIGKILL; TreeEnded if none is left after all."""
        members = self._tree.members()
        if not members:
            return [ev.TreeEnded(time.monotonic(), len(self._killed))]
        return [self._survived(members)]

    def _survived(self, members: list[Stat]) -> ev.Event:
        refused = self._tree.beyond_reach(members)
        describe = procfs.describe_with_user if refused else procfs.describe
        names = tuple(describe(member) for member in members[:MAX_NAMED])
        return ev.ProcessesSurvived(time.monotonic(), names, refused, bool(self._tree.processes), len(self._killed))

    def _evaluate(self, members: list[Stat]) -> list[ev.Event]:
        """Return no event while waiting can help; then TreeEnded with how many processes needed SIGKILL, or
        ProcessesSurvived if ftrun may signal none of the remaining ones."""
        self.awaited = {member.pid for member in members}
        self.recheck_at = time.monotonic() + RECHECK + len(members) * RECHECK_EACH
        if members and self._tree.beyond_reach(members):
            return [self._survived(members)]
        return [] if members or not self._tree.has_ended(listed=True) else self._ended()

    def _ended(self) -> list[ev.Event]:
        self.awaited = set()
        self.dead, self._killed, self._in_turn = self._killed, set(), False
        return [ev.TreeEnded(time.monotonic(), len(self.dead))]
