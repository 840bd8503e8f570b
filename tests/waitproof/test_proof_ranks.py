"""Deadlocks of ranks that torch connects, without RANK in their environment; and ranks that wait for one elsewhere."""

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun_hooks import layout
from support.evidence_job import Job, needs_spy
from support.evidence_job import job as job
from support.proving import closed, see
from support.runs import HOUSE, wait_for

# Nearly each of these starts PyTorch; in the gate tests/net/test_group_deadlock.py has ranks on two hosts.
pytestmark = needs_spy

# Rank `number` of two: each writes a file when it is about to stop where `how` says.
RANK = """
import datetime, os, sys, threading
import torch
import torch.distributed as dist
os.environ['GLOO_SOCKET_IFNAME'] = 'lo'
def work(number, how):
    torch.set_num_threads(1)
    dist.init_process_group('gloo', init_method=sys.argv[2], rank=number, world_size=2)
    dist.all_reduce(torch.ones(1))
    open(f'at-{number}', 'w').close()
    if number == 1 and how == 'lock':
        lock = threading.Lock()
        with lock, lock: pass
    if how == 'timeout':
        group = dist.new_group(timeout=datetime.timedelta(minutes=15))
        dist.recv(torch.ones(1), 1 - number, group=group)
    if number == 1 and how == 'mismatch':
        dist.barrier()
    dist.all_reduce(torch.ones(1))
"""
SPAWN = (
    RANK
    + """
if __name__ == '__main__':
    import torch.multiprocessing as mp
    mp.spawn(work, (sys.argv[1],), nprocs=2)
"""
)
ALONE = RANK + "work(int(sys.argv[3]), sys.argv[1])\n"


def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def start(job: Job, code: str, how: str, store: str, *more: str) -> None:
    """A program of its own file, since the processes of `spawn` import it."""
    (job.folder / "program.py").write_text(code)
    words = [str(job.folder / "program.py"), how, store, *more]
    job.begin(f"import os, sys; os.execv(sys.executable, [sys.executable, *{words!r}])")


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(("how", "text"), [("lock", " waits for a lock at program.py:"), ("mismatch", " waits in ")])
def test_ranks_that_spawn_has_started_without_rank_are_proved_to_be_in_a_deadlock(
    job: Job, how: str, text: str
) -> None:
    start(job, SPAWN, how, f"tcp://127.0.0.1:{port()}")
    wait_for(lambda: all((job.folder / f"at-{number}").exists() for number in (0, 1)), "both ranks", 120)
    found = closed(job)
    assert text in found.mechanism, found


@pytest.mark.torch
@pytest.mark.slow
def test_a_collective_that_a_short_timeout_ends_is_open(job: Job) -> None:
    """The program may catch the error and go on, as fault-tolerant training does."""
    start(job, SPAWN, "timeout", f"tcp://127.0.0.1:{port()}")
    wait_for(lambda: all((job.folder / f"at-{number}").exists() for number in (0, 1)), "both ranks", 120)
    wait_for(lambda: "waits for a timer" in (see(job).open_reason or ""), "the reason", 60)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Job]:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    made = Job(folder)
    yield made
    made.end()


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("store", ["tcp", "file"])
def test_a_rank_that_waits_for_one_outside_the_job_is_open(job: Job, elsewhere: Job, store: str) -> None:
    where = f"tcp://127.0.0.1:{port()}" if store == "tcp" else f"file://{job.folder / 'store'}"
    start(job, ALONE, "lock", where, "0")
    start(elsewhere, ALONE, "lock", where, "1")
    wait_for(lambda: (job.folder / "at-0").exists() and (elsewhere.folder / "at-1").exists(), "both ranks", 120)
    for _ in range(3):
        assert see(job).open_reason, "a rank elsewhere may come"


@pytest.mark.torch
@pytest.mark.slow
def test_a_rank_that_waits_for_others_to_join_is_open(job: Job) -> None:
    start(job, ALONE, "lock", f"tcp://127.0.0.1:{port()}", "0")
    wait_for(lambda: "init_process_group" in str(see(job).mechanism) or len(os.listdir(f"/proc/{job.pid}/task")) > 2)
    for _ in range(3):
        assert see(job).open_reason, "the other rank may come"


# A rank that runs alone, whose process serves the store, to which anybody might connect.
LONE = """
import datetime, os, sys, threading
import torch
import torch.distributed as dist
os.environ['GLOO_SOCKET_IFNAME'] = 'lo'
torch.set_num_threads(1)
dist.init_process_group('gloo', init_method=sys.argv[2], rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
store = dist.distributed_c10d._get_default_store()
store.set_timeout(datetime.timedelta(hours=1))
lock = threading.Lock()
def release():
    store.get('release')
    lock.release()
if sys.argv[1] == 'thread':
    threading.Thread(target=release).start()
torch.jit.wait(torch.jit.fork(torch.relu, torch.ones(1)))  # leaves a pool of threads that wait for tasks
open('at-0', 'w').close()
if sys.argv[1] == 'get':
    store.get('release')
lock.acquire()
lock.acquire()
"""
# Rank 0 waits for a lock that a collective releases: a native thread of torch runs its callback once rank 1 has come.
CALLED_BACK = """
import os, sys, threading, time
import torch
import torch.distributed as dist
os.environ['GLOO_SOCKET_IFNAME'] = 'lo'
number, lock = int(sys.argv[3]), threading.Lock()
dist.init_process_group('gloo', init_method=sys.argv[2], rank=number, world_size=2)
open(f'at-{number}', 'w').close()
while number == 1 and not os.path.exists('go'):
    time.sleep(0.1)
work = dist.all_reduce(torch.ones(1), async_op=True)
lock.acquire()
called = work.get_future().then(lambda future: lock.release())
lock.acquire()
open(f'done-{number}', 'w').close()
"""


@pytest.mark.torch
@pytest.mark.slow
def test_a_lock_of_a_rank_that_runs_alone_is_a_deadlock_whoever_may_ask_its_store(job: Job) -> None:
    start(job, LONE, "lock", f"tcp://127.0.0.1:{port()}")
    wait_for(lambda: (job.folder / "at-0").exists(), "the lock", 120)
    assert "waits for a lock at program.py:" in closed(job).mechanism


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("how", ["get", "thread"])
def test_a_rank_that_waits_for_what_somebody_may_put_into_its_store_is_open(job: Job, how: str) -> None:
    start(job, LONE, how, f"tcp://127.0.0.1:{port()}")
    wait_for(lambda: (job.folder / "at-0").exists(), "the wait", 120)
    wait_for(lambda: "pt_tcpstore" in (see(job).open_reason or ""), "the reason", 60)
    for _ in range(3):
        assert see(job).open_reason


@pytest.mark.torch
@pytest.mark.slow
def test_a_lock_of_a_rank_is_a_deadlock_wherever_the_other_ranks_are(job: Job, elsewhere: Job) -> None:
    where = f"tcp://127.0.0.1:{port()}"
    start(job, ALONE, "lock", where, "1")
    start(elsewhere, ALONE, "lock", where, "0")
    wait_for(lambda: (job.folder / "at-1").exists() and (elsewhere.folder / "at-0").exists(), "both ranks", 120)
    assert "waits for a lock at program.py:" in closed(job).mechanism


@pytest.mark.torch
@pytest.mark.slow
def test_a_lock_that_a_collective_with_a_rank_elsewhere_releases_is_open(job: Job, elsewhere: Job) -> None:
    where = f"tcp://127.0.0.1:{port()}"
    start(job, CALLED_BACK, "", where, "0")
    start(elsewhere, CALLED_BACK, "", where, "1")
    wait_for(lambda: (job.folder / "at-0").exists() and (elsewhere.folder / "at-1").exists(), "both ranks", 120)
    wait_for(lambda: "waits for a lock" in see(job).mechanism, "the wait", 60)
    for _ in range(3):
        assert see(job).open_reason
    (elsewhere.folder / "go").touch()
    wait_for(lambda: (job.folder / "done-0").exists(), "the release")


def test_the_control_connection_of_a_rank_does_not_hide_its_deadlock(job: Job) -> None:
    """Its other end is in ftrun, which orders nothing while the rank stands still."""
    with (
        tempfile.TemporaryDirectory(prefix="beats-") as beats,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server,
    ):
        job.mark = beats  # shorter than the path of a test, for the name of a socket
        server.bind(os.path.join(beats, layout.RANKS))
        server.listen()
        code = f"""
import os, sys, threading
sys.path.insert(0, {str(HOUSE / "hooks")!r})
from ftrun_hooks._control import ControlClient
client = ControlClient.connect(lambda: None)
client.start([])
os.write(1, b'ready\\n')
lock = threading.Lock()
with lock, lock: pass
"""
        job.start(code, LOCAL_RANK="0")
        found = closed(job, job.pid)
    assert "waits for a lock" in found.mechanism
    assert found.rank == 0
