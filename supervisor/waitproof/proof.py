"""The proof that a rank will never move again.  Pure.

A thread is dead if it is blocked, and everything that may end its wait is a thread that is dead.  The dead threads are
what is left when all others are found: a thread may run if it runs, if anything about it is unknown, or if a thread of
a process that may end its wait, or end its process (families.py), may run.  A rank is convicted if the main thread of
its process is dead; without ranks, if the main threads of all processes are.

Both observations must agree: no dead thread has run in between, but for threads that are known to wait again and again
(recognized.py), and processes that come and go count as at work (short_lived.py).  Then each dead thread was blocked
for the whole time between the observations, in which everything that the proof uses was read.  No timeout is needed: a
job for which this proof holds stays as it is for ever, unless somebody outside kills or debugs it.

"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from waitproof import families, handlers, recognized
from waitproof.connections import Connections
from waitproof.describe import Describer
from waitproof.group_waits import Blocked, GroupWaits, Link
from waitproof.libraries import NOTHING, Code
from waitproof.recognized import Gives
from waitproof.short_lived import ENDED, STARTED, STARTS, Turnover, turnover
from waitproof.stacks import Stack
from waitproof.wakers import Reader, Wakers
from waitproof.world import ThreadId, WaitingProcess, WaitingThread, World

UNSTEADY: Final = "has threads beside it that have started or ended"
POLLING: Final = 0.03  # of a core, that a thread which waits again and again may use


class Facts(NamedTuple):
    """`root`: the pid of the command.  `ranks`: the ranks of the job by pid, without those that have ended on purpose.
    `still`: the pids of those that do not move, the longest first.
    `stepped`: the pids of those of which a step has ended.  `ended`: the ranks that have ended on purpose."""

    root: int
    ranks: Mapping[int, int] = {}
    still: tuple[int, ...] = ()
    stepped: frozenset[int] = frozenset()
    ended: frozenset[int] = frozenset()


class Proof(NamedTuple):
    """`open_reason`: why the wait may still end, or None: it never does.  `mechanism`: a sentence that says what
    waits for what.  Closed: `fingerprint` is equal for two proofs of the same deadlock, between which no thread has
    run; `rank`, `pid`: where the deadlock is.  `followed`: all threads whose waits were.  `in_group`: only another
    member of the group may end the wait; `group` is what it has to know for that, if it is wanted."""

    open_reason: str | None
    mechanism: str = ""
    fingerprint: str = ""
    rank: int | None = None
    pid: int = 0
    followed: tuple[ThreadId, ...] = ()
    group: GroupWaits | None = None
    in_group: bool = False


class Walk:
    """One walk over the waits of two observations: which threads may run, and which never do again.

    `stacks`: read between the two observations.  `presumes_closed`: what only a stack can show is taken for closed, and
    nothing outside the job was looked at: then only an open result holds.  `in_group`: other members of the group are
    expected to say what their ends of connections do.  `code`: whose code the threads of the processes with a stack
    run.

    `job`: as above.  `world`: the second observation.  `wakers`: of all threads.  `reasons`: the threads that may run;
    for each the one that may wake it, or None if it may run by itself.  `changed`: why the two observations are not
    about the same threads, or empty.  `describe` makes the sentences.
    """

    def __init__(
        self,
        before: World,
        after: World,
        stacks: Mapping[int, Stack],
        job: Facts,
        presumes_closed: bool = False,
        in_group: bool = False,
        code: Code = NOTHING,
    ) -> None:
        seen = turnover(before, after, {job.root, *job.ranks, *job.still})
        self.world = after = seen.world
        self.job, self._in_group = job, in_group
        enders = families.enders(after, job.root, {*job.ranks, *job.still})
        reader = Reader(after, stacks, enders, presumes_closed, in_group, code, job.stepped, job.ended)
        self.changed = seen.unknown or _debugged(after)
        unsteady = _unsteady(before, after)
        earlier = {(pid, thread.tid): thread for pid, process in before.processes.items() for thread in process.threads}
        seconds = after.at - before.at
        wakers = {
            (pid, thread.tid): _checked(reader.of(pid, thread), earlier.get((pid, thread.tid)), thread, seconds)
            for pid, process in after.processes.items()
            for thread in process.threads
        }
        wakers |= _opened_by_turnover(seen, wakers)
        wakers |= {
            node: Wakers(UNSTEADY) for node, one in wakers.items() if node[0] in unsteady and not one.open_reason
        }
        wakers |= _opened_by_handlers(wakers)
        for pid, above in families.trials(after, job.ranks).items():
            working = {one for one in above for t in after.processes[one].threads if wakers[one, t.tid].open_reason}
            wakers |= {(pid, t.tid): wakers[pid, t.tid].also(working) for t in after.processes[pid].threads}
        for pid, others in families.pausers(after, job.ranks).items():
            wakers |= {(pid, t.tid): wakers[pid, t.tid].also(others) for t in after.processes[pid].threads}
        gives = {
            (pid, t.tid): frozenset(Gives) if pid in seen.started | seen.ended | unsteady else reader.gives(pid, t)
            for pid, process in after.processes.items()
            for t in process.threads
        }
        self.wakers, self._gives = wakers, gives
        self.reasons, self._running = _may_run(after, wakers, gives)
        # Without stacks a side thread may turn out to give nothing; what it waits for is to be read, though.
        self._followed = dict.fromkeys(gives, frozenset(Gives)) if presumes_closed else gives
        self.describe = Describer(after, stacks, job.ranks, wakers)

    def proof(self) -> Proof:
        """The proof for the first rank of `job.still` that is convicted; else why the first one may still go on."""
        job, after, wakers, changed, describe = self.job, self.world, self.wakers, self.changed, self.describe
        asked = bool(job.ranks or job.still)
        suspects = [(pid,) for pid in job.still if pid in after.processes] if asked else [self._working()]
        stopped = _stopped_by_someone(after, job)
        first: Proof | None = None
        for pids in suspects:
            living = next((pid for pid in pids if (pid, pid) in self.reasons or (pid, pid) not in wakers), None)
            group = _closure(pids if living is None else (living,), wakers, self._followed)
            followed = tuple(group)
            if living is not None or changed or not pids:
                who = living if living is not None else (*pids, job.root)[0]
                sentence = describe.what_it_waits_for(who, self.reasons)
                mechanism = f"{sentence}; {changed}" if changed and changed not in sentence else sentence
                first = first or Proof(changed or sentence, mechanism, followed=followed)
                continue
            root, text = describe.deadlock(pids[0], group)
            if stopped:
                first = first or Proof(stopped, text, followed=followed)
                continue
            if any(wakers[node].links or wakers[node].listens for node in group):
                if first is None or not first.in_group:
                    sentence = describe.what_it_waits_for(pids[0], self.reasons)
                    reason = f"{sentence}, for other members of the group"
                    first = Proof(reason, sentence, followed=followed, in_group=True)
                continue
            fingerprint = _fingerprint(after, group, wakers)
            return Proof(None, text, fingerprint, job.ranks.get(root), root, followed)
        first = first or Proof("no rank of the job is known to this process tree")
        if self._in_group:
            seen = _for_the_group(after, job, wakers, self._running, describe, changed or stopped)
            why = "" if first.in_group else first.open_reason or ""
            first = first._replace(group=seen._replace(why=seen.why or why))
        return first

    def _working(self) -> tuple[int, ...]:
        """All processes, but for the programs that only report what others do."""
        return tuple(pid for pid, one in self.world.processes.items() if not recognized.reports_alone(one.program))

    def sentence(self, pid: int) -> str:
        """By which mechanism the main thread of this process stands still."""
        node = (pid, pid)
        if pid not in self.world.processes:
            return f"{self.describe.who(pid)} has ended"
        text, path = self.describe.explain(pid, self.reasons)
        if node in self.reasons or node not in self.wakers or self.changed:
            return text
        group = _closure([pid], self.wakers, self._followed)
        # In a collective it may wait for ranks with which no connection shows.
        return self.describe.deadlock(pid, group)[1] if {(one, one) for one in path} <= {*group} else text

    def why_open(self, node: ThreadId) -> str:
        """Why this thread may run again; empty if it never does."""
        if (reason := self.wakers[node].open_reason) is not None:
            return reason
        return self.describe.may_wait_for(node, self.reasons) if node in self.reasons else ""


def prove(
    before: World,
    after: World,
    stacks: Mapping[int, Stack],
    job: Facts,
    presumes_closed: bool = False,
    in_group: bool = False,
    code: Code = NOTHING,
) -> Proof:
    """The proof of one walk."""
    return Walk(before, after, stacks, job, presumes_closed, in_group, code).proof()


def _for_the_group(
    world: World,
    job: Facts,
    wakers: Mapping[ThreadId, Wakers],
    may_run: Collection[int],
    describe: Describer,
    why: str,
) -> GroupWaits:
    """What the other members have to know.  `may_run`: the processes of which a thread may run that gives others what
    they wait for.  `why`: why these observations show nothing, or empty.

    Processes and connections are numbered by what they are, not in the order in which they were read: the same waits
    have the same fingerprint in every look, and in the investigation that confirms them."""
    dead = sorted(pid for pid in world.processes if pid not in may_run) if not why else []
    links = sorted(Connections(world).links(), key=lambda one: (one[1].local, one[1].remote, one[0])) if dead else []
    place, number = {pid: n for n, pid in enumerate(dead)}, {key: n for n, (key, _) in enumerate(links)}
    threads = {pid: [wakers[pid, t.tid] for t in world.processes[pid].threads] for pid in dead}
    ranks = ranks_by_environment(world, job)
    blocked = [
        Blocked(
            pid,
            ranks.get(pid),
            *describe.wait(pid),
            needs=tuple(sorted({place[other] for one in threads[pid] for other in one.pids if other in place} - {n})),
            links=tuple(sorted({number[key] for one in threads[pid] for key in one.links})),
            listens=any(one.listens for one in threads[pid]),
        )
        for n, pid in enumerate(dead)
    ]
    shown = []
    for key, found in links:
        holders = world.holders.get(key, {})
        held = holders.keys() <= place.keys() and key not in world.outside and "descriptor" not in world.doubts
        owners = tuple(sorted(place[pid] for pid in holders if pid in place))
        closed = held and not found.unsent and found.moved is not None
        launchers = held and all(describe.launches(pid) for pid in holders)
        shown.append(Link(found.local, found.remote, owners, found.moved or 0, closed, launchers))
    sizes = {world.processes[pid].size for pid in ranks}
    nodes = [(pid, thread.tid) for pid in dead for thread in world.processes[pid].threads]
    # What leads from a launcher to a rank is in the fingerprint with the end of that rank.
    exact = [link._replace(moved=0, closed=True) if link.launchers else link for link in shown]
    fingerprint = _fingerprint(world, nodes, wakers, repr(exact))
    size = sizes.pop() if len(sizes) == 1 else None
    return GroupWaits(fingerprint, tuple(blocked), tuple(shown), size, why)


def ranks_by_environment(world: World, job: Facts) -> dict[int, int]:
    """The ranks of this member by pid: those with heartbeats, and others that have the environment of a rank.  It is
    inherited: by the workers of a rank and, where the scheduler has set RANK to the number of the node, by torchrun."""
    found = {pid: rank for pid, rank in job.ranks.items() if pid in world.processes}
    sizes, known = {world.processes[pid].size for pid in found}, frozenset(found.values())
    for pid, process in world.processes.items():
        parent = world.processes.get(process.parent)
        inherited = parent is not None and (parent.rank, parent.size) == (process.rank, process.size)
        if process.rank is None or process.rank in known or inherited or pid in found:
            continue
        if not sizes or process.size in sizes:
            found[pid] = process.rank
    return found


# --- the two observations ---------------------------------------------------------------------------------------------


def _debugged(after: World) -> str:
    """Which process is being debugged, since that shows nothing; empty: none."""
    traced = [pid for pid, process in after.processes.items() if process.interrupts and process.interrupts.tracer]
    return f"process {traced[0]} is being debugged" if traced else ""


def _unsteady(before: World, after: World) -> set[int]:
    """The processes of which threads have started or ended, so that any thread of theirs may have done anything."""
    both = {
        pid: (before.processes[pid], after.processes[pid]) for pid in before.processes.keys() & after.processes.keys()
    }
    known = {pid: pair for pid, pair in both.items() if not (pair[0].problem or pair[1].problem)}
    return {pid for pid, (then, now) in known.items() if then.start == now.start and _threads(then) != _threads(now)}


def _opened_by_turnover(seen: Turnover, wakers: Mapping[ThreadId, Wakers]) -> dict[ThreadId, Wakers]:
    """The threads of the processes that come and go, and of those that start them."""
    why = dict.fromkeys(seen.starters, STARTS) | dict.fromkeys(seen.started, STARTED) | dict.fromkeys(seen.ended, ENDED)
    return {
        node: Wakers(why[node[0]])
        for node, found in wakers.items()
        if node[0] in why and (found.open_reason is None or node[0] in seen.ended)
    }


def _threads(process: WaitingProcess) -> set[ThreadId]:
    return {(thread.tid, thread.start) for thread in process.threads}


def _checked(found: Wakers, then: WaitingThread | None, thread: WaitingThread, seconds: float) -> Wakers:
    """`found`, but open if the thread was not in this wait all the time.  `then`: the thread in the first
    observation."""
    if found.open_reason is not None:
        return found
    if then is None or then.start != thread.start:
        return found._replace(open_reason=STARTED)
    if found.polls:
        same = then.call == thread.call and (then.fds, then.at, then.io) == (thread.fds, thread.at, thread.io)
        quiet = thread.cpu - then.cpu <= POLLING * max(seconds, 0.1)
        return found if same and quiet else found._replace(open_reason="does some work")
    if thread.runs is None or (then.runs, then.line, then.state) != (thread.runs, thread.line, thread.state):
        return found._replace(open_reason="has run a moment ago")
    return found


def _stopped_by_someone(world: World, job: Facts) -> str:
    """Why somebody may have stopped the job on purpose: all ranks, or the command, are stopped; else empty."""
    pids = [pid for pid in job.ranks if pid in world.processes] or [job.root]
    stopped = [all(t.is_stopped for t in world.processes[pid].threads) for pid in pids if pid in world.processes]
    return "the job is stopped by SIGSTOP, and whoever stopped it may continue it" if stopped and all(stopped) else ""


# --- the graph --------------------------------------------------------------------------------------------------------


def _may_run(
    world: World, wakers: Mapping[ThreadId, Wakers], gives: Mapping[ThreadId, frozenset[Gives]]
) -> tuple[dict[ThreadId, ThreadId | None], set[int]]:
    """The threads that may run: for each the one that may wake it, or None if it may run by itself.  And the processes
    of which one of these may end a wait of another process.

    A process whose threads are not known is represented by thread 0.
    """
    reasons: dict[ThreadId, ThreadId | None] = {}
    waiting: dict[tuple[int, Gives], list[ThreadId]] = {}
    for node, found in wakers.items():
        for pid in found.pids:
            waiting.setdefault((pid, found.own if pid == node[0] else found.others), []).append(node)
        if found.open_reason is not None:
            reasons[node] = None
    for pid, process in world.processes.items():
        if process.problem or not process.threads:
            reasons[pid, 0] = None
    fresh = list(reasons)
    seen = set[tuple[int, Gives]]()
    for node in fresh:
        for kind in gives.get(node, frozenset(Gives)):
            if (node[0], kind) in seen:
                continue
            seen.add((node[0], kind))
            for other in waiting.get((node[0], kind), ()):
                if other not in reasons:
                    reasons[other] = node
                    fresh.append(other)
    return reasons, {pid for pid, kind in seen if kind is Gives.CONNECTION}


def _opened_by_handlers(wakers: Mapping[ThreadId, Wakers]) -> dict[ThreadId, Wakers]:
    """The main threads that wait for others which wait for their process: a handler may give what these need."""
    awaited: dict[int, set[int]] = {}
    for (pid, _), found in wakers.items():
        awaited.setdefault(pid, set()).update(found.awaited)
    opened = {}
    for node, found in wakers.items():
        if not found.handler or found.open_reason is not None:
            continue
        waiting, seen = list(found.awaited), set[int]()
        for pid in waiting:
            fresh = awaited.get(pid, set()) - seen
            seen |= fresh
            waiting += fresh
        if node[0] in seen:
            opened[node] = found._replace(open_reason=handlers.woken(found.handler))
    return opened


def _closure(
    pids: Iterable[int], wakers: Mapping[ThreadId, Wakers], gives: Mapping[ThreadId, frozenset[Gives]]
) -> list[ThreadId]:
    """All threads on which the main threads of these processes depend, these first."""
    nodes = sorted(wakers, key=lambda node: (node[1] != node[0], node))
    of: dict[int, dict[frozenset[Gives], list[ThreadId]]] = {}
    for node in nodes:
        of.setdefault(node[0], {}).setdefault(gives[node], []).append(node)
    found = dict.fromkeys((pid, pid) for pid in pids if (pid, pid) in wakers)
    waiting, seen = list(found), set[tuple[int, Gives]]()
    followed = set[tuple[int, int]]()  # by process and its wakers: alike threads share these
    for node in waiting:
        if (alike := (node[0], id(wakers[node]))) in followed:
            continue
        followed.add(alike)
        own, others = wakers[node].own, wakers[node].others
        for place in sorted({(pid, own if pid == node[0] else others) for pid in wakers[node].pids} - seen, key=str):
            seen.add(place)
            giving = (nodes for given, nodes in of.get(place[0], {}).items() if place[1] in given)
            fresh = [one for nodes in giving for one in nodes if one not in found]
            found.update(dict.fromkeys(fresh))
            waiting += fresh
    return list(found)


def _fingerprint(world: World, group: Sequence[ThreadId], wakers: Mapping[ThreadId, Wakers], beside: str = "") -> str:
    threads = {(pid, thread.tid): thread for pid, p in world.processes.items() for thread in p.threads}
    lines = [beside] if beside else []
    for node in sorted(group):
        thread, start = threads[node], world.processes[node[0]].start
        call = thread.call.name if thread.call else ""
        exact = (call,) if wakers[node].polls else (thread.line, thread.runs, thread.state)
        lines.append(repr((node, start, thread.start, *exact)))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]
