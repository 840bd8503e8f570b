"""What the report says of a wait, on real processes: whether something outside the job is known to end it, and what."""

import os
import re
import signal
import threading

import pytest

from support.evidence_job import NO_PTRACE, READY, Answer, Job, ask, need_no_ptrace, needs_spy, rank
from support.evidence_job import job as job
from support.proving import COLLECTIVE, HEAD, silent_server
from support.runs import children, state_of, wait_for
from support.short import quick
from waitproof import threads, waits
from waitproof.world import LATE, WaitingProcess

pytestmark = needs_spy

UPLOAD = """
def upload(pause=0.0):
    connection = connect()
    ready()
    while pause:
        connection.sendall(bytes(2000))
        time.sleep(pause)
    connection.sendall(bytes(1 << 26))
"""

# How it waits, and what the report says of it.
WAITS = {
    "an upload in pieces": ("upload(0.05)", "outside the job"),
    "asyncio and a server": (
        "async def main():\n"
        "    r, w = await asyncio.open_connection('127.0.0.1', port)\n    ready()\n    await r.read(1)\n"
        "asyncio.run(main())",
        "which is outside the job",
    ),
    "a child simulator that asks a server": (
        "def simulate(pipe):\n    c = connect(); ready(); c.recv(1)\n"
        "ours, theirs = multiprocessing.Pipe(); fork.Process(target=simulate, args=(theirs,)).start(); ours.recv()",
        "which is outside the job",
    ),
    "a child that waits for a lock": (
        "code = 'import threading; print(1, flush=True); l = threading.Lock(); l.acquire(); l.acquire()'\n"
        "child = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE); child.stdout.readline()\n"
        "ready(); child.wait()",
        "waits for a lock at <string>:1",
    ),
    "a lock, beside a store": (
        "thread(socket.create_server(('127.0.0.1', 0)).accept)\n"
        "def serve():\n    a, b = socket.socketpair(); select.select([a], [], [])\n"
        "thread(serve); ready(); stuck()",
        "waits for a lock at <string>:",
    ),
}


def test_a_process_that_blocks_the_reader_hides_no_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()
    monkeypatch.setattr(threads.ThreadReader, "process", lambda *_: end.wait() and WaitingProcess({}))
    world = waits.empty(frozenset())
    reader = threading.Thread(target=waits.observe, args=(world, [os.getpid(), os.getppid()]))
    reader.start()
    try:
        wait_for(lambda: len(world.copy().processes) == 2, "the open files of both")
        found = world.copy().processes.values()
        assert all(process.fds and process.problem == LATE for process in found)
    finally:
        end.set()
        reader.join()


@pytest.mark.parametrize("name", WAITS)
def test_the_report_says_what_a_wait_is_for(job: Job, name: str) -> None:
    code, text = WAITS[name]
    with silent_server() as port:
        job.start_asleep(HEAD + UPLOAD + code, str(port))
        answer = ask(job)
    assert answer.result["cleared"] is None, "a person gave the time"
    assert text in answer.document["verdict"]["reason"], answer.markdown


IDLE = {"rule": "idle", "rank": None, "age": 1800.0, "limit": 1800.0}


@pytest.mark.parametrize(
    ("code", "cleared"),
    [
        pytest.param(f"import signal\n{READY}signal.pause()", "waits for a signal", id="a signal"),
        pytest.param(
            f"import select\n{READY}select.select([], [], [])",
            "waits for a signal",
            id="a select of nothing",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            f"import os, pty\na, b = pty.openpty()\n{READY}os.read(b, 1)", "waits for a terminal", id="a terminal"
        ),
        pytest.param(f"import time\n{READY}time.sleep(5000)", None, id="a timer", marks=pytest.mark.slow),
        pytest.param(f"import threading\n{READY}threading.Event().wait()", None, id="an event"),
    ],
)
def test_an_idle_job_that_waits_on_purpose_is_cleared_unless_a_person_gave_the_time(
    job: Job, code: str, cleared: str | None
) -> None:
    job.start_asleep(code)
    for ranks in ([], [rank(0, job.pid)]):
        found = ask(job, finding=IDLE, given=False, ranks=ranks).result["cleared"]
        assert found is None if cleared is None else cleared in found
    assert ask(job, finding=IDLE).result["cleared"] is None


def test_only_ranks_can_wait_on_purpose_where_there_are_any(job: Job) -> None:
    job.start_asleep(f"import subprocess\np = subprocess.Popen(['sleep', 'infinity'])\n{READY}p.wait()")
    assert ask(job, finding=IDLE, given=False, ranks=[rank(0, job.pid)]).result["cleared"] is None


def test_a_wait_that_cannot_be_observed_is_unknown(job: Job) -> None:
    need_no_ptrace()
    closed = f"import ctypes, threading\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n{READY}l = threading.Lock()\n"
    job.start_asleep(f"{closed}l.acquire(); l.acquire()", prefix=NO_PTRACE)
    assert "the threads of rank 0 are not known" in ask(job, NO_PTRACE).document["verdict"]["reason"]


MEETS = f"import threading\n{COLLECTIVE}print('ready', flush=True)\nall_reduce(threading.Lock())"


def test_a_rank_waits_for_one_that_uploads(job: Job) -> None:
    with silent_server() as port:
        job.start(MEETS)
        other = job.start(HEAD + UPLOAD + "upload()", str(port))
        job.wait_asleep()
        both = [rank(0, job.pid), rank(1, other)]
        answer = ask(job, ranks=both)
        assert "; rank 1 waits for room in the connection to 127.0.0.1:" in answer.document["verdict"]["reason"]
        os.kill(other, signal.SIGSTOP)
        wait_for(lambda: state_of(other) == "T", "stop")
        answer = ask(job, ranks=both)
    assert answer.result["cleared"] is None
    assert answer.result["why"].startswith("rank 1 is stopped by SIGSTOP, at <string>:")
    assert answer.result["waits"]


CONNECTED = "import socket, sys\nconnection = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n" + MEETS
# The numbers of ranks that the launcher sets; whether a rank is connected to something outside; the expected text.
ELSEWHERE = {
    "torchrun on two nodes": ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, False, "2 of which run on other nodes"),
    "torchrun on one node": ({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, True, None),
    "another launcher, two nodes": ({"WORLD_SIZE": "2"}, True, "which is outside the job"),
    "another launcher, and the other rank is gone": ({"WORLD_SIZE": "2"}, False, None),
    "one rank, and a logger": ({"WORLD_SIZE": "1"}, True, None),
    "a number that is no number": ({"WORLD_SIZE": "two"}, True, "which is outside the job"),
}


@pytest.mark.parametrize("name", quick(ELSEWHERE, 3))
def test_a_rank_waits_for_ranks_on_other_nodes(job: Job, name: str) -> None:
    environment, connected, text = ELSEWHERE[name]
    with silent_server() as port:
        job.start_asleep(CONNECTED if connected else MEETS, str(port), RANK="0", **environment)
        reason = ask(job).document["verdict"]["reason"]
    assert (text or "it waits for other ranks") in reason
    assert text is not None or "other nodes" not in reason


def test_a_rank_of_this_node_that_hangs_closes_the_wait_for_other_nodes(job: Job) -> None:
    """Whichever of the two is suspected."""
    environment = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    job.start(MEETS, RANK="0", **environment)
    other = job.start(HEAD + "ready(); stuck()", "0", RANK="1", **environment)
    job.wait_asleep()
    both = [rank(0, job.pid), rank(1, other)]
    for finding in ({}, {"rank": 1, "pid": other}):
        answer = ask(job, finding=finding, ranks=both)
        assert "other nodes" not in answer.document["verdict"]["reason"], answer.markdown
    assert "other nodes" in ask(job, ranks=[rank(0, job.pid)]).document["verdict"]["reason"]


HOGWILD = """import multiprocessing, os, signal, sys, time
fork = multiprocessing.get_context('fork')
barrier = fork.Barrier(2)
def idle():
    print('ready', os.getpid(), flush=True)
    barrier.wait()
def train():
    while True:
        sum(range(1000))
workers = [fork.Process(target=idle), fork.Process(target=train)]
for worker in workers:
    worker.start()
workers[0].join()
"""


def test_a_worker_that_has_ended_its_share_waits_for_one_that_works(job: Job) -> None:
    """Uneven work of several processes without RANK; while the other one is stopped, the wait is closed."""
    job.start(HOGWILD)
    wait_for(lambda: len(children(job.pid)) == 2, "the workers")
    idle, train = sorted(children(job.pid))
    wait_for(lambda: state_of(idle) == "S" and state_of(train) == "R", "the barrier")
    suspect = {"rank": -1 - idle, "pid": idle}
    answer = ask(job, finding=suspect, ranks=[rank(-1 - idle, idle), rank(-1 - train, train, 0.0)])
    # On a crowded machine the other one may run without a tick of its processor between the two observations.
    assert re.search("it works|is running", answer.document["verdict"]["reason"])
    os.kill(train, signal.SIGSTOP)
    wait_for(lambda: state_of(train) == "T", "stop")
    answer = ask(job, finding=suspect, ranks=[rank(-1 - idle, idle), rank(-1 - train, train)])
    assert not re.search("it works|is running", answer.document["verdict"]["reason"])


def test_ranks_that_wait_for_each_other(job: Job) -> None:
    job.start(MEETS)
    other = job.start(MEETS)
    job.wait_asleep()
    answer = ask(job, ranks=[rank(0, job.pid), rank(1, other)])
    assert answer.result["cleared"] is None
    assert "in turn" in answer.document["verdict"]["reason"]


# A DataLoader for each argument after the port; its worker prints the pid of the loader, its own pid and the argument.
LOADERS = """import os, sys, time, threading, signal, socket
from torch.utils.data import DataLoader, Dataset
class Batches(Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, index):
        if index < 5:
            return index
        os.write(1, f'{os.getppid()} {os.getpid()} {how}\\n'.encode())
        if how == 'asks a server':
            socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(1)
        if how == 'sleeps':
            time.sleep(500)
        if how == 'is stuck':
            lock = threading.Lock()
            with lock, lock: pass
        os.kill(os.getpid(), signal.SIGSTOP)
for how in sys.argv[2:]:
    if os.fork() == 0:
        for batch in DataLoader(Batches(), batch_size=None, num_workers=1, multiprocessing_context='fork'):
            pass
os.wait()
"""


@pytest.mark.slow  # in the gate tests/waitproof/test_proof_dataloader.py has workers that wait
@pytest.mark.torch
def test_a_loader_waits_for_its_worker(job: Job) -> None:
    # In the reason, or at the beginning of the place.
    expected = {
        "asks a server": "it may wait for process {worker} (",
        "sleeps": "it may wait for process {worker} (",
        "is stuck": "it waits for process {worker} (",
        "is stopped": "process {worker} (pt_data_worker) is stopped by SIGSTOP, at <string>:",
    }
    with silent_server() as port:
        job.start(LOADERS, str(port), *expected)
        output = job.processes[0].stdout
        assert output is not None
        lines = [job.first_line, *(output.readline() for _ in range(len(expected) - 1))]
        for loader, worker, how in (line.decode().strip().split(None, 2) for line in lines):
            text = expected[how].format(worker=worker)

            def examined(loader: str = loader) -> Answer | None:
                """The answer, once the loader waits for its worker."""
                answer = ask(job, finding={"pid": int(loader)})
                return answer if "_get_data" in str(answer.process(int(loader))["stack"]) else None

            answer = wait_for(examined, "the wait of the loader")
            assert text in answer.document["verdict"]["reason"] or answer.result["why"].startswith(text), how
