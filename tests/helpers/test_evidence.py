"""The evidence helper on real processes: what it clears, what it does not clear, and its report."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from ftrun.helpers.evidence.processes import find_moving
from support.evidence_job import READY, EvidenceHelper, Job, ask, needs_spy, rank, request
from support.evidence_job import job as job
from support.runs import state_of, wait_for
from waitproof import stacks

pytestmark = needs_spy

LOCK = f"""import threading
def train():
    lock = threading.Lock()
    lock.acquire()
    {READY}    lock.acquire()
train()"""
SLEEP = f"import time\n{READY}while True:\n    time.sleep(600)"
READ = f"""import socket, sys
peer = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
def fetch():
    {READY}    peer.recv(1)
fetch()"""
GIL = f"""import ctypes
def train():
    {READY}    ctypes.PyDLL(None).pause()
train()"""
IN_C = f"{READY}sum(iter(int, 1))"  # one line, for ever
EVALUATION = f"""def evaluate(batch):
    total = 0
    for value in range(batch % 100):
        total += score(value)
    return total
def score(value):
    return value * value
{READY}batch = 0
while True:
    batch += 1
    evaluate(batch)"""
WRITES = f"""import os
fd = os.open('data', os.O_CREAT | os.O_RDWR)
{READY}while True:
    os.pwrite(fd, b'x' * 65536, 0)"""
PARENT = """import subprocess, sys
child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()"""
VFORK = """#include <unistd.h>
void stick(void) { if (vfork() == 0) { pause(); _exit(0); } }
"""
STUCK = f"""import ctypes
def train():
    {READY}    ctypes.PyDLL('./stuck.so').stick()
train()"""


def test_evidence_begun_early_is_reported_with_the_ranks_as_they_are_when_the_limit_has_passed(job: Job) -> None:
    pid = job.start(LOCK)
    job.wait_asleep()
    asked = request(job, due=time.monotonic() + 2, ranks=[rank(0, pid)])
    with EvidenceHelper(asked) as helper:
        finding = asked["finding"] | {"age": 43.5}
        ranks = [rank(0, pid), rank(5, 1 << 22)]
        helper.ask(request="overdue", finding=finding, now=time.monotonic() + 2, ranks=ranks)
        answer = helper.answer()
    assert answer.result["mechanism"].startswith("deadlock: rank 0 (process ")
    assert "waits for a lock at <string>:6, which only its own threads can end" in answer.result["mechanism"]
    assert answer.document["finding"]["age"] == 43.5
    assert [seen["rank"] for seen in answer.document["ranks"]] == [0, 5]


def test_evidence_begun_early_for_a_limit_that_does_not_pass_is_written_nowhere(job: Job) -> None:
    job.start(LOCK)
    answer = ask(job, due=time.monotonic() + 1, timeout=3)
    assert answer.lines[-1]["report"] is None
    assert not (job.folder / "run").exists()


@pytest.mark.parametrize(
    ("code", "location", "mechanism"),
    [
        pytest.param(LOCK, "<string>:6 train", " waits for a lock at <string>:6", id="lock"),
        pytest.param(SLEEP, "<string>:4 <module>", "rank 0 sleeps at <string>:4 <module>", id="sleep"),
        pytest.param(
            GIL, "<string>:4 train", " waits for a signal at <string>:4 and keeps the lock", id="gil-held-in-c"
        ),
    ],
)
def test_a_wait_within_the_process_is_not_cleared(job: Job, code: str, location: str, mechanism: str) -> None:
    job.start_asleep(code)
    answer = ask(job)
    assert answer.result["cleared"] is None
    assert answer.result["why"] == location
    assert answer.process(job.pid)["moved"] is False
    assert answer.result["mechanism"] == answer.document["mechanism"]
    assert mechanism in answer.result["mechanism"]
    title, _, origin, _, opening, *_ = answer.markdown.splitlines()
    assert title.startswith(("# Rank 0 sleeps ", "# Deadlock: rank 0 (process "))
    assert origin.startswith("Attempt 2, 20")
    assert opening.startswith("**Rank 0 ")
    assert "step 7" in opening
    assert opening.endswith(f" It is at `{location}`. The hang rule is `step`.**")
    assert "its Python stack was the same in both observations" in answer.markdown


def test_the_report_names_the_socket_that_is_read(job: Job) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        job.start_asleep(READ, str(port))
        answer = ask(job)
    assert answer.result["cleared"] is None
    assert answer.result["why"] == "<string>:5 fetch"
    assert answer.document["call"].startswith("recvfrom on ")
    assert answer.document["call"].endswith(f"-> 127.0.0.1:{port} ESTABLISHED")
    assert answer.document["call"].partition(", ")[2] in answer.document["files"].values()
    assert answer.process(job.pid)["wchan"] in answer.markdown


IDLE = {"rule": "idle", "rank": None}


def test_a_working_loop_is_cleared_unless_the_user_set_the_timeout(job: Job) -> None:
    job.start(EVALUATION)
    result = ask(job, finding=IDLE).result
    # On a busy machine both observations may find it in the same call: then its CPU time shows that it works.
    assert "its Python stack changes" in result["cleared"] or "it works" in result["cleared"]
    assert result["cpu"] > 0
    answer = ask(job)
    assert answer.result["cleared"] is None
    assert "it works: " in answer.markdown
    assert "but the timeout was set by the user" in answer.markdown


def test_samples_between_the_observations_find_a_moving_process(job: Job) -> None:
    spy = stacks.program()
    pids = [job.start(EVALUATION), job.start(LOCK)]
    wait_for(lambda: state_of(pids[1]) == "S", "sleep")
    before = stacks.collect(spy, pids, 30)
    # A busy machine may leave time for one sample only, in which no process can be seen to move.
    assert wait_for(lambda: find_moving(spy, before, pids, time.monotonic() + 1), "a move") == {pids[0]}


def test_cpu_use_in_one_line_counts_as_work_unless_it_may_be_a_wait_for_the_device(job: Job) -> None:
    job.start(IN_C)
    cleared = ask(job, finding=IDLE).result["cleared"]
    assert "it works" in cleared
    assert "of a core" in cleared
    devices = [{"vendor": "nvidia", "id": "GPU-1", "index": 0, "name": "H", "util": 100.0, "power": 71.0}]
    answer = ask(job, finding=IDLE, devices=devices)
    assert answer.result["cleared"] is None
    assert "`GPU-1` | `0` | `H` | `100.0` | `71.0`" in answer.markdown
    assert "\n**The command has been idle for 41s " in answer.markdown


def test_io_is_work(job: Job) -> None:
    job.start(WRITES)
    result = ask(job, finding=IDLE).result
    assert "MB/s" in result["cleared"]
    assert result["io"] > 262_144


def test_work_of_a_descendant_clears_the_suspect(job: Job) -> None:
    job.start(PARENT, EVALUATION)
    answer = ask(job, finding=IDLE)
    assert "it works" in answer.result["cleared"]
    assert answer.process(int(job.first_line))["cpu"] > 0.1


def test_a_stopped_process_is_named(job: Job) -> None:
    job.start(SLEEP)
    os.kill(job.pid, signal.SIGSTOP)
    wait_for(lambda: state_of(job.pid) == "T", "stop")
    answer = ask(job)
    assert answer.result["cleared"] is None
    assert "SIGSTOP" in answer.markdown
    assert answer.result["why"].startswith("rank 0 is stopped by SIGSTOP; <string>:")


def test_a_process_stuck_in_the_kernel_is_named(job: Job, tmp_path: Path) -> None:
    """Without --nonblocking py-spy would wait for it forever."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    (tmp_path / "stuck.c").write_text(VFORK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "stuck.so", "stuck.c"], check=True, cwd=tmp_path)
    job.start(STUCK)
    wait_for(lambda: state_of(job.pid) == "D", "state D")
    answer = ask(job)
    assert answer.result["cleared"] is None
    assert answer.result["why"].startswith("rank 0 is in state D in ")
    assert answer.result["why"].endswith("; <string>:4 train")
    assert "stuck in the kernel" in answer.markdown
    assert not any("in time" in why for why in answer.missing.values())
