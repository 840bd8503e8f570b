"""Which thread waits for which, for people: the nodes of the text and of the picture in a report.  Pure.

The graph has the main thread of each process, and its other threads that wait alike as one node.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from waitproof import text
from waitproof.describe import COMPUTES
from waitproof.proof import Walk
from waitproof.text import printable
from waitproof.world import ThreadId

NODES: Final = 500  # in report.json
STARTS: Final = 60  # nodes from which a cycle is looked for
NAMED: Final = 4  # threads that are named in one node
SIDE: Final = 8  # different waits of the side threads of one process
RUNS: Final = "it runs"  # what ends the wait of a thread that does not wait


class GraphNode(NamedTuple):
    """A thread, or `size` threads of one process that wait alike.

    `who`: the rank or the process.  `thread`: the names of the threads.  `place`: where in the code, or empty.  `does`:
    what it does or waits for.  `ends`: why that may end by something that is no thread of the job, a predicate, or that
    it runs; empty: only the `wakers` can end it, which are places of nodes in the graph.  `fails`: it is itself what is
    wrong: it is stopped, or stuck in the kernel.  `main`: it is the main thread.
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

    @property
    def name(self) -> str:
        return f"{self.who}, {self.thread}"


class WaitGraph(NamedTuple):
    """`nodes`: the suspect's main thread first, then what it waits for.  `cycle`: the places of nodes of which each
    waits for the next one, and the last for the first.  `more`: threads that are left out."""

    nodes: tuple[GraphNode, ...] = ()
    cycle: tuple[int, ...] = ()
    more: int = 0


def build(walk: Walk, suspect: int, clean: Callable[[str], str] = printable) -> WaitGraph:
    """The graph of all processes, from the suspect on.  `clean` makes each text fit to be shown."""
    nodes, members = list[GraphNode](), list[tuple[ThreadId, ...]]()
    of: dict[int, list[int]] = {}
    for pid, process in walk.world.processes.items():
        for node, threads in _nodes(walk, pid, [(pid, thread.tid) for thread in process.threads]):
            of.setdefault(pid, []).append(len(nodes))
            who, thread, where, does = map(clean, (node.who, node.thread, node.place, node.does))
            nodes.append(node._replace(who=who, thread=thread, place=where, does=does))
            members.append(threads)
    ends = [_wakers(walk, place, nodes, members[place], of) for place in range(len(nodes))]
    start = next((n for n, node in enumerate(nodes) if node.main and node.pid == suspect), 0)
    order = _order(ends, start)[:NODES]
    places = {place: number for number, place in enumerate(order)}
    shown = tuple(nodes[old]._replace(wakers=tuple(places[end] for end in ends[old] if end in places)) for old in order)
    number = sum(max(1, len(process.threads)) for process in walk.world.processes.values())
    return WaitGraph(shown, find_cycle(shown), number - sum(node.size for node in shown))


def _nodes(walk: Walk, pid: int, threads: Sequence[ThreadId]) -> Iterable[tuple[GraphNode, tuple[ThreadId, ...]]]:
    """The main thread, then the others by what they do, those with Python frames first."""
    describe, who = walk.describe, walk.describe.who(pid)
    if not threads:
        problem = walk.world.processes[pid].problem
        yield (
            GraphNode(pid, who, "main thread", "", f"waits for something unknown: {problem}", "unknown", main=True),
            (),
        )
        return
    python = any(describe.location(*node) for node in threads)
    alike: dict[GraphNode, list[ThreadId]] = {}
    for node in threads:
        main, place = node == threads[0], describe.location(*node)
        if python and not place and not main:
            continue  # a thread pool or a poller, which serves those that are shown
        found = walk.wakers[node]
        does, fails = describe.does(*node), describe.fails(*node)
        ends = RUNS if does == COMPUTES else "" if fails else found.open_reason or ""
        if (found.links or found.listens) and not ends:
            ends = "waits for something outside the job"
        alike.setdefault(GraphNode(pid, who, "", place, does, ends, fails=fails, main=main), []).append(node)
    by_interest = sorted(alike.items(), key=lambda pair: (not pair[0].main, not pair[0].place))
    for one, members in by_interest[: 1 + SIDE]:
        names = text.threads([describe.thread(*node) for node in members], NAMED)
        yield one._replace(thread=names, size=len(members)), tuple(members)
    if rest := [node for _, members in by_interest[1 + SIDE :] for node in members]:
        yield GraphNode(pid, who, f"{len(rest)} threads", "", "wait for different things", size=len(rest)), tuple(rest)


def _wakers(
    walk: Walk, place: int, nodes: Sequence[GraphNode], members: Sequence[ThreadId], of: Mapping[int, Sequence[int]]
) -> list[int]:
    """The nodes that can end the wait of this one: the other threads of its own process, if that may, and the main
    threads of other processes."""
    node = nodes[place]
    if node.fails or node.ends or not members:
        return []
    others = walk.describe.awaited(*members[0])
    own = [n for n in of[node.pid] if n != place] if walk.describe.may_end_itself(*members[0]) else []
    return own + [of[pid][0] for pid in sorted(others) if pid in of]


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


def find_cycle(nodes: Sequence[GraphNode]) -> tuple[int, ...]:
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


def _closed(nodes: Sequence[GraphNode]) -> list[bool]:
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
