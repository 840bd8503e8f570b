"""Which thread waits for which, for people: the nodes of the text and of the picture in a report.  Pure.

The graph has the main thread of each process, and its other threads that wait alike as one node.  It shows what was
observed; whether a wait can be ended is proved elsewhere.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from waitproof.changes import Change
from waitproof.connections import Connections, sockets_of
from waitproof.headline import LOCK, RUNS, Link, awaited_children, headline, process_link, thread_link
from waitproof.stacks import Thread
from waitproof.text import printable
from waitproof.world import WaitingThread, World

NODES: Final = 500  # in report.json
STARTS: Final = 60  # nodes from which a cycle is looked for
NAMED: Final = 4  # threads that are named in one node
SIDE: Final = 8  # different waits of the side threads of one process


class Node(NamedTuple):
    """A thread, or `size` threads of one process that wait alike.

    `who`: the rank or the process.  `thread`: the names of the threads.  `place`: where in the code, or empty.  `does`:
    what it does or waits for.  `ends`: what ends that wait without any thread of the job, or empty.  `wakers`: the
    places of the nodes in the graph that can end it.  `main`: it is the main thread.  `fails`, `awaits`: as in `Link`.
    """

    pid: int
    who: str
    thread: str
    place: str
    does: str
    ends: str = ""
    wakers: tuple[int, ...] = ()
    size: int = 1
    fails: bool = False
    main: bool = False
    awaits: str = "waits for"

    @property
    def name(self) -> str:
        return f"{self.who}, {self.thread}"

    @property
    def link(self) -> Link:
        return Link(self.who, self.does, self.place, self.awaits, self.fails, self.ends)


class WaitGraph(NamedTuple):
    """`nodes`: the suspect's main thread first, then what it waits for.  `cycle`: the places of nodes of which each
    waits for the next one, and the last for the first.  `more`: threads that are left out."""

    nodes: tuple[Node, ...] = ()
    cycle: tuple[int, ...] = ()
    more: int = 0


def mechanism(graph: WaitGraph) -> str:
    """The headline: the suspect, what it waits for, and what the last one does; empty for an empty graph."""
    nodes, chain = graph.nodes, _chain(graph)
    if not chain:
        return ""
    last = chain[-1]
    others = sum(nodes[place].size for place in nodes[last].wakers)
    if last in graph.cycle and others > 1:
        return headline([nodes[place].link for place in chain], ends=f", in a deadlock with {others} other threads")
    if last in graph.cycle:
        start = graph.cycle.index(last)
        circle = [nodes[place] for place in (*graph.cycle[start:], *graph.cycle[:start])]
        pids = {node.pid for node in circle}
        before = [nodes[place].link for place in chain if nodes[place].pid not in pids]
        return headline([*before, *_circle_links(circle)], len(before))
    links = [nodes[place].link for place in chain]
    if nodes[last].does == LOCK and not nodes[last].wakers:
        links[-1] = links[-1]._replace(does=f"{LOCK} that no thread can release")
    return headline(links)


def _chain(graph: WaitGraph) -> list[int]:
    """From the suspect along the main threads of other processes to the one that explains most: one that is stopped,
    computes, or waits for no further process."""
    chain: list[int] = []
    following: int | None = 0 if graph.nodes else None
    while following is not None and following not in chain:
        chain.append(following)
        node = graph.nodes[following]
        others = [end for end in node.wakers if graph.nodes[end].main and graph.nodes[end].pid != node.pid]
        following = min(others, key=lambda end: _interest(graph, end), default=None)
    return chain


def _interest(graph: WaitGraph, place: int) -> tuple[bool, bool, bool]:
    node = graph.nodes[place]
    return not node.fails, node.ends != RUNS, bool(node.wakers)


def _circle_links(circle: Sequence[Node]) -> list[Link]:
    """A thread is named by its process too, where the processes differ."""
    same = len({node.pid for node in circle}) == 1
    several_in_one = len({node.pid for node in circle}) < len(circle)
    links = []
    for number, node in enumerate(circle):
        last = number == len(circle) - 1
        thread = node.thread.replace("main thread", "the main thread")
        who = thread + (f" of {node.who}" if last or not same else "") if several_in_one else node.who
        links.append(Link(who, node.does, node.place))
    return links


# --- from the observation ---------------------------------------------------------------------------------------------


class _Group(NamedTuple):
    """Threads of one process that wait alike."""

    change: Change
    link: Link
    threads: tuple[WaitingThread, ...]
    names: tuple[str, ...]
    main: bool = False


def build(
    changes: Sequence[Change],
    world: World,
    suspect: int,
    ranks: Iterable[int],
    name: Callable[[Change], str],
    clean: Callable[[str], str] = printable,
) -> WaitGraph:
    """The graph of all processes that still exist, from the suspect on.  `ranks`: the pids of the ranks; `clean` makes
    each text fit to be shown."""
    living = {change.pid: change for change in changes if not change.gone or change.pid == suspect}
    among = frozenset(ranks)
    groups = [group for c in living.values() for group in _groups(c, world, name(c), len(among) < 2)]
    observed = _Observed(world, living, groups, among)
    ends = [observed.wakers(place) for place in range(len(groups))]
    start = next((n for n, group in enumerate(groups) if group.main and group.change.pid == suspect), 0)
    order = _order(ends, start)[:NODES]
    places = {place: number for number, place in enumerate(order)}
    wakers = ([places[end] for end in ends[old] if end in places] for old in order)
    nodes = tuple(_node(groups[old], found, clean) for old, found in zip(order, wakers, strict=True))
    known = (world.processes.get(pid) for pid in living)
    threads = sum(max(1, len(process.threads)) if process else 1 for process in known)
    return WaitGraph(nodes, find_cycle(nodes), threads - sum(node.size for node in nodes))


def _node(group: _Group, wakers: Sequence[int], clean: Callable[[str], str]) -> Node:
    link, count = group.link, max(1, len(group.threads))
    names = "main thread" if group.main else ", ".join(dict.fromkeys(group.names[:NAMED])) or "thread"
    if not group.main:
        names = f"thread {names}" if count == 1 else f"{count} threads ({names}{', ...' if count > NAMED else ''})"
    who, thread, place, does = (clean(t) for t in (link.who, names, link.place, link.does))
    return Node(
        group.change.pid,
        who,
        thread,
        place,
        does,
        link.ends,
        tuple(wakers),
        count,
        link.fails,
        group.main,
        link.awaits,
    )


def _groups(change: Change, world: World, who: str, alone: bool) -> list[_Group]:
    """The main thread, then the others by what they do, those with Python frames first."""
    process = world.processes.get(change.pid)
    threads = process.threads if process else ()
    main = process_link(change, world, who, alone)
    found = [_Group(change, main, threads[:1], (), True)]
    stacks = {thread.tid: thread for thread in change.stack.threads if thread.frames} if change.stack else {}
    alike: dict[Link, list[WaitingThread]] = {}
    for thread in threads[1:]:
        if stacks and not change.may_run_python(thread.tid):
            continue  # a thread pool or a poller, which serves those that are shown
        link = thread_link(thread, change.pid, stacks.get(thread.tid), world, who)
        alike.setdefault(link, []).append(thread)
    by_interest = sorted(alike.items(), key=lambda pair: not pair[0].place)
    for link, members in by_interest[:SIDE]:
        names = tuple(_thread_name(thread, stacks) for thread in members)
        found.append(_Group(change, link, tuple(members), names))
    if rest := [thread for _, members in by_interest[SIDE:] for thread in members]:
        found.append(_Group(change, Link(who, "wait for different things"), tuple(rest), ()))
    return found


def _thread_name(thread: WaitingThread, stacks: Mapping[int | None, Thread]) -> str:
    known = stacks.get(thread.tid)
    return (known.name if known and known.name else "") or str(thread.tid)


class _Observed:
    """Which groups can end the wait of another, as far as the observation shows it."""

    def __init__(
        self, world: World, living: Mapping[int, Change], groups: Sequence[_Group], ranks: frozenset[int]
    ) -> None:
        self._world, self._living, self._groups, self._ranks = world, living, groups, ranks
        self._connections = Connections(world)
        self._of: dict[int, list[int]] = {}
        for place, group in enumerate(groups):
            self._of.setdefault(group.change.pid, []).append(place)

    def wakers(self, place: int) -> list[int]:
        group = self._groups[place]
        pid, change = group.change.pid, group.change
        if group.link.fails or group.link.ends == RUNS:
            return []
        if group.main and change.is_in_collective:
            return self._mains(self._ranks - {pid}) or self._mains(self._connected(pid))
        if group.main and awaited_children(change):
            return self._mains(self._children(pid))
        thread = group.threads[0] if group.threads else None
        if thread is None or thread.call is None:
            return []
        match thread.call.kind:
            case "futex":
                sharing = self._world.holders.get(thread.shared, {}).keys() if thread.shared else ()
                return [*self._siblings(place), *self._mains(set(sharing) - {pid})]
            case "child":
                children = self._children(pid)
                return self._mains([thread.child] if thread.child in children else children)
            case "lock":
                return self._mains(self._world.locks.get(thread.lock, set()) - {pid})
            case "in" | "out" | "accept" | "poll" | "select" | "epoll":
                return self._holders(place, thread)
        return []

    def _children(self, pid: int) -> list[int]:
        return [change.pid for change in self._living.values() if change.seen.stat.parent == pid]

    def _connected(self, pid: int) -> set[int]:
        """The other processes of the job with which this one has connections."""
        ends = (self._connections.other_end(socket) for _, socket in sockets_of(self._world, [pid]))
        return {holder for end in ends if end for holder in self._world.holders.get(end, {})} - {pid}

    def _mains(self, pids: Iterable[int]) -> list[int]:
        return [self._of[pid][0] for pid in sorted(pids) if pid in self._of]

    def _siblings(self, place: int) -> list[int]:
        """The other threads of the process."""
        return [other for other in self._of[self._groups[place].change.pid] if other != place]

    def _holders(self, place: int, thread: WaitingThread) -> list[int]:
        """Those that have the other end of a descriptor for which the thread waits."""
        pid = self._groups[place].change.pid
        process = self._world.processes.get(pid)
        found: dict[int, None] = {}
        ends = [(process.fds.get(fd), mode) for fd, mode in thread.fds] if process else []
        if len(ends) == 1 and ends[0][0] is not None and ends[0][0].kind == "epoll" and process:
            ends = [(process.fds.get(fd), mode) for fd, mode in ends[0][0].members]
        for end, mode in ends:
            if end is None:
                continue
            key, needed = end.key, "w" if "r" in mode else "r"
            if end.kind == "pidfd":
                found |= dict.fromkeys(self._mains([end.pid]))
                continue
            if end.kind == "socket":
                socket = self._world.sockets.get(end.key)
                key, needed = (self._connections.other_end(socket) or "") if socket else "", "w"
            holders = {p for p, held in self._world.holders.get(key, {}).items() if needed in held}
            found |= dict.fromkeys(self._mains(holders - {pid}))
            found |= dict.fromkeys(self._siblings(place) if pid in holders else ())
        return list(found)


def _order(ends: Sequence[Sequence[int]], start: int) -> list[int]:
    """All places: `start`, then breadth first what it waits for, then the others."""
    if not ends:
        return []
    order, seen = [start], {start}
    for place in order:
        for end in ends[place]:
            if end not in seen:
                seen.add(end)
                order.append(end)
    return order + [place for place in range(len(ends)) if place not in seen]


def find_cycle(nodes: Sequence[Node]) -> tuple[int, ...]:
    """The shortest cycle of threads that wait for each other, through the first one that is in any.  Nothing else may
    end the wait of any thread for which they wait."""
    closed = _closed(nodes)
    for start in range(min(len(nodes), STARTS)):
        if not closed[start]:
            continue
        before, waiting = {start: start}, [start]
        for place in waiting:
            for end in nodes[place].wakers:
                if end == start:
                    return _path(before, start, place)
                if closed[end] and end not in before:
                    before[end] = place
                    waiting.append(end)
    return ()


def _closed(nodes: Sequence[Node]) -> list[bool]:
    """For each node, whether it waits, and only for others that wait."""
    closed, changed = [not node.ends and not node.fails for node in nodes], True
    while changed:
        changed = False
        for place, node in enumerate(nodes):
            if closed[place] and not all(closed[end] for end in node.wakers):
                closed[place], changed = False, True
    return closed


def _path(before: Mapping[int, int], start: int, last: int) -> tuple[int, ...]:
    path = [last]
    while path[-1] != start:
        path.append(before[path[-1]])
    return tuple(reversed(path))
