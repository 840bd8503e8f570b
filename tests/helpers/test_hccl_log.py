"""What HCCL has written about a hang: its lines as its documentation has them, and a report that names them."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.helpers.evidence import hccl_log
from ftrun.helpers.evidence.hccl_log import HcclEvent, read, sentences_of
from support.evidence_job import Job, ask, needs_spy, rank
from support.evidence_job import job as job

HEAD = "[INFO] HCCL(686,python):2025-10-23-07:52:59.191.363 [heartbeat.cc:951] [8970]"
RUN = "[TaskExecStage][HeartbeatAbnormal]local rank [{}]: crimer rank [{}] status[{}] by informer rank [{}]"
EARLIER = "[HCCL_TRACE]rank [{}]: rank [{}] status[{}] by rank [{}]"
DEBUG = (
    "[ERROR]HCCL(835695,all_reduce_test):2025-10-23-17:28:06.049.385[task_exception_handler.cc:610][835695]"
    "[TaskExecStage][HeartbeatAbnormal]Cluster Exception Location[IP/ID]:[127.10.0.1/1], Arrival Time:[Thu Oct 23 "
    "17:25:58 2025], Discoverer:[127.10.0.1/2], ExceptionType:[Heartbeat Lost Occurred], Possible Reason:1. Process "
    "has exited, 2. Network Disconnected"
)


@pytest.mark.parametrize("form", [RUN, EARLIER], ids=["now", "earlier"])
@pytest.mark.parametrize("status", ["LOST", "STUCK", "ERROR CQE"])
def test_the_lines_of_the_run_log(form: str, status: str) -> None:
    line = HEAD + form.format("127.10.0.1/1", "127.10.0.2/2", status, "127.10.0.3/3")
    assert read(f"{line}\nsomething else\n{line}\n") == [
        HcclEvent("127.10.0.2/2", status, "127.10.0.3/3", "127.10.0.1/1")
    ]


def test_the_line_of_the_debug_log() -> None:
    (event,) = read(DEBUG)
    assert event == HcclEvent("127.10.0.1/1", "HEARTBEAT LOST", "127.10.0.1/2")
    assert sentences_of({0: [event]}) == [
        "rank [127.10.0.1/1] does not answer HCCL (LOST), which rank [127.10.0.1/2] has noticed"
    ]


def test_ranks_are_named_by_their_own_logs_and_the_cause_comes_first() -> None:
    written = {
        0: [HcclEvent("h/1", "LOST", "h/0", "h/0"), HcclEvent("h/1", "STUCK", "h/1", "h/0")],
        1: [HcclEvent("h/7", "ERROR CQE", "h/0", "h/1"), HcclEvent("h/7", "NEWER", "h/0", "h/1")],
    }
    assert sentences_of(written) == [
        "rank [h/7] has an error of its network (ERROR CQE), which rank 0 has noticed",
        "rank 1 has not ended a collective (STUCK), which rank 1 has noticed",
        "rank 1 does not answer HCCL (LOST), which rank 0 has noticed",
        "rank [h/7] has the status NEWER of HCCL, which rank 0 has noticed",
    ]


@pytest.mark.parametrize("text", ["", "HCCL", "rank [a]: rank [b] status[lost] by rank [c]", "rank [a status[LOST]"])
def test_other_lines_say_nothing(text: str) -> None:
    assert read(text) == []


@given(st.text("rank []:status[LOST] by/1\n", max_size=300))
def test_no_text_is_an_error(text: str) -> None:
    sentences_of({0: read(text)})


@pytest.mark.parametrize(
    ("variables", "where"),
    [
        ({"ASCEND_PROCESS_LOG_PATH": "/logs", "ASCEND_WORK_PATH": "/work"}, "/logs"),
        ({"ASCEND_PROCESS_LOG_PATH": "logs"}, "/cwd/logs"),
        ({"ASCEND_WORK_PATH": "/work", "HOME": "/home/a"}, "/work/log"),
        ({"HOME": "/home/a"}, "/home/a/ascend/log"),
        ({}, None),
    ],
)
def test_where_the_logs_are(variables: dict[str, str], where: str | None) -> None:
    assert hccl_log.root(variables, "/cwd") == where


ASLEEP = "import time; print('ready', flush=True); time.sleep(10**6)"


def log(folder: Path, pid: int, text: str, number: int = 1, below: str = "run") -> Path:
    path = folder / f"{below}/plog/plog-{pid}_2025102307525919{number}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_logs_of_the_living_processes_are_read(job: Job, tmp_path: Path) -> None:
    first, second = (job.start(ASLEEP, ASCEND_PROCESS_LOG_PATH=str(tmp_path)) for _ in range(2))
    line = HEAD + RUN.format("10.0.0.1/0", "10.0.0.1/1", "STUCK", "10.0.0.1/0")
    log(tmp_path, first, f"{line}\n" + "x" * 100 + "\n")
    log(tmp_path, second, HEAD + RUN.format("10.0.0.1/1", "10.0.0.9/5", "LOST", "10.0.0.1/1"), below="debug")
    log(tmp_path, first + 1_000_000, HEAD + RUN.format("a/0", "a/1", "ERROR CQE", "a/0"))  # of another process
    old = log(tmp_path, first, HEAD + RUN.format("a/0", "a/1", "ERROR CQE", "a/0"), 2)  # of an earlier one
    os.utime(old, (1e9, 1e9))
    assert hccl_log.collect({first: 0, second: 1}) == [
        "rank 1 has not ended a collective (STUCK), which rank 0 has noticed",
        "rank [10.0.0.9/5] does not answer HCCL (LOST), which rank 1 has noticed",
    ]


def test_only_the_end_of_a_large_log_is_read(job: Job, tmp_path: Path) -> None:
    pid = job.start(ASLEEP, ASCEND_WORK_PATH=str(tmp_path))
    early, late = (HEAD + RUN.format("a/0", f"a/{n}", "LOST", "a/0") for n in (1, 2))
    log(tmp_path / "log", pid, f"{early}\n" + f"{'x' * 99}\n" * 10_000 + f"{late}\n")
    assert hccl_log.collect({pid: 0}) == ["rank [a/2] does not answer HCCL (LOST), which rank 0 has noticed"]


def test_something_else_in_the_place_of_a_log_is_left_alone(job: Job, tmp_path: Path) -> None:
    pid = job.start(ASLEEP, ASCEND_PROCESS_LOG_PATH=str(tmp_path))
    (tmp_path / "run/plog").mkdir(parents=True)
    os.mkfifo(tmp_path / f"run/plog/plog-{pid}_1.log")
    (tmp_path / "debug").write_text("no folder")
    assert hccl_log.collect({pid: 0}) == []


@needs_spy
def test_the_report_has_what_hccl_has_written(job: Job, tmp_path: Path) -> None:
    pid = job.start(ASLEEP, ASCEND_PROCESS_LOG_PATH=str(tmp_path))
    log(tmp_path, pid, HEAD + RUN.format("10.0.0.1/0", "10.0.0.2/4", "LOST", "10.0.0.1/0"))
    answer = ask(job, finding={"pid": pid}, ranks=[rank(0, pid)], between=1)
    said = "rank [10.0.0.2/4] does not answer HCCL (LOST), which rank 0 has noticed"
    assert said in answer.result["why"]
    assert answer.document["hccl"] == answer.document["collectives"]["late"] == [said]
    assert "## What HCCL has written into its logs" in answer.markdown
