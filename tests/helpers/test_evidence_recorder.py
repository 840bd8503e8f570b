"""torch's flight recorder: of a real gloo group, and of servers whose answers are malformed or late."""

import json
import os
import signal
import socketserver
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ftrun.helpers.evidence import flight_recorder
from ftrun.helpers.evidence.flight_recorder import Collective, FlightRecord
from support.evidence_job import Job, ask, rank
from support.evidence_job import job as job
from support.runs import state_of, wait_for

RANK = """import datetime, os, sys, time, torch
import torch.distributed as dist
from torch.distributed.elastic.control_plane import worker_main
@worker_main()
def main():
    rank = int(os.environ['RANK'])
    dist.init_process_group('gloo', init_method='file://' + os.path.abspath('store'), rank=rank, world_size=2)
    dist.barrier()
    print('ready', flush=True)
    if rank == 1:
        time.sleep(600)  # never comes
    dist.all_reduce(torch.ones(4))
main()"""
LAUNCHER = """import os, subprocess, sys
def start(rank):
    more = {'RANK': str(rank), 'TORCH_WORKER_SERVER_SOCKET': f'rank-{rank}.sock', 'TORCH_FR_BUFFER_SIZE': '100'}
    environment = os.environ | more | {'OMP_NUM_THREADS': '1'}
    return subprocess.Popen([sys.executable, '-c', sys.argv[1]], env=environment, stdout=subprocess.PIPE)
ranks = [start(0), start(1)]
for rank in ranks:
    while rank.stdout.readline() != b'ready\\n':
        pass
print(*[rank.pid for rank in ranks], flush=True)
ranks[0].wait()"""


@pytest.mark.slow
@pytest.mark.torch
def test_the_rank_that_does_not_enter_a_collective_is_named(job: Job) -> None:
    job.start(LAUNCHER, RANK)
    waiting, late = map(int, job.first_line.split())
    ranks = [rank(0, waiting), rank(1, late)]
    text = "rank 1 (last in 1, gloo:barrier) has not reached collective 2, gloo:all_reduce of default_pg, in which "

    def examined() -> Any:
        answer = ask(job, finding={"pid": waiting}, ranks=ranks, between=1)
        assert answer.result["cleared"] is None
        return answer if text in answer.result["why"] else None

    answer = wait_for(examined, "rank 0 in its collective")
    assert f"{text}rank 0 waits" in answer.document["collectives"]["late"]
    assert "2 gloo:all\\_reduce of default\\_pg, not left" in answer.markdown
    assert [group["ranks"] for group in answer.document["groups"]] == [[0], [1]]
    assert answer.result["why"].startswith("it waits for rank 1, at <string>:11 main; <string>:12 main, in distributed")

    os.kill(late, signal.SIGSTOP)
    wait_for(lambda: state_of(late) == "T", "stop")
    answers = ask(job, finding={"pid": waiting}, ranks=ranks, between=3).document["collectives"]["ranks"]
    assert "timed out" in answers["1"]["problem"]
    assert answers["0"]["problem"] is None


@pytest.fixture
def short() -> Iterator[str]:
    """A folder with a short name: the name of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ev-") as folder:
        yield folder


@pytest.fixture
def serve(short: str) -> Iterator[Any]:
    """Starts a server that answers every connection with these bytes; `closes`: and closes it."""
    servers, end = [], threading.Event()

    def start(content: bytes, closes: bool = True, name: str = "sock") -> str:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                self.request.recv(4096)
                self.request.sendall(content)
                if not closes:
                    end.wait()

        servers.append(socketserver.ThreadingUnixStreamServer(f"{short}/{name}", Handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,)).start()
        return f"{short}/{name}"

    yield start
    end.set()
    for server in servers:
        server.shutdown()
        server.server_close()


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + body


ENTRY = {
    "collective_seq_id": 7,
    "is_p2p": False,
    "process_group": ["0", "default_pg"],
    "profiling_name": "nccl:all_reduce",
    "input_sizes": [[4]],
    "retired": False,
    "state": "scheduled",
}
ASLEEP = "import time; print('ready', flush=True); time.sleep(600)"


def test_an_answer_has_the_last_collective_of_each_group(serve: Any) -> None:
    answer = flight_recorder.ask(serve(ok(json.dumps({"entries": [ENTRY], "pg_status": {}}).encode())))
    assert answer.pid == os.getpid()
    assert answer.last == {"default_pg": Collective(7, "nccl:all_reduce", "[[4]]", True)}


def test_a_server_that_the_hooks_have_started_is_asked(serve: Any, short: str, job: Job) -> None:
    pid = job.start(ASLEEP, FTRUN_BEAT_DIR=short)
    assert flight_recorder.ask_all([pid], {pid: 3}) == {}
    serve(ok(json.dumps({"entries": [ENTRY], "pg_status": {}}).encode()), name=f"torch-{pid}.sock")
    [(number, answer)] = flight_recorder.ask_all([pid], {pid: 3}).items()
    assert (number, answer.last["default_pg"].number) == (3, 7)


def test_the_headline_has_the_numbers_of_collectives_that_do_not_match(serve: Any, job: Job) -> None:
    """Rank 0 begins one collective more than it waits for."""
    ranks = []
    for number, (name, collective) in enumerate((("all_reduce", 3), ("barrier", 2))):
        entry = ENTRY | {"profiling_name": f"gloo:{name}", "collective_seq_id": collective}
        body = json.dumps({"entries": [entry], "pg_status": {}}).encode()
        path = serve(ok(body), name=f"sock-{number}")
        ranks.append(rank(number, job.start(ASLEEP, TORCH_WORKER_SERVER_SOCKET=path)))
    answer = ask(job, ranks=ranks, between=0.1)
    text = "ollective mismatch: rank 1 is in barrier #2, rank 0 in all_reduce #3"
    assert answer.result["mechanism"] == f"c{text}"
    written = text.replace("_", r"\_").replace("#", r"\#")
    assert answer.markdown.splitlines()[0] == f"# C{written}"
    assert "has not reached collective 3" in answer.result["why"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        ok(b""),
        ok(b"null"),
        ok(b"[]"),
        ok(b'{"entries": 1}'),
        ok(b'{"entries": [{}]}'),
        ok(b'{"entries": [{"is_p2p": false, "process_group": []}]}'),
        ok(b"[" * 100_000),
    ],
)
def test_a_malformed_answer_is_an_error(serve: Any, content: bytes) -> None:
    with pytest.raises((ValueError, OSError, RecursionError)):
        flight_recorder.ask(serve(content))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "this version of torch has no flight recorder"),
        (b"HTTP/1.1 500 Internal Server Error\r\n\r\n", "HTTP 500"),
    ],
)
def test_an_error_status_is_the_problem(serve: Any, content: bytes, problem: str) -> None:
    assert problem in str(flight_recorder.ask(serve(content)).problem)


def test_an_answer_that_does_not_end_times_out_and_is_added_to_the_report_after_the_reply(serve: Any, job: Job) -> None:
    path = serve(ok(b"{"), closes=False)
    job.start(ASLEEP, TORCH_WORKER_SERVER_SOCKET=path)
    answer = ask(job, ranks=[rank(0, job.pid)], between=0.1)
    assert "timed out" in answer.document["collectives"]["ranks"]["0"]["problem"]
    assert "flight recorder" not in answer.missing


def at(number: int, name: str = "all_reduce", is_open: bool = True, sizes: str = "[[4]]") -> FlightRecord:
    return FlightRecord(0, {"default_pg": Collective(number, name, sizes, is_open)})


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({}, []),
        ({0: at(5), 1: at(5)}, []),
        ({0: at(5, is_open=False), 1: at(4, is_open=False)}, []),
        ({0: FlightRecord(0, {}, problem="no answer"), 1: at(5)}, []),
        (
            {0: at(5), 1: at(4, "barrier"), 2: at(5)},
            [
                "rank 1 (last in 4, barrier) has not reached collective 5, all_reduce of default_pg, in which "
                "ranks 0, 2 wait"
            ],
        ),
        (
            {0: at(5), 1: at(5, "broadcast")},
            ["collective 5 of default_pg differs between ranks: rank 0 in all_reduce [[4]]; rank 1 in broadcast [[4]]"],
        ),
        (
            {0: at(1), 1: FlightRecord(0, {"default_pg": Collective(0, "none", "", False)})},
            ["rank 1 (last in 0, none) has not reached collective 1, all_reduce of default_pg, in which rank 0 waits"],
        ),
    ],
)
def test_lagging_and_mismatched_ranks_are_named(answers: dict[int, FlightRecord], expected: list[str]) -> None:
    assert flight_recorder.lagging_ranks(answers) == expected


def called(number: int, name: str, sizes: str = "[[4]]", open: bool = True, group: str = "default_pg") -> FlightRecord:
    return FlightRecord(1, {group: Collective(number, f"gloo:{name}", sizes, open)})


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ([called(42, "barrier"), called(41, "all_reduce")], "rank 1 is in all_reduce #41, rank 0 in barrier #42"),
        ([called(7, "all_reduce"), called(8, "all_reduce")], "rank 0 is in all_reduce #7, rank 1 in all_reduce #8"),
        (
            [called(8, "barrier"), called(8, "all_reduce"), called(8, "barrier")],
            "ranks 0, 2 are in barrier #8, rank 1 in all_reduce #8",
        ),
        (
            [called(8, "all_reduce"), called(8, "all_reduce", "[[8]]")],
            "rank 0 is in all_reduce #8 of [[4]], rank 1 in all_reduce #8 of [[8]]",
        ),
        (
            [called(2, "barrier", group="data"), called(3, "barrier", group="data")],
            "rank 0 is in barrier #2, rank 1 in barrier #3 of data",
        ),
        ([called(8, "barrier"), called(8, "barrier")], ""),
        ([called(8, "barrier"), called(7, "all_reduce", open=False)], ""),
        ([called(8, "barrier", group="data"), called(7, "all_reduce")], ""),
        ([FlightRecord(1, {})], ""),
    ],
    ids=str,
)
def test_collectives_that_do_not_match(answers: list[FlightRecord], text: str) -> None:
    assert flight_recorder.mismatch(dict(enumerate(answers))) == (f"collective mismatch: {text}" if text else "")
