"""The graph of waits in a report, made of observations by hand: its lines, its headline, its picture and its size."""

import json
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.drawing.shapes import Polyline, Rect
from ftrun.helpers.evidence.report import clean, headline, wait_lines, waits_document
from ftrun.helpers.evidence.wait_picture import BOXES, draw, render
from waitproof import waits
from waitproof.calls import Call
from waitproof.describe import Describer
from waitproof.proof import Facts, Walk
from waitproof.stacks import Frame, Stack, Thread
from waitproof.wait_graph import NODES, GraphNode, WaitGraph, build
from waitproof.wakers import Wakers
from waitproof.world import Descriptor, Interrupts, Socket, WaitingProcess, WaitingThread

FUTEX, READ, POLL = Call("futex", "futex"), Call("read", "in"), Call("poll", "poll")
SLEEP, CHILD = Call("clock_nanosleep", "sleep"), Call("wait4", "child")
DDP = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
Made = tuple[int, Stack, WaitingProcess]


def process(
    pid: int,
    *threads: tuple[str, Call | None, Sequence[Frame]],
    opened: dict[int, Descriptor] | None = None,
    parent: int = 1,
    **wait: Any,
) -> Made:
    """A process; `threads`: name, call and frames, the main thread first.  `wait`: how the main thread waits."""
    stack = tuple(Thread(pid + n, name, False, False, tuple(frames)) for n, (name, _, frames) in enumerate(threads))
    waiting = [
        WaitingThread(pid + n, call, state="S", runs=3, timed=call is SLEEP) for n, (_, call, _) in enumerate(threads)
    ]
    waiting[0] = waiting[0]._replace(**wait)
    made = WaitingProcess(opened or {}, "", tuple(waiting), name="python", parent=parent, interrupts=Interrupts())
    return pid, Stack(stack, stack[0]), made


def at(line: int, function: str = "step", file: str = "/job/train.py") -> list[Frame]:
    return [Frame(function, file, line)]


def walked(*made: Made, ranks: Sequence[int] = (), sockets: dict[str, Socket] | None = None) -> Walk:
    """The suspect first."""
    holders: dict[str, dict[int, str]] = {}
    for pid, _, waiting in made:
        for end in waiting.fds.values():
            holders.setdefault(end.key, {})[pid] = end.mode
    world = waits.empty(frozenset())._replace(
        processes={pid: waiting for pid, _, waiting in made}, holders=holders, sockets=sockets or {}
    )
    stacks = {pid: stack for pid, stack, _ in made}
    return Walk(world, world, stacks, Facts(made[0][0], {pid: n for n, pid in enumerate(ranks)}))


def seen(*made: Made, ranks: Sequence[int] = (), sockets: dict[str, Socket] | None = None) -> tuple[str, WaitGraph]:
    """The headline and the graph."""
    walk = walked(*made, ranks=ranks, sockets=sockets)
    return headline(walk.sentence(made[0][0])), build(walk, made[0][0], clean)


def test_a_deadlock_of_two_threads_is_a_cycle() -> None:
    sentence, graph = seen(process(100, ("MainThread", FUTEX, at(12)), ("loader", FUTEX, at(30, "load"))), ranks=[100])
    assert sentence == (
        "deadlock: rank 0 (process 100, main thread) waits for a lock at train.py:12, which only its own threads can "
        "end: thread 'loader' waits for a lock at train.py:30"
    )
    assert wait_lines(graph)[1].splitlines() == [
        "* rank 0, main thread, at `train.py:12 step`: waits for a lock. It can be ended by: rank 0, thread 'loader'.",
        "* rank 0, thread 'loader', at `train.py:30 load`: waits for a lock. It can be ended by: rank 0, main thread.",
    ]
    assert wait_lines(graph)[2] == (
        "They wait for each other: rank 0, main thread → rank 0, thread 'loader' → rank 0, main thread."
    )
    assert any(isinstance(shape, Polyline) and shape.stroke == "bad" for shape in draw(graph, "").shapes)


def test_a_thread_that_may_go_on_is_no_part_of_a_deadlock() -> None:
    sentence, graph = seen(process(100, ("MainThread", FUTEX, at(12)), ("timer", SLEEP, at(30, "tick"))), ranks=[100])
    assert graph.cycle == ()
    assert sentence == (
        "rank 0 waits for a lock at train.py:12; it may wait for thread 'timer', which waits for a timer "
        "(clock_nanosleep)"
    )
    assert "sleeps. That may end: it waits for a timer (clock\\_nanosleep)." in wait_lines(graph)[1]


def test_a_rank_in_a_collective_waits_for_the_one_that_is_elsewhere() -> None:
    reduce = [Frame("all_reduce", DDP, 9), *at(12)]
    ranks = [100, 200, 300]
    waiting, other = (process(pid, ("MainThread", FUTEX, reduce)) for pid in (200, 300))
    computing = process(100, ("MainThread", None, at(20, "evaluate", "/job/eval.py")), running=True)
    sentence, graph = seen(waiting, other, computing, ranks=ranks)
    assert sentence == "rank 1 waits in all_reduce at train.py:12; rank 0 computes at eval.py:20"
    assert graph.nodes[0].wakers == (1, 2)
    stopped = process(100, ("MainThread", FUTEX, at(20)), state="T")
    sentence, graph = seen(waiting, other, stopped, ranks=ranks)
    assert (
        sentence == "rank 0 is stopped by SIGSTOP at train.py:20, and rank 1 waits for it in all_reduce at train.py:12"
    )
    assert [node.fails for node in graph.nodes] == [False, True, False]


def test_a_chain_leads_from_a_child_to_the_outside() -> None:
    connection = {"socket:[7]": Socket("tcp", "10.0.0.1:4000", "10.0.0.7:443", "ESTABLISHED")}
    child = process(
        200,
        ("MainThread", READ, at(3, "get")),
        opened={5: Descriptor("socket", "socket:[7]")},
        parent=100,
        fds=((5, "r"),),
    )
    parent = process(100, ("MainThread", CHILD, at(9)), child=200)
    sentence, graph = seen(parent, child, ranks=[100], sockets=connection)
    assert sentence == (
        "rank 0 waits for the end of process 200 at train.py:9; it may wait for process 200 (python), main thread, "
        "which waits for a reply from 10.0.0.7:443, which is outside the job"
    )
    assert "That may end: it waits for a reply from 10.0.0.7:443, which is outside the job." in wait_lines(graph)[1]
    assert "outside the job" in render(graph, "")


LIBRARY = "/usr/lib/python3.11"
SHARES = [
    *at(294, "socket.accept", f"{LIBRARY}/socket.py"),
    *at(138, "_ResourceSharer._serve", f"{LIBRARY}/multiprocessing/resource_sharer.py"),
]
FORKS = [
    *at(468, "EpollSelector.select", f"{LIBRARY}/selectors.py"),
    *at(220, "main", f"{LIBRARY}/multiprocessing/forkserver.py"),
]
IDLE = [
    *at(395, "Connection._recv", f"{LIBRARY}/multiprocessing/connection.py"),
    *at(103, "Queue.get", f"{LIBRARY}/multiprocessing/queues.py"),
    *at(240, "_process_worker", f"{LIBRARY}/concurrent/futures/process.py"),
]


def test_the_cause_is_the_process_that_is_stuck_and_none_that_serves_or_has_nothing_to_do() -> None:
    """A worker of a DataLoader has a thread that passes tensors on to any process; a pool has idle workers."""
    made = [
        process(100, ("MainThread", POLL, at(9))),
        process(150, ("MainThread", READ, FORKS), parent=100),
        process(200, ("MainThread", READ, IDLE), parent=100),
        process(300, ("MainThread", FUTEX, at(6, "load")), ("Thread-1", READ, SHARES), parent=100),
    ]
    wakers = {
        (100, 100): Wakers(None, awaited=frozenset({150, 200, 300})),
        (150, 150): Wakers(None, awaited=frozenset({100})),
        (200, 200): Wakers(None, awaited=frozenset({100, 300})),
        (300, 300): Wakers(None),
        (300, 301): Wakers(None, awaited=frozenset({100, 200})),
    }
    world = walked(*made).world
    describer = Describer(world, {pid: stack for pid, stack, _ in made}, {100: 0}, wakers)
    root, sentence = describer.deadlock(100, wakers)
    assert root == 300
    assert sentence == (
        "deadlock: process 300 (python), main thread, waits for a lock at train.py:6, which only its own threads can "
        "end; rank 0 waits for a signal at train.py:9"
    )
    assert describer.does(200, 200) == "waits for its next task"


def test_conditions_and_queues_of_processes_have_names() -> None:
    wait = at(268, "Condition.wait", f"{LIBRARY}/multiprocessing/synchronize.py")
    join = at(330, "JoinableQueue.join", f"{LIBRARY}/multiprocessing/queues.py")
    names = "a condition of processes", "the end of the work of a queue of processes"
    for frames, said in zip((wait, wait + join), names, strict=True):
        walk = walked(process(100, ("MainThread", FUTEX, [*frames, *at(7)])))
        assert walk.describe.waits(100, 100) == f"waits for {said} at train.py:7"


def test_a_loop_of_asyncio_waits_for_its_tasks() -> None:
    loop = [
        *at(468, "EpollSelector.select", f"{LIBRARY}/selectors.py"),
        *at(1898, "BaseEventLoop._run_once", f"{LIBRARY}/asyncio/base_events.py"),
    ]
    walk = walked(process(100, ("MainThread", FUTEX, [*loop, *at(12)])))
    assert walk.describe.waits(100, 100) == "waits for what its tasks of asyncio await at train.py:12"


def test_a_suspect_that_has_ended_is_named() -> None:
    walk = walked(process(200, ("MainThread", SLEEP, at(3))), ranks=[100])
    assert walk.sentence(100) == "rank 0 has ended"
    assert build(walk, 100).nodes[0].pid == 200


def test_ten_thousand_threads_are_counted_and_the_report_stays_small() -> None:
    made = [
        process(1000 * n, *((f"worker-{m}", SLEEP if m % 2 else FUTEX, at(m)) for m in range(100)))
        for n in range(1, 101)
    ]
    sentence, graph = seen(*made, ranks=[pid for pid, _, _ in made])
    assert len(graph.nodes) <= NODES
    assert sum(node.size for node in graph.nodes) + graph.more == 10_000
    assert len("\n\n".join(wait_lines(graph))) < 30_000
    assert len(json.dumps(waits_document(graph), indent=1)) < 600_000
    picture = draw(graph, sentence)
    assert 1 < sum(isinstance(shape, Rect) for shape in picture.shapes) <= BOXES
    assert len(render(graph, sentence).encode()) < 100_000


texts = st.text(max_size=200)
nodes = st.builds(
    GraphNode,
    st.integers(1, 9),
    texts,
    texts,
    texts,
    texts,
    st.sampled_from(("", "its timer", "it runs", "something outside the job")),
    st.lists(st.integers(0, 19), max_size=6).map(tuple),
    st.integers(1, 99),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=50)
@given(st.lists(nodes, min_size=20, max_size=20), st.lists(st.integers(0, 19), max_size=5, unique=True))
def test_any_graph_has_a_picture_that_is_xml(found: list[GraphNode], cycle: list[int]) -> None:
    graph = WaitGraph(tuple(found), tuple(cycle), 3)
    ElementTree.fromstring(render(graph, "x"))
    assert len(render(graph, "x" * 300).encode()) < 100_000
    assert wait_lines(graph)[0] == "## What waits for what"
