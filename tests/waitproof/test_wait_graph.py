"""The graph of waits in a report, made of observations by hand: its lines, its headline, its picture and its size."""

import json
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.drawing.shapes import Polyline, Rect
from ftrun.helpers.evidence.wait_picture import BOXES, draw, render
from ftrun.helpers.evidence.wait_text import clean, document, lines
from waitproof import waits
from waitproof.calls import Call
from waitproof.changes import Change
from waitproof.processes import ProcessState
from waitproof.procfs import Stat
from waitproof.stacks import Frame, Stack, Thread
from waitproof.wait_graph import NODES, Node, WaitGraph, build, mechanism
from waitproof.world import Descriptor, Socket, WaitingProcess, WaitingThread

FUTEX, READ, POLL = Call("futex", "futex"), Call("read", "in"), Call("poll", "poll")
SLEEP, CHILD = Call("clock_nanosleep", "sleep"), Call("wait4", "child")
DDP = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
Made = tuple[Change, WaitingProcess]


def process(
    pid: int,
    *threads: tuple[str, Call | None, Sequence[Frame]],
    opened: dict[int, Descriptor] | None = None,
    state: str = "S",
    parent: int = 1,
    cpu: float = 0.0,
    **wait: Any,
) -> Made:
    """A process; `threads`: name, call and frames, the main thread first.  `wait`: how the main thread waits."""
    stack = tuple(Thread(pid + n, name, False, False, tuple(frames)) for n, (name, _, frames) in enumerate(threads))
    seen = ProcessState(
        Stat(pid, "python", state, parent, pid, pid, len(threads), 5), 0, "futex_do_wait", "", 1.0, 0.0, 1.0, 3, None
    )
    waiting = [WaitingThread(pid + n, call) for n, (_, call, _) in enumerate(threads)]
    waiting[0] = waiting[0]._replace(**wait)
    change = Change(seen, Stack(stack, stack[0]), None, cpu, cpu, moved=False)
    return change, WaitingProcess(opened or {}, "", tuple(waiting))


def at(line: int, function: str = "step", file: str = "/job/train.py") -> list[Frame]:
    return [Frame(function, file, line)]


def graph_of(*made: Made, ranks: Sequence[int] = (), sockets: dict[str, Socket] | None = None) -> WaitGraph:
    """The suspect first."""
    holders: dict[str, dict[int, str]] = {}
    for change, waiting in made:
        for end in waiting.fds.values():
            holders.setdefault(end.key, {})[change.pid] = end.mode
    world = waits.empty(frozenset())._replace(
        processes={change.pid: waiting for change, waiting in made}, holders=holders, sockets=sockets or {}
    )
    names = {pid: f"rank {number}" for number, pid in enumerate(ranks)}
    changes = [change for change, _ in made]
    return build(changes, world, changes[0].pid, ranks, lambda c: names.get(c.pid, f"process {c.pid} (python)"), clean)


def test_a_deadlock_of_two_threads_is_a_cycle() -> None:
    graph = graph_of(process(100, ("MainThread", FUTEX, at(12)), ("loader", FUTEX, at(30, "load"))), ranks=[100])
    assert mechanism(graph) == (
        "deadlock between the main thread and thread loader of rank 0: the main thread waits for a lock at train.py:12 "
        "step, thread loader of rank 0 waits for a lock at train.py:30 load"
    )
    assert lines(graph)[1].splitlines() == [
        "* rank 0, main thread, at `train.py:12 step`: waits for a lock. It can be ended by: rank 0, thread loader.",
        "* rank 0, thread loader, at `train.py:30 load`: waits for a lock. It can be ended by: rank 0, main thread.",
    ]
    assert lines(graph)[2] == (
        "They wait for each other: rank 0, main thread → rank 0, thread loader → rank 0, main thread."
    )
    assert any(isinstance(shape, Polyline) and shape.stroke == "bad" for shape in draw(graph, "").shapes)


def test_a_deadlock_of_many_threads_blames_none_of_them() -> None:
    others = [(f"worker-{n}", FUTEX, at(30 + n, "load")) for n in range(3)]
    graph = graph_of(process(100, ("MainThread", FUTEX, at(12)), *others), ranks=[100])
    assert mechanism(graph) == "rank 0 waits for a lock at train.py:12 step, in a deadlock with 3 other threads"


def test_a_thread_that_may_go_on_is_no_part_of_a_deadlock() -> None:
    graph = graph_of(process(100, ("MainThread", FUTEX, at(12)), ("timer", SLEEP, at(30, "tick"))), ranks=[100])
    assert graph.cycle == ()
    assert mechanism(graph) == "rank 0 waits for a lock at train.py:12 step"
    assert "sleeps. Only its timer can end that." in lines(graph)[1]


def test_a_rank_in_a_collective_waits_for_the_one_that_is_elsewhere() -> None:
    reduce = [Frame("all_reduce", DDP, 9), *at(12)]
    ranks = [100, 200, 300]
    waiting, other = (process(pid, ("MainThread", FUTEX, reduce)) for pid in (200, 300))
    computing = process(100, ("MainThread", None, at(20, "evaluate", "/job/eval.py")), cpu=1.0, running=True)
    graph = graph_of(waiting, other, computing, ranks=ranks)
    assert mechanism(graph) == "rank 1 waits in all_reduce for rank 0, which computes at eval.py:20 evaluate"
    stopped = process(100, ("MainThread", FUTEX, at(20)), state="T")
    graph = graph_of(waiting, other, stopped, ranks=ranks)
    assert mechanism(graph) == "rank 0 is stopped by SIGSTOP at train.py:20 step, and rank 1 waits for it"


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
    graph = graph_of(parent, child, ranks=[100], sockets=connection)
    assert mechanism(graph) == (
        "rank 0 waits for its child process 200 (python), which waits for a reply from 10.0.0.7:443, which is outside "
        "the job, at train.py:3 get"
    )
    assert "Only something outside the job can end that." in lines(graph)[1]
    assert "outside the job" in render(graph, "")


def test_a_pipe_leads_to_the_process_with_its_other_end() -> None:
    reader = process(100, ("MainThread", READ, at(3)), opened={4: Descriptor("pipe", "pipe:[1]", "r")}, fds=((4, "r"),))
    writer = process(200, ("MainThread", SLEEP, at(4, "produce")), opened={5: Descriptor("pipe", "pipe:[1]", "w")})
    graph = graph_of(reader, writer, ranks=[100])
    assert graph.nodes[0].wakers == (1,)
    assert mechanism(graph) == "rank 0 waits for process 200 (python), which sleeps at train.py:4 produce"


def test_a_suspect_that_has_ended_is_named() -> None:
    change, waiting = process(100, ("MainThread", None, ()))
    graph = graph_of((change._replace(gone=True), waiting), process(200, ("MainThread", SLEEP, at(3))), ranks=[100])
    assert mechanism(graph) == "rank 0 has ended"


def test_ten_thousand_threads_are_counted_and_the_report_stays_small() -> None:
    made = [
        process(1000 * n, *((f"worker-{m}", SLEEP if m % 2 else FUTEX, at(m)) for m in range(100)))
        for n in range(1, 101)
    ]
    graph = graph_of(*made, ranks=[change.pid for change, _ in made])
    assert len(graph.nodes) <= NODES
    assert sum(node.size for node in graph.nodes) + graph.more == 10_000
    assert len("\n\n".join(lines(graph))) < 30_000
    assert len(json.dumps(document(graph), indent=1)) < 600_000
    picture = draw(graph, mechanism(graph))
    assert 1 < sum(isinstance(shape, Rect) for shape in picture.shapes) <= BOXES
    assert len(render(graph, mechanism(graph)).encode()) < 100_000


texts = st.text(max_size=200)
nodes = st.builds(
    Node,
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
def test_any_graph_has_a_headline_and_a_picture_that_is_xml(found: list[Node], cycle: list[int]) -> None:
    graph = WaitGraph(tuple(found), tuple(cycle), 3)
    assert mechanism(graph).isprintable()
    ElementTree.fromstring(render(graph, mechanism(graph)))
    assert len(render(graph, "x" * 300).encode()) < 100_000
    assert lines(graph)[0] == "## What waits for what"
