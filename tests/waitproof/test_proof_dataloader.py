"""Deadlocks in and beside the workers of a DataLoader are proved, and healthy waits there are not.

Each worker handles SIGTERM, as torch has it; that ends a worker, and no wait."""

import json
import shlex
import sys

import pytest

from support.evidence_job import Job, needs_spy
from support.evidence_job import job as job
from support.proving import closed, see, silent_server
from support.runs import state_of, wait_for
from support.short import quick
from waitproof import procfs

pytestmark = [needs_spy, pytest.mark.torch]

# What the worker that loads the last batch does, or the main process when it has that batch, after `ready` was printed.
PROGRAM = """
import asyncio, os, signal, socket, sys, threading, time
import torch
from torch.utils.data import DataLoader, Dataset
place, start, code, port = sys.argv[1:5]
names = dict(globals())
def begin():
    print('ready', os.getpid(), flush=True)
    exec(code, names)
class Batches(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        if index == 3 and place == 'worker':
            begin()
        return index
if __name__ == '__main__':
    torch.set_num_threads(1)
    loader = DataLoader(Batches(), batch_size=None, num_workers=2, multiprocessing_context=start,
                        persistent_workers=True)
    for index in loader:
        if index == 2 and place == 'main':
            begin()
    if place == 'between':
        begin()
"""
LOCK = "lock = threading.Lock(); lock.acquire(); lock.acquire()"
READ = "socket.create_connection(('127.0.0.1', int(port))).recv(1)"
CLOSED = {
    "a worker that waits for a lock": ("worker", "fork", LOCK, " waits for a batch of its DataLoader at program.py:"),
    "a worker of a fork server": ("worker", "forkserver", LOCK, " waits for a batch of its DataLoader at program.py:"),
    "a worker that reads its own pipe": ("worker", "fork", "a, b = os.pipe(); os.read(a, 1)", " waits for a batch of"),
    "the main process": ("main", "fork", LOCK, " waits for a lock at <string>:1"),
    "the main process between two epochs": ("between", "fork", LOCK, " waits for a lock at <string>:1"),
}
OPEN = {
    "a worker that asks a slow server": ("worker", READ),
    "a worker that tries again and again": ("worker", "while True: time.sleep(5)"),
    "a worker with a thread that asks a slow server": (
        "worker",
        f"t = threading.Thread(target=lambda: {READ}, daemon=True); t.start(); t.join()",
    ),
    "a worker that computes": ("worker", "while time.time(): pass"),
    "a worker that has its own handler of SIGTERM": (
        "worker",
        "e = threading.Event(); signal.signal(signal.SIGTERM, lambda *_: e.set()); e.wait()",
    ),
    "a worker that awaits SIGTERM in asyncio": (
        "worker",
        "loop = asyncio.new_event_loop(); loop.add_signal_handler(signal.SIGTERM, loop.stop); loop.run_forever()",
    ),
    "a worker with an alarm": ("worker", f"signal.signal(14, lambda *_: os._exit(0)); signal.alarm(900); {LOCK}"),
    "the main process, which asks a slow server": ("main", READ),
    "the main process between two epochs, which asks a slow server": ("between", READ),
    "the main process between two epochs, which sleeps": ("between", "time.sleep(900)"),
}


def start(job: Job, place: str, how: str, code: str, port: int, program: str = PROGRAM) -> int:
    """The pid of the process that stands still.  The program is a file, since a fork server imports it."""
    (job.folder / "program.py").write_text(program)
    words = [str(job.folder / "program.py"), place, how, code, str(port)]
    job.start(f"import os, sys, json; os.execv(sys.executable, [sys.executable, *json.loads({json.dumps(words)!r})])")
    return int(job.first_line.split()[1])


# Each of these starts PyTorch; the gate has the most usual one.
@pytest.mark.parametrize("name", quick(CLOSED, ("a worker that waits for a lock",)))
def test_a_deadlock_is_proved(job: Job, name: str) -> None:
    place, how, code, text = CLOSED[name]
    pid = start(job, place, how, code, 0)
    found = closed(job, job.pid)
    assert text in found.mechanism
    assert found.pid == pid


@pytest.mark.slow
@pytest.mark.parametrize("name", OPEN)
def test_a_healthy_loader_is_never_convicted(job: Job, name: str) -> None:
    place, code = OPEN[name]
    with silent_server() as port:
        pid = start(job, place, "fork", code, port)
        if "computes" not in name:
            wait_for(lambda: state_of(pid) == "S", "the wait")
        for ranks in ((), (job.pid,)):
            found = see(job, *ranks)
            assert found.open_reason, found


@pytest.mark.slow
def test_a_worker_may_wait_for_a_thread_of_the_main_process(job: Job) -> None:
    """It fills a queue of the program's own later; that the main process waits for a batch does not matter."""
    fills = "    threading.Thread(target=lambda: (time.sleep(900), queue.put(1)), daemon=True).start()\n"
    main = "if __name__ == '__main__':\n"
    program = PROGRAM.replace(main, f"import multiprocessing\nqueue = multiprocessing.Queue()\n{main}{fills}")
    start(job, "worker", "fork", "import __main__; __main__.queue.get()", 0, program)
    wait_for(lambda: "waits for a timer" in (see(job).open_reason or ""), "the reason", 60)


def test_a_loader_with_a_timeout_of_its_own_raises_an_error_that_the_program_may_catch(job: Job) -> None:
    job.start("""import threading
from torch.utils.data import DataLoader, Dataset
class Stuck(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index):
        lock = threading.Lock(); lock.acquire(); lock.acquire()
batches = iter(DataLoader(Stuck(), batch_size=None, num_workers=1, multiprocessing_context='fork', timeout=3))
print('ready', flush=True)
while True:
    try: next(batches)
    except RuntimeError: pass""")
    for _ in range(3):
        assert see(job, job.pid, step=7).open_reason


# A thread of the main process feeds what the loader calls there itself: a data set without workers, or a sampler.
FED = """
import queue, sys, threading, time
from torch.utils.data import DataLoader, IterableDataset
items = queue.Queue()
def feed():
    for index in range(4):
        items.put(index)
    print('ready', flush=True)
    time.sleep(900)
class Fed(IterableDataset):
    def __iter__(self):
        return iter(items.get, None)
if __name__ == '__main__':
    threading.Thread(target=feed, daemon=True).start()
    loader = DataLoader(Fed()) if sys.argv[1] == 'data' else DataLoader(range(9), sampler=Fed(), num_workers=2)
    for _ in loader:
        pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["data", "sampler"])
def test_what_a_loader_calls_in_the_main_process_may_wait_for_any_thread(job: Job, what: str) -> None:
    (job.folder / "program.py").write_text(FED)
    job.start(f"import os, sys; os.execv(sys.executable, [sys.executable, 'program.py', {what!r}])")
    for _ in range(3):
        wait_for(lambda: "waits for a timer" in (see(job, job.pid).open_reason or ""), "the reason", 20)


# What the main process starts before it loads, and what is beside it.
BESIDE = {
    "a program that only reports": (
        "shutil.copy(shutil.which('sleep'), 'nvidia-smi'); subprocess.Popen(['./nvidia-smi', '900'])",
        "",
    ),
    "a child that has ended": ("kept = subprocess.Popen(['true'])", ""),
    "another program, which has no key of multiprocessing": ("pass", "sleep 900 & "),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BESIDE)
def test_a_deadlock_in_a_worker_beside_something_that_has_a_timer_is_proved(job: Job, name: str) -> None:
    """The worker has sent tensors: a thread of it hands their descriptors to processes that have inherited its key."""
    begin, beside = BESIDE[name]
    program = PROGRAM.replace("return index", "return torch.tensor(index)")
    main = "if __name__ == '__main__':\n"
    (job.folder / "program.py").write_text(program.replace(main, f"{main}    import shutil, subprocess; {begin}\n"))
    command = f"{beside}{sys.executable} program.py worker fork {shlex.quote(LOCK)} 0; true"
    job.start(f"import os; os.execv('/bin/sh', ['sh', '-c', {command!r}])")
    worker = procfs.stat(int(job.first_line.split()[1]))
    assert worker is not None
    assert " waits for a batch of its DataLoader" in closed(job, worker.parent).mechanism


def test_a_thread_of_the_rank_may_continue_a_worker(job: Job) -> None:
    job.start("""import os, signal, threading, time
from torch.utils.data import DataLoader
batches = iter(DataLoader(range(64), num_workers=1, multiprocessing_context='fork'))
next(batches); time.sleep(1)
os.kill(batches._workers[0].pid, signal.SIGSTOP)
threading.Thread(target=time.sleep, args=(900,), daemon=True).start()
print('ready', flush=True); list(batches)""")
    wait_for(lambda: "waits for a timer" in (see(job, job.pid, step=7).open_reason or ""), "the reason", 20)
