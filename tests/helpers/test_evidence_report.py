"""The evidence report for operators and for programs, whatever names and lines it contains."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from ftrun.core.machine.values import Finding
from ftrun.core.rules import hang_rules
from ftrun.core.text.markdown import block, code, plain, table
from ftrun.helpers.evidence.classification import Classification
from ftrun.helpers.evidence.flight_recorder import Collective, FlightRecord
from ftrun.helpers.evidence.processes import ProcessChange, ProcessState
from ftrun.helpers.evidence.report import OpenFiles, ReportFacts, document, markdown, opening, what_to_do
from ftrun.messages.evidence import EvidenceRequest, RankState
from ftrun.messages.probe import Device
from waitproof.procfs import Stat
from waitproof.stacks import Frame, Stack, Thread
from waitproof.wait_graph import GraphNode, WaitGraph

hostile = st.text(st.sampled_from("`|*_<>[](){}#~&\\!\n\r\x1b\u202e\udcff aä-=+.1:/\"'"), max_size=30)


def change(pid: int, frames: tuple[Frame, ...], name: str = "python") -> ProcessChange:
    thread = Thread(pid, name, False, False, frames)
    seen = ProcessState(Stat(pid, name, "S", 1, pid, pid, 1, 5), "futex_do_wait", "[<0>] futex", 1.0, 0.0, 1.0, 1)
    return ProcessChange(seen, Stack((thread,), thread), None, 0.0, 0.0, 12.0, False)


def facts(text: str = "text") -> ReportFacts:
    """Four ranks: 0, 1 and 3 in a collective that rank 2 has not reached; every foreign text is `text`."""
    reduce = (
        Frame("all_reduce", "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3252),
        Frame("train", "/job/train.py", 88),
    )
    load = (Frame(text, f"/job/{text}", 12), Frame("train", "/job/train.py", 80))
    found = [change(10 + rank, load if rank == 2 else reduce, text) for rank in range(4)]
    ranks = tuple(
        RankState(rank, 10 + rank, moved_at=50.0 - rank, alive_at=90.0, step=7, sections=(text,)) for rank in range(4)
    )
    finding = Finding("step", 0, 50.0, 30.0, 7, pid=10)
    request = EvidenceRequest(
        "/run", 2, finding, 1, 100.0, ranks=ranks, devices=(Device("nvidia", text, 0, text, 100.0),)
    )
    answers = {
        rank: FlightRecord(10 + rank, {"default_pg": Collective(5, "gloo:all_reduce", "[[4]]", True)})
        for rank in (0, 1, 3)
    }
    answers[2] = FlightRecord(12, {"default_pg": Collective(4, text or "x", "[]", False)}, (text,))
    return ReportFacts(
        request,
        Classification(None, "it does almost nothing", 0.0, 0.0),
        found,
        3.0,
        "2026-01-02T03:04:55Z",
        "2026-01-02 03:04:05 UTC",
        [(text, text)],
        {10: text},
        OpenFiles(((3, text),), 0, text),
        answers,
        {text: text},
    )


def test_the_report_opens_with_a_summary() -> None:
    assert opening(facts("gloo:barrier")) == (
        f"**Rank 0{hang_rules.sentence(facts().request.finding)[6:]}. This began at 2026-01-02 03:04:05 UTC. It is at "
        "`train.py:88 train, in distributed_c10d.py:3252 all_reduce`. Rank 2 (last in 4, gloo:barrier) has not reached "
        "collective 5, gloo:all\\_reduce of default\\_pg, in which ranks 0, 1, 3 wait. The hang rule is `step`.**"
    )


def test_the_report_says_what_to_do() -> None:
    found = facts("gloo:barrier")
    assert what_to_do(found).startswith("look at the stack of the rank that is behind: rank 2 (last in 4")
    assert "What to do: look at the stack" in markdown(found)
    assert document(found)["do"] == what_to_do(found)
    assert what_to_do(found._replace(answers={})).endswith(
        "mend the code at train.py:88 train, in distributed_c10d.py:3252 all_reduce"
    )
    outside = found._replace(answers={}, mechanism="rank 0 waits for a reply from 10.0.0.1, which is outside the job")
    assert "outside the job, is there and answers" in what_to_do(outside)


def test_the_code_to_mend_is_that_of_the_process_for_which_all_others_wait() -> None:
    found = facts()._replace(answers={}, chain=[10, 12])
    nodes = (GraphNode(10, "", "", "", "", wakers=(1,), main=True), GraphNode(12, "", "", "", "", main=True))
    assert what_to_do(found._replace(graph=WaitGraph(nodes))).endswith("mend the code at text:12 text")
    circle = (nodes[0], nodes[1]._replace(wakers=(0,)))
    assert "mend the code at train.py:88 train" in what_to_do(found._replace(graph=WaitGraph(circle)))


def test_the_code_to_mend_is_that_of_a_thread_where_the_main_thread_has_left_the_program() -> None:
    ending = change(10, (Frame("_shutdown", "/usr/lib/python3.11/threading.py", 1590),))
    worker = Thread(11, "loader", False, False, (Frame("load", "/job/data.py", 4),))
    assert ending.stack is not None
    both = ending._replace(stack=ending.stack._replace(threads=(*ending.stack.threads, worker)))
    assert what_to_do(facts()._replace(answers={}, changes=[both])).endswith("mend the code at data.py:4 load")


def test_a_stopped_process_is_to_be_continued() -> None:
    first = change(10, ())
    stopped = first._replace(seen=first.seen._replace(stat=first.seen.stat._replace(state="T")))
    assert what_to_do(facts()._replace(changes=[stopped])).endswith("continue it with `kill -CONT 10`")
    stuck = first._replace(seen=first.seen._replace(stat=first.seen.stat._replace(state="D")))
    assert "(`dmesg`): process 10 waits there" in what_to_do(facts()._replace(changes=[stuck], node="n7"))


def test_report_md_has_ranks_stacks_and_the_reason() -> None:
    text = markdown(facts())
    assert "The suspicion was not cleared: it does almost nothing." in text
    assert "The first to stop was rank 3 after step 7, 53s ago." in text
    assert text.index("Rank 2\n") < text.index("3 ranks: 0, 1, 3\n")  # the odd one out comes first
    assert "| 0 | 10 | 7 | 50s | 10s | `text` |" in text
    assert "Its main thread is in `text`." in text


def test_report_json_has_the_same() -> None:
    found = json.loads(json.dumps(document(facts())))
    assert found["schema"] == 1
    assert found["first_to_stop"] == [3]
    assert [group["ranks"] for group in found["groups"]] == [[2], [0, 1, 3]]
    assert found["where"] == "train.py:88 train, in distributed_c10d.py:3252 all_reduce"
    assert found["processes"][0]["stack"][1] == {"name": "train", "file": "/job/train.py", "line": 88}
    assert found["verdict"] == {"cleared": None, "reason": "it does almost nothing", "cpu": 0.0, "io": 0.0}


def shape(text: str) -> list[str]:
    """The structure that a Markdown parser finds, without the text."""
    return [token.type for token in MarkdownIt("commonmark").enable("table").parse(text)]


@settings(max_examples=settings().max_examples // 2)
@given(hostile)
def test_no_name_changes_the_shape_of_the_report(text: str) -> None:
    assert shape(markdown(facts(text or "x"))) == shape(markdown(facts("text")))
    json.dumps(document(facts(text)), ensure_ascii=False).encode()


@given(hostile)
def test_what_is_put_into_markdown_comes_out_of_it(text: str) -> None:
    md = MarkdownIt("commonmark").enable("table")
    [_, inline, _] = md.parse(f"see {code(text)}.")
    assert [token.type for token in inline.children or ()] == ["text", "code_inline", "text"]
    [_, inline, _] = md.parse(f"it is x{plain(text)}x.")
    assert {token.type for token in inline.children or ()} == {"text"}
    [fence] = md.parse(block(text))
    assert fence.type == "fence"
    cells = [
        token for token in md.parse(table(["a", "b"], [[code(text), plain(f"x{text}")]])) if token.type == "td_open"
    ]
    assert len(cells) == 2
