"""What lives beside training in its processes and can end none of its waits: threads of drivers, telemetry, handlers of
signals that end a job.  And what looks like that and can."""

import ctypes
import shutil
from pathlib import Path

import pytest

from proof.hangs.companions import TRACKER
from support.evidence_job import Job, needs_spy
from support.evidence_job import job as job
from support.ports import free_port
from support.proving import COLLECTIVE, HEAD, closed, permitted, see, shared_library
from support.runs import wait_for
from waitproof import recognized
from waitproof.libraries import Libraries
from waitproof.stacks import Frame

pytestmark = [needs_spy, pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")]

LOAD = "library = ctypes.CDLL(sys.argv[2]); assert library.begin() == 0\n"
LOCK = "ready(); stuck()"
PIPE = "a, b = os.pipe(); ready(); os.read(a, 1)"


def library(folder: Path, name: str) -> str:
    """The path of the library with these threads, under this name."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(shared_library("native_threads.c"))
    return str(path)


# The library whose threads are beside it, how it waits, and a text of the proof: no thread of a driver gives a lock of
# Python, and none that computes gives anything that Python waits for.
CLOSED_BESIDE = {
    "a lock": ("libcuda.so.1", LOCK, "waits for a lock"),
    "a lock, beside NCCL": ("libnccl.so.2", LOCK, "waits for a lock"),
    "a lock, beside UCX": ("libucs.so.0", LOCK, "waits for a lock"),
    "a lock, beside verbs": ("libibverbs.so.1", LOCK, "waits for a lock"),
    "an event": ("libcuda.so.1", "e = threading.Event(); thread(stuck); ready(); e.wait()", "waits for a condition"),
    "a pipe": ("libcuda.so.1", PIPE, "waits for data from a pipe"),
    "a pipe, beside OpenMP": ("libgomp.so.1", PIPE, "waits for data from a pipe"),
    "a semaphore, with the lock of the interpreter": (
        "libcuda.so.1",
        "def nap():\n    while True: time.sleep(0.01)\nthread(nap); libc = ctypes.PyDLL(None); ready()\n"
        "libc.sem_wait(ctypes.create_string_buffer(64))",
        "",
    ),
    "a semaphore, without": (
        "libcuda.so.1",
        "libc = ctypes.CDLL(None); ready(); libc.sem_wait(ctypes.create_string_buffer(64))",
        "",
    ),
    "a connection to itself": (
        "libcuda.so.1",
        "server = socket.create_server(('127.0.0.1', 0)); own = socket.create_connection(server.getsockname())\n"
        "ready(); own.recv(1)",
        "",
    ),
    "a selector": (
        "libcuda.so.1",
        "import selectors; s = selectors.DefaultSelector(); s.register(os.pipe()[0], 1); ready(); s.select()",
        "",
    ),
    "a child": (
        "libcuda.so.1",
        "pid = os.fork()\nif not pid: signal.signal(15, signal.SIG_DFL); stuck()\nready(); os.waitpid(pid, 0)",
        "",
    ),
    "a queue of processes": (
        "libnccl.so.2",
        "replies = fork.SimpleQueue()\n"
        "if not os.fork(): signal.signal(15, signal.SIG_DFL); stuck()\nready(); replies.get()",
        "",
    ),
    "a lock of processes": ("libnccl.so.2", "lock = fork.Lock(); lock.acquire(); ready(); lock.acquire()", ""),
}
OPEN_BESIDE = {
    "a pipe, beside threads that send": ("libucs.so.0", PIPE),
    "a lock, beside an unknown library": ("libmine.so.1", LOCK),
    "a lock, beside one that is called alike": ("libcudaextra.so.1", LOCK),
    "a wait within the driver": ("libcuda.so.1", "ready(); library.synchronize()"),
}


@pytest.mark.parametrize(("name", "code", "text"), CLOSED_BESIDE.values(), ids=CLOSED_BESIDE)
def test_threads_of_a_driver_end_no_wait_of_python(job: Job, tmp_path: Path, name: str, code: str, text: str) -> None:
    job.start(f"{HEAD}{LOAD}{code}", "0", library(tmp_path, name))
    assert text in closed(job, job.pid).mechanism


@pytest.mark.parametrize(("name", "code"), OPEN_BESIDE.values(), ids=OPEN_BESIDE)
def test_other_native_threads_may_end_it(job: Job, tmp_path: Path, name: str, code: str) -> None:
    job.start(f"{HEAD}{LOAD}{code}", "0", library(tmp_path, name))
    assert see(job, job.pid).open_reason


STORE = "site-packages/torch/lib/libtorch_cpu.so", b"pt_tcpstore_uv"
SERVE = "store = ctypes.CDLL(sys.argv[2]).serve({!r}, int(os.environ.get('STORE', 0)))\nassert store > 0\n"
ANSWERED = "socket.create_connection(('127.0.0.1', store)).recv(1)"
# The file and the name of a thread that listens in a rank that runs alone, and how that rank waits.
NOT_SERVED = {
    "a lock": (*STORE, LOCK),
    "a lock, beside gloo": (STORE[0], b"gloo_tcp_loop", LOCK),
    "an event": (*STORE, "e = threading.Event(); thread(stuck); ready(); e.wait()"),
    "a child": (*STORE, "pid = os.fork()\nif not pid: stuck()\nready(); os.waitpid(pid, 0)"),
    "a lock of processes": (*STORE, "lock = fork.Lock(); lock.acquire(); ready(); lock.acquire()"),
}
SERVED = {
    "a lock, beside another thread of torch": (STORE[0], b"pt_other", LOCK),
    "a lock, beside a thread that is called alike": ("libmine.so", STORE[1], LOCK),
    "an answer of the store": (*STORE, f"ready(); {ANSWERED}"),
    "a lock that a thread releases after an answer": (
        *STORE,
        f"lock = threading.Lock()\nwith lock: thread(lambda: ({ANSWERED}, lock.release())); ready(); lock.acquire()",
    ),
    "a process that waits for an answer": (
        *STORE,
        f"pid = os.fork()\nif not pid: {ANSWERED}\nready(); os.waitpid(pid, 0)",
    ),
}


@pytest.mark.parametrize(("path", "name", "code"), NOT_SERVED.values(), ids=NOT_SERVED)
def test_the_store_of_torch_gives_no_lock_whoever_may_connect(
    job: Job, tmp_path: Path, path: str, name: bytes, code: str
) -> None:
    job.start(f"{HEAD}{SERVE.format(name)}{code}", "0", library(tmp_path, path))
    assert "waits for" in closed(job, job.pid).mechanism


@pytest.mark.parametrize("master", [True, False])
def test_only_the_store_with_which_the_job_begins_serves_ranks_alone(job: Job, tmp_path: Path, master: bool) -> None:
    number = free_port()
    job.start(
        f"{HEAD}{SERVE.format(STORE[1])}ready(); {ANSWERED}", "0", library(tmp_path, STORE[0]), RANK="0",
        WORLD_SIZE="1", LOCAL_WORLD_SIZE="1", STORE=str(number), MASTER_PORT=str(number if master else 1),
    )  # fmt: skip
    if master:
        assert "waits for" in closed(job, job.pid).mechanism
    for _ in range(0 if master else 3):
        assert see(job, job.pid).open_reason


# The store of torch has a ring of io_uring, which a forked process inherits.
RING = """libc = ctypes.CDLL(None); libc.mmap.restype = ctypes.c_void_p
def ring():
    number = libc.syscall(425, 4, ctypes.create_string_buffer(120))
    assert libc.mmap(None, ctypes.c_size_t(4096), 3, 1, number, ctypes.c_long(0x10000000)) > 0
ring(); pid = os.fork()
if pid: os.waitpid(pid, 0)
"""


@pytest.mark.parametrize("own", [False, True])
def test_a_child_of_the_process_with_the_store_has_only_its_ring(job: Job, tmp_path: Path, own: bool) -> None:
    if not permitted(425, 4, ctypes.create_string_buffer(120)):
        pytest.skip("there is no io_uring here")
    code = "ring(); ready(); stuck()" if own else "ready(); stuck()"
    job.start(f"{HEAD}{SERVE.format(STORE[1])}{RING}{code}", "0", library(tmp_path, STORE[0]))
    if own:
        wait_for(lambda: "may be woken by io_uring" in (see(job, job.pid).open_reason or ""), "the reason")
    else:
        assert "waits for" in closed(job, job.pid).mechanism


MESSAGES = "import zmq; own = zmq.Context().socket(zmq.PULL); own.bind_to_random_port('tcp://127.0.0.1')\n"
RECEIVED = "lock = threading.Lock()\nwith lock: thread(lambda: (own.recv(), lock.release())); ready(); lock.acquire()"


def test_a_lock_of_python_is_given_by_no_thread_of_zeromq(job: Job) -> None:
    job.start(f"{HEAD}{MESSAGES}{LOCK}", "0")
    assert "waits for a lock" in closed(job, job.pid).mechanism


@pytest.mark.parametrize("code", ["ready(); own.recv()", RECEIVED], ids=["a message", "a lock after a message"])
def test_a_message_of_zeromq_may_end_a_wait(job: Job, code: str) -> None:
    job.start(f"{HEAD}{MESSAGES}{code}", "0")
    for _ in range(3):
        assert see(job, job.pid).open_reason


@pytest.mark.parametrize(("path", "name", "code"), SERVED.values(), ids=SERVED)
def test_what_the_store_of_torch_answers_may_end_a_wait(
    job: Job, tmp_path: Path, path: str, name: bytes, code: str
) -> None:
    job.start(f"{HEAD}{SERVE.format(name)}{code}", "0", library(tmp_path, path))
    for _ in range(3):
        assert see(job, job.pid).open_reason


def test_a_driver_calls_python_where_a_library_for_that_is_loaded(job: Job, tmp_path: Path) -> None:
    loaded = f"ctypes.CDLL({library(tmp_path, 'cupy/core.so')!r})\n"
    job.start(f"{HEAD}{loaded}{LOAD}{LOCK}", "0", library(tmp_path, "libcuda.so.1"))
    assert see(job, job.pid).open_reason


def reporting(folder: Path, code: str) -> str:
    """A program with this package `wandb`, loaded from where packages are installed."""
    package = folder / "site-packages/wandb"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(code)
    return f"{HEAD}sys.path.insert(0, {str(package.parent)!r}); import wandb\n"


def test_a_lock_of_python_is_given_by_no_thread_that_reports(job: Job, tmp_path: Path) -> None:
    job.start(f"{reporting(tmp_path, TRACKER)}wandb.start(); {LOCK}", "0")
    assert "waits for a lock" in closed(job, job.pid).mechanism


def is_open_by_a_timer(job: Job) -> None:
    wait_for(lambda: "waits for a timer" in (see(job, job.pid).open_reason or ""), "the reason", 60)


@pytest.mark.parametrize(
    "start", ["threading.Thread(target=wandb.artifact_wait).start()", "ThreadPoolExecutor(1).submit(wandb.run)"]
)
def test_a_call_of_a_library_that_reports_may_be_what_is_waited_for(job: Job, tmp_path: Path, start: str) -> None:
    package = "import time\ndef artifact_wait(): time.sleep(900)\nrun = lambda: time.sleep(900)\n"
    job.start(f"{reporting(tmp_path, package)}{start}\n{LOCK}", "0")
    is_open_by_a_timer(job)


def test_a_thread_with_a_timer_may_enter_a_collective_later(job: Job) -> None:
    job.start(f"{HEAD}{COLLECTIVE}thread(lambda: time.sleep(900)); ready(); all_reduce(threading.Lock())", "0")
    is_open_by_a_timer(job)


def test_a_thread_of_the_program_may_give_a_lock(job: Job) -> None:
    code = "def poll():\n    while True:\n        time.sleep(0.5)\nthread(poll); ready(); stuck()"
    job.start(HEAD + code, "0")
    assert see(job, job.pid).open_reason


def test_the_handlers_of_faulthandler_give_nothing(job: Job) -> None:
    job.start(f"{HEAD}import faulthandler; faulthandler.enable(); {LOCK}", "0")
    assert "waits for a lock" in closed(job, job.pid).mechanism


@pytest.mark.parametrize("name", ["SIGWINCH", "SIGTRAP", "SIGABRT", "SIGCONT", "SIGUSR1"])
def test_a_handler_of_any_other_signal_may_give_it(job: Job, name: str) -> None:
    job.start(f"{HEAD}signal.signal(signal.{name}, lambda *_: None); {LOCK}", "0")
    assert see(job, job.pid).open_reason


# What only ends a job gives nothing to a rank that has stepped.
ENDS_A_JOB = {
    "a handler of SIGTERM": "signal.signal(signal.SIGTERM, lambda *_: None)",
    "a handler of SIGINT": "signal.signal(signal.SIGINT, lambda *_: None)",
    "a handler of SIGHUP": "signal.signal(signal.SIGHUP, lambda *_: None)",
    "a thread that waits for SIGTERM": """signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
thread(lambda: signal.sigwait({signal.SIGTERM, signal.SIGINT}))""",
    "a thread that waits for information about SIGHUP": """signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
thread(lambda: signal.sigwaitinfo({signal.SIGHUP}))""",
    "faulthandler's timer": "import faulthandler; faulthandler.dump_traceback_later(7200, repeat=True)",
    "faulthandler's timer that ends the process": (
        "import faulthandler; faulthandler.dump_traceback_later(7200, exit=True)"
    ),
}
# And what looks like that.
MAY_GIVE_IT = {
    "a signal of the program's own": """signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
thread(lambda: signal.sigwait({signal.SIGTERM, signal.SIGUSR1})); ready(); stuck()""",
    "a wait for SIGTERM that ends by itself": """signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
thread(lambda: signal.sigtimedwait({signal.SIGTERM}, 10**5)); ready(); stuck()""",
    "a server of the program's own": """import http.server
thread(http.server.HTTPServer(('127.0.0.1', 0), http.server.BaseHTTPRequestHandler).serve_forever); ready(); stuck()""",
    "an event that a handler of SIGTERM sets": (
        "e = threading.Event(); signal.signal(signal.SIGTERM, lambda *_: e.set()); ready(); e.wait()"
    ),
    "an event of processes that a handler of SIGHUP sets": (
        "e = multiprocessing.Event(); signal.signal(signal.SIGHUP, lambda *_: e.set()); ready(); e.wait()"
    ),
    "a condition of which a handler of SIGTERM tells": """c, ended = threading.Condition(), []
signal.signal(signal.SIGTERM, lambda *_: (ended.append(1), c.notify())); ready()
with c: c.wait_for(lambda: ended)""",
    "an event of asyncio that a handler of SIGTERM sets": """import asyncio
async def main():
    event = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, event.set); ready(); await event.wait()
asyncio.run(main())""",
    "an event that a thread sets after a SIGTERM": """e = threading.Event()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
thread(lambda: (signal.sigwait({signal.SIGTERM}), e.set())); ready(); e.wait()""",
    "a thread that waits for SIGTERM, and is joined": """signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
t = threading.Thread(target=lambda: signal.sigwait({signal.SIGTERM}), daemon=True); t.start(); ready(); t.join()""",
    "a child that faulthandler's timer ends": """import faulthandler
def act(): faulthandler.dump_traceback_later(7200, exit=True); ready(); stuck()
p = fork.Process(target=act, daemon=True); p.start(); p.join()""",
    "a thread without signals that runs functions in C": """import _thread, collections, functools, operator
gate, held = threading.Lock(), threading.Lock(); gate.acquire(); held.acquire()
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
calls = map(operator.call, [functools.partial(gate.acquire, True, 7200), held.release])
_thread.start_new_thread(collections.deque, (calls,)); ready(); held.acquire()""",
    "a main thread that waits for SIGTERM, on purpose": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}); ready(); signal.sigwait({signal.SIGTERM})"
    ),
}


@pytest.mark.parametrize("name", ENDS_A_JOB)
def test_what_only_ends_a_job_gives_nothing_to_a_rank_that_has_stepped(job: Job, name: str) -> None:
    job.start(f"{HEAD}{ENDS_A_JOB[name]}\nready(); stuck()", "0")
    assert "waits for a lock" in closed(job, job.pid, step=7).mechanism
    assert "SIGINT" in name or see(job, job.pid).open_reason, "no step has ended"


@pytest.mark.parametrize(
    "wait",
    [
        "queue.Queue().get()",
        "pool = ThreadPoolExecutor(); pool.submit(stuck).result()",
        "t = threading.Thread(target=threading.Event().wait, daemon=True); t.start(); t.join()",
        "threading.Barrier(2).wait()",
        "p = fork.Process(target=threading.Event().wait, daemon=True); p.start(); p.join()",
    ],
)
def test_other_waits_than_for_an_event_are_closed_beside_a_handler_of_sigterm(job: Job, wait: str) -> None:
    job.start(f"{HEAD}signal.signal(signal.SIGTERM, lambda *_: None); ready(); {wait}", "0")
    closed(job, job.pid, step=7)


@pytest.mark.parametrize("code", MAY_GIVE_IT.values(), ids=MAY_GIVE_IT)
def test_what_looks_like_that_may_give_it(job: Job, code: str) -> None:
    job.start(f"{HEAD}{code}", "0")
    for _ in range(3):
        assert see(job, job.pid, step=7).open_reason


C, TORCH, CUDA = "/usr/lib/libc.so.6", "/site-packages/torch/lib/libtorch_cpu.so", "/usr/lib/libcuda.so.1"
INTERPRETER = "/usr/lib/libpython3.11.so.1.0"


def test_a_thread_of_a_driver_carries_out_no_collective_that_torch_itself_waits_in() -> None:
    def at(*paths: str) -> Libraries:
        return Libraries(frozenset(paths), frozenset(paths))

    frames = (Frame("all_reduce", "/site-packages/torch/distributed/distributed_c10d.py", 1),)
    gives = recognized.given((), False, at(C, CUDA), ())
    assert recognized.needed(frames, at(C, INTERPRETER, TORCH), False) not in gives
    for paths in (
        (C, TORCH, CUDA),
        (C, INTERPRETER),
        (C, TORCH.replace("cpu", "cuda")),
        (C, TORCH, "/lib/libnccl.so.2"),
    ):
        assert recognized.needed(frames, at(*paths), False) in gives, paths
    assert recognized.needed(frames, None, False) in gives
    gloo = recognized.given((), False, at(C, TORCH), ())
    assert recognized.needed(frames, at(C, TORCH), False) in gloo
