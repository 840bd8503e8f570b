"""What NCCL's RAS says of a job: its answers as text, a TCP server that speaks its protocol, and a look and a report
that use it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.helpers.evidence import nccl_ras
from ftrun.helpers.evidence.look import look
from ftrun.helpers.evidence.nccl_ras import NcclView, culprits, sentences_of
from ftrun.messages.evidence import LookRequest, RankState
from support.device.ras import At, Ras, in_json, in_text
from support.evidence_job import Job, ask, needs_spy, rank
from support.evidence_job import job as job

FORMS = {"json": in_json, "text": in_text}
SHORT = "27a079b828ff1a75"
BEHIND = f"rank 1 (last in AllReduce 99) has not reached AllReduce 100 of communicator {SHORT}, in which "
Form = Callable[[list[At]], str]


def rank_of(host: str, pid: int) -> int | None:
    """Processes 10 to 17 of this host are the ranks 0 to 7."""
    return pid - 10 if host == "127.0.0.1" and 10 <= pid < 18 else None


def members(number: int, **changed: int) -> list[At]:
    """`r1=99`: rank 1 has launched 99 AllReduce."""
    return [At(10 + rank, changed.get(f"r{rank}", 100)) for rank in range(number)]


def said(text: str) -> list[str]:
    view = nccl_ras.read(text, rank_of)
    assert view is not None
    return sentences_of(view)


# --- what an answer says ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_ranks_that_have_launched_the_same_are_not_named(form: Form) -> None:
    assert said(form(members(8))) == []


def test_the_rank_that_is_behind_is_named() -> None:
    assert said(in_json(members(4, r1=99))) == [f"{BEHIND}ranks 0, 2, 3 wait"]
    assert said(in_text(members(4, r1=99))) == [f"{BEHIND}3 ranks wait"]  # it lists only those that are few


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_several_ranks_may_be_behind_at_different_places(form: Form) -> None:
    (one,) = said(form(members(8, r1=99, r6=0)))
    assert one.startswith(
        "rank 1 (last in AllReduce 99), rank 6 (last in AllReduce 0) have not reached AllReduce 100 of"
    )


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_collectives_that_do_not_match_are_named_in_the_words_of_the_flight_recorder(form: Form) -> None:
    text = form([At(10, 100, 5), At(11, 101, 4)])
    mismatch = "collective mismatch: rank 0 is in Broadcast #5, rank 1 in AllReduce #101"
    assert said(text) == [f"{mismatch} of communicator {SHORT}"]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_a_process_that_does_not_answer_is_named(form: Form) -> None:
    found = [At(10), At(11), At(12, silent=True), At(13)]
    assert said(form(found)) == ["rank 2 does not answer NCCL (RAS)"]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_a_rank_of_another_node_is_named_by_its_process(form: Form) -> None:
    found = [At(10), At(11), At(12), At(13)._replace(host="10.0.0.2", all_reduce=7)]
    assert said(form(found))[0].startswith("process 13 on 10.0.0.2 (last in AllReduce 7) has not reached")


def test_an_error_of_the_library_is_named() -> None:
    assert said(in_json([At(10), At(11, error=6)])) == ["rank 1 has the error 6 of NCCL"]


def test_communicators_that_end_and_those_of_another_job_are_left_out() -> None:
    assert said(in_json([At(10, 5, ends=True), At(11, 6)])) == []
    assert said(in_json([At(70, 5), At(71, 6)])) == []
    assert said(in_json([At(10, 5)._replace(host="10.0.0.2"), At(11, 6)._replace(host="10.0.0.2")])) == []


def test_hundreds_of_ranks_are_counted_rather_than_listed() -> None:
    found = [At(10 + number, 99 if number == 1 else 100) for number in range(500)]
    assert said(in_json(found)) == [f"{BEHIND}499 ranks wait"]


def test_the_example_of_the_documentation() -> None:
    text = (Path(__file__).parents[1] / "support/device/ras-2.24.txt").read_text()
    late = "6 ranks (last in collective 6649) have not reached collective 6650"
    assert said(text) == [f"{late} of communicator 27a079b828ff1a75, in which 26 ranks wait"]


@pytest.mark.parametrize(
    "text", ["", "{", "{}", "[]", "null", "HTTP/1.1 400 Bad Request\r\n\r\n", '{"communicators": 7}']
)
def test_an_unknown_text_says_nothing(text: str) -> None:
    assert nccl_ras.read(text, rank_of) is None


@given(st.data())
def test_no_text_is_an_error(data: st.DataObject) -> None:
    """Parts of real answers are left out, repeated, or replaced by others."""
    form = data.draw(st.sampled_from([in_json, in_text]))
    lines = form([At(10), At(11, 99), At(12, silent=True)]).splitlines(keepends=True)
    picked = data.draw(st.lists(st.sampled_from([*lines, "\x00", "  Rank 9 -- ", "{", "7"]), max_size=40))
    for text in ("".join(picked), "".join(lines[: len(picked)]), "".join(lines[:5] + picked + lines[5:])):
        sentences_of(nccl_ras.read(text, rank_of))


# --- which ranks are the cause ----------------------------------------------------------------------------------------


def found(text: str, stands: bool = True) -> NcclView:
    view = nccl_ras.read(text, rank_of)
    assert view is not None
    return view._replace(stands=stands)


def test_the_ranks_that_are_behind_are_the_cause_if_two_answers_agree() -> None:
    assert culprits(found(in_json(members(4, r1=99)))) == (1,)
    assert culprits(found(in_text(members(4, r1=99)))) == (1,)
    assert culprits(found(in_json(members(4, r1=99)), stands=False)) == ()


@pytest.mark.parametrize(
    "text",
    [
        in_json(members(4)),
        in_json(members(4, r1=99, r2=99)),
        in_text(members(8, r0=101)),
        in_json([At(10, 100, 5), At(11, 101, 4), At(12, 101, 4)]),
        in_json([At(10), At(11), At(12, 99)._replace(host="10.0.0.2")]),
    ],
    ids=["all equal", "half of them", "seven that are not listed", "a mismatch", "another node"],
)
def test_otherwise_nobody_is_the_cause(text: str) -> None:
    assert culprits(found(text)) == ()


# --- asking -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_address", "where"),
    [
        (None, ("localhost", 28028)),
        ("127.0.0.1:5", ("127.0.0.1", 5)),
        ("node-7:28028", ("node-7", 28028)),
        ("[::1]:9000", ("::1", 9000)),
        ("0.0.0.0:9000", ("127.0.0.1", 9000)),
        ("", None),
        ("node-7", None),
        (":28028", None),
        ("host:99999", None),
        ("a b:5", None),
    ],
)
def test_where_a_process_listens(given_address: str | None, where: tuple[str, int] | None) -> None:
    assert nccl_ras.address(given_address) == where


# A process in which a thread has the name of RAS's.
RANK = """import ctypes, os, threading, time
def ras():
    ctypes.CDLL(None).prctl(15, b'NCCL RAS', 0, 0, 0)
    started.set()
    time.sleep(10**6)
started = threading.Event()
threading.Thread(target=ras, daemon=True).start()
started.wait()
os.write(1, b'ready\\n')
"""
ASLEEP = f"{RANK}time.sleep(10**6)"


def view_of(job: Job) -> NcclView | None:
    pids = [process.pid for process in job.processes]
    views: list[NcclView] = []
    nccl_ras.watch(pids, {pid: number for number, pid in enumerate(pids)}, views.append)
    return views[-1] if views else None


@pytest.mark.parametrize("knows_json", [True, False], ids=["json", "text"])
def test_a_real_server_is_asked(job: Job, knows_json: bool) -> None:
    with Ras("", json=knows_json) as ras:
        job.start(ASLEEP, **ras.variable)
        job.start(ASLEEP, **ras.variable)
        counts = [At(process.pid, 100 - number) for number, process in enumerate(job.processes)]
        ras.answers = [in_json(counts) if knows_json else in_text(counts)]
        view = view_of(job)
        assert view is not None
        assert sentences_of(view) == [f"{BEHIND}rank 0 waits"]
        assert view.stands
        assert ras.commands[:4] == ["CLIENT PROTOCOL 2", "TIMEOUT 2", "SET FORMAT json", "VERBOSE STATUS"]


def test_an_answer_that_changes_within_a_second_does_not_stand(job: Job) -> None:
    with Ras("") as ras:
        pid = job.start(ASLEEP, **ras.variable)
        ras.answers = [in_json([At(pid, 7)]), in_json([At(pid, 8)])]
        view = view_of(job)
        assert view is not None
        assert not view.stands


def test_a_process_without_the_service_is_not_asked(job: Job) -> None:
    with Ras(in_json([At(1)])) as ras:
        job.start("import time; print('ready', flush=True); time.sleep(10**6)", **ras.variable)
        assert view_of(job) is None
        assert ras.commands == []


def refused(job: Job, ras: Ras) -> str:
    job.start(ASLEEP, **ras.variable)
    view = view_of(job)
    assert view is not None
    assert sentences_of(view) == []
    assert view.problem is not None
    return view.problem.partition(": ")[2]


@pytest.mark.parametrize(
    ("server", "why"),
    [
        (partial(Ras, silent=True), "timed out"),
        (partial(Ras, in_json(members(8)), pause=0.05), "timed out"),
        (partial(Ras, greeting="HTTP/1.1 400 Bad Request\n"), "it is not RAS that answers"),
        (partial(Ras, greeting="x" * 5000), "it is not RAS that answers"),
    ],
    ids=["says nothing", "too slow", "another service", "a long line"],
)
def test_a_server_that_is_not_ras_or_is_late_is_given_up(job: Job, server: Callable[[], Ras], why: str) -> None:
    with server() as ras:
        assert refused(job, ras) == why


def test_an_answer_that_is_too_large_is_asked_for_as_text(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_ras, "SIZE", 1 << 16)
    huge = in_json([At(10 + number) for number in range(2000)])
    with Ras(huge) as ras:
        assert refused(job, ras) == "more than 0 MiB"
    with Ras(huge, in_text(members(4, r1=99)), huge, in_text(members(4, r1=99))) as ras:
        job.start(ASLEEP, **ras.variable)
        view = nccl_ras.ask([job.processes[-1].pid], {})
        assert len(sentences_of(view)) == 1


def test_another_machine_is_not_asked_and_nobody_may_listen(job: Job) -> None:
    job.start(ASLEEP, NCCL_RAS_ADDR="192.0.2.7:9")
    view = view_of(job)
    assert view is not None
    assert str(view.problem).endswith("it is no address of this machine")
    with Ras() as ras:
        closed = ras.variable
    pid = job.start(ASLEEP, **closed)
    view = nccl_ras.ask([pid], {})
    assert view is not None
    assert "refused" in str(view.problem)


# --- a look and a report ----------------------------------------------------------------------------------------------


@needs_spy
def test_a_look_and_the_report_name_the_rank_that_is_behind(job: Job) -> None:
    with Ras("") as ras:
        pids = [job.start(ASLEEP, **ras.variable) for _ in range(3)]
        ras.answers = [in_json([At(pid, 99 if number == 1 else 100) for number, pid in enumerate(pids)])]
        now = time.monotonic()
        ranks = tuple(RankState(number, pid, moved_at=now - 60, step=7) for number, pid in enumerate(pids))
        seen = look(LookRequest(pids[0], now, (), ranks, between=0.2))
        assert seen.open_reason is not None
        assert seen.mechanism.endswith(f"; {BEHIND}ranks 0, 2 wait")
        answer = ask(
            job, finding={"pid": pids[0]}, ranks=[rank(number, pid) for number, pid in enumerate(pids)], between=2
        )
    assert f"{BEHIND}ranks 0, 2 wait" in answer.result["why"]
    assert answer.document["collectives"]["late"] == [f"{BEHIND}ranks 0, 2 wait"]
    assert answer.document["nccl"]["stands"]
    assert answer.document["nccl"]["communicators"][0]["differences"][0]["reached"][1]["members"][0]["pid"] == pids[1]
    assert "## Collectives according to NCCL (RAS)" in answer.markdown
    assert f"look at the stack of the rank that is behind: {BEHIND}" in answer.document["do"]


@needs_spy
def test_a_report_says_that_the_service_did_not_answer(job: Job) -> None:
    with Ras("?") as ras:
        pid = job.start(ASLEEP, **ras.variable)
        answer = ask(job, finding={"pid": pid}, ranks=[rank(0, pid)], between=1)
        where = "{}:{}".format(*ras.address)
    assert {"what": "NCCL's RAS", "why": f"{where}: the answer is not understood"} in (answer.document["missing"])
