"""What lives beside training in its processes and can end none of its waits: threads of drivers, telemetry, handlers of
signals that end a job.  And what looks like that and can."""

import shutil
import subprocess
from pathlib import Path

import pytest

from support.evidence_job import Job, needs_spy
from support.evidence_job import job as job
from support.proving import HEAD, closed, see
from support.runs import wait_for
from waitproof import recognized
from waitproof.libraries import Libraries
from waitproof.stacks import Frame

pytestmark = [needs_spy, pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")]

SOURCE = Path(__file__).parents[1] / "support/native_threads.c"
LOAD = "library = ctypes.CDLL(sys.argv[2]); assert library.begin() == 0\n"
# A thread of the package `wandb`, which sends what it finds in its queue, twice a second.
REPORTER = """import queue, threading
def start():
    def _loop_send():
        items = queue.Queue()
        while True:
            try: items.get(timeout=0.5)
            except queue.Empty: pass
    threading.Thread(target=_loop_send, daemon=True).start()
"""


def library(folder: Path, name: str) -> str:
    """The path of the library with these threads, under this name."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-shared", "-fPIC", "-pthread", "-o", path, SOURCE], check=True)
    return str(path)


@pytest.mark.parametrize("name", ["libcuda.so.1", "libnccl.so.2", "libucs.so.0", "libibverbs.so.1"])
def test_a_lock_of_python_is_given_by_no_thread_of_a_driver(job: Job, tmp_path: Path, name: str) -> None:
    job.start(f"{HEAD}{LOAD}ready(); stuck()", "0", library(tmp_path, name))
    assert "waits for a lock" in closed(job, job.pid).mechanism


def test_an_event_of_a_side_thread_is_given_by_no_thread_of_a_driver(job: Job, tmp_path: Path) -> None:
    waiting = "e = threading.Event(); thread(stuck); ready(); e.wait()"
    job.start(f"{HEAD}{LOAD}{waiting}", "0", library(tmp_path, "libcuda.so.1"))
    assert "waits for a condition" in closed(job, job.pid).mechanism


PIPE = "a, b = os.pipe(); ready(); os.read(a, 1)"


@pytest.mark.parametrize("name", ["libcuda.so.1", "libgomp.so.1"])
def test_a_pipe_of_the_program_is_written_by_no_thread_that_computes(job: Job, tmp_path: Path, name: str) -> None:
    job.start(f"{HEAD}{LOAD}{PIPE}", "0", library(tmp_path, name))
    assert "waits for data from a pipe" in closed(job, job.pid).mechanism


def test_a_pipe_may_be_written_by_a_thread_that_sends(job: Job, tmp_path: Path) -> None:
    job.start(f"{HEAD}{LOAD}{PIPE}", "0", library(tmp_path, "libucs.so.0"))
    assert see(job, job.pid).open_reason


# What keeps a process from going on for ever, in functions of the interpreter's library and of the C library.
STUCK = {
    "a semaphore, with the lock of the interpreter": (
        "def nap():\n    while True: time.sleep(0.01)\nthread(nap); libc = ctypes.PyDLL(None); ready()\n"
        "libc.sem_wait(ctypes.create_string_buffer(64))"
    ),
    "a semaphore, without": "libc = ctypes.CDLL(None); ready(); libc.sem_wait(ctypes.create_string_buffer(64))",
    "a connection to itself": (
        "server = socket.create_server(('127.0.0.1', 0)); own = socket.create_connection(server.getsockname())\n"
        "ready(); own.recv(1)"
    ),
    "a selector": "import selectors; s = selectors.DefaultSelector(); s.register(os.pipe()[0], 1); ready(); s.select()",
    "a child": "pid = os.fork()\nif not pid: signal.signal(15, signal.SIG_DFL); stuck()\nready(); os.waitpid(pid, 0)",
}
QUEUE = """replies = fork.SimpleQueue()
if not os.fork(): signal.signal(signal.SIGTERM, signal.SIG_DFL); stuck()
ready(); replies.get()"""
SHARED = "lock = fork.Lock(); lock.acquire(); ready(); lock.acquire()"


@pytest.mark.parametrize("code", STUCK.values(), ids=STUCK.keys())
def test_what_python_waits_for_is_given_by_no_thread_that_computes(job: Job, tmp_path: Path, code: str) -> None:
    job.start(f"{HEAD}{LOAD}{code}", "0", library(tmp_path, "libcuda.so.1"))
    closed(job, job.pid)


@pytest.mark.parametrize("code", [QUEUE, SHARED], ids=["queue", "lock"])
def test_what_only_python_can_give_to_another_process_is_given_by_no_thread_of_a_driver(
    job: Job, tmp_path: Path, code: str
) -> None:
    job.start(f"{HEAD}{LOAD}{code}", "0", library(tmp_path, "libnccl.so.2"))
    closed(job, job.pid)


@pytest.mark.parametrize("name", ["libmine.so.1", "libcudaextra.so.1"])
def test_a_thread_of_an_unknown_library_may_call_python(job: Job, tmp_path: Path, name: str) -> None:
    job.start(f"{HEAD}{LOAD}ready(); stuck()", "0", library(tmp_path, name))
    assert see(job, job.pid).open_reason


def test_a_driver_calls_python_where_a_library_for_that_is_loaded(job: Job, tmp_path: Path) -> None:
    loaded = f"ctypes.CDLL({library(tmp_path, 'cupy/core.so')!r})\n"
    job.start(f"{HEAD}{loaded}{LOAD}ready(); stuck()", "0", library(tmp_path, "libcuda.so.1"))
    assert see(job, job.pid).open_reason


def test_a_wait_within_a_driver_may_be_ended_by_its_threads(job: Job, tmp_path: Path) -> None:
    job.start(f"{HEAD}{LOAD}ready(); library.synchronize()", "0", library(tmp_path, "libcuda.so.1"))
    assert see(job, job.pid).open_reason


def test_a_lock_of_python_is_given_by_no_thread_that_reports(job: Job, tmp_path: Path) -> None:
    package = tmp_path / "site-packages/wandb"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(REPORTER)
    code = f"{HEAD}sys.path.insert(0, {str(package.parent)!r}); import wandb; wandb.start(); ready(); stuck()"
    job.start(code, "0")
    assert "waits for a lock" in closed(job, job.pid).mechanism


@pytest.mark.parametrize(
    "start", ["threading.Thread(target=wandb.artifact_wait).start()", "futures.ThreadPoolExecutor(1).submit(wandb.run)"]
)
def test_a_call_of_a_library_that_reports_may_be_what_is_waited_for(job: Job, tmp_path: Path, start: str) -> None:
    package = tmp_path / "site-packages/wandb"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import time\ndef artifact_wait(): time.sleep(900)\nrun = lambda: time.sleep(900)\n"
    )
    code = f"sys.path.insert(0, {str(package.parent)!r})\nimport wandb, concurrent.futures as futures\n{start}\n"
    job.start(f"{HEAD}{code}ready(); stuck()", "0")
    wait_for(lambda: "waits for a timer" in (see(job, job.pid).open_reason or ""), "the reason", 60)


COLLECTIVE = """os.makedirs('torch/distributed', exist_ok=True)
with open('torch/distributed/distributed_c10d.py', 'w') as file:
    file.write('def all_reduce(lock):\\n    lock.acquire(); lock.acquire()\\n')
sys.path.insert(0, 'torch/distributed')
from distributed_c10d import all_reduce
"""


def test_a_thread_with_a_timer_may_enter_a_collective_later(job: Job) -> None:
    beside = "threading.Thread(target=lambda: time.sleep(900), daemon=True).start()"
    job.start(f"{HEAD}{COLLECTIVE}{beside}; ready(); all_reduce(threading.Lock())", "0")
    wait_for(lambda: "waits for a timer" in (see(job, job.pid).open_reason or ""), "the reason", 60)


def test_a_thread_of_the_program_may_give_a_lock(job: Job) -> None:
    code = "def poll():\n    while True:\n        time.sleep(0.5)\nthread(poll); ready(); stuck()"
    job.start(HEAD + code, "0")
    assert see(job, job.pid).open_reason


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_that_ends_a_job_gives_nothing_to_a_rank_that_has_stepped(job: Job, name: str) -> None:
    handler = f"signal.signal(signal.{name}, lambda *_: None); lock = threading.Lock(); lock.acquire(); ready()\n"
    job.start(f"{HEAD}{handler}lock.acquire()", "0")
    assert "waits for a lock" in closed(job, job.pid, step=7).mechanism
    assert name == "SIGINT" or see(job, job.pid).open_reason, "no step has ended"


@pytest.mark.parametrize("name", ["SIGWINCH", "SIGTRAP", "SIGABRT", "SIGCONT", "SIGUSR1"])
def test_a_handler_of_any_other_signal_may_give_it(job: Job, name: str) -> None:
    job.start(f"{HEAD}signal.signal(signal.{name}, lambda *_: None); ready(); stuck()", "0")
    assert see(job, job.pid).open_reason


def test_the_handlers_of_faulthandler_give_nothing(job: Job) -> None:
    job.start(f"{HEAD}import faulthandler; faulthandler.enable(); ready(); stuck()", "0")
    assert "waits for a lock" in closed(job, job.pid).mechanism


# Threads of the standard library that end no wait of a rank that has stepped.
STANDARD = {
    "a thread that waits for SIGTERM": """signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
thread(lambda: signal.sigwait({signal.SIGTERM, signal.SIGINT}))""",
    "a thread that waits for information about SIGHUP": """signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
thread(lambda: signal.sigwaitinfo({signal.SIGHUP}))""",
    "faulthandler's timer": "import faulthandler; faulthandler.dump_traceback_later(7200, repeat=True)",
    "faulthandler's timer that ends the process": (
        "import faulthandler; faulthandler.dump_traceback_later(7200, exit=True)"
    ),
}


@pytest.mark.parametrize("code", STANDARD.values(), ids=STANDARD.keys())
def test_what_only_ends_a_job_gives_nothing_to_a_rank_that_has_stepped(job: Job, code: str) -> None:
    job.start(f"{HEAD}{code}\nready(); stuck()", "0")
    assert "waits for a lock" in closed(job, job.pid, step=7).mechanism
    assert see(job, job.pid).open_reason, "no step has ended"


SIMILAR = {
    "a signal of the program's own": """signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
thread(lambda: signal.sigwait({signal.SIGTERM, signal.SIGUSR1}))""",
    "a wait for SIGTERM that ends by itself": """signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
thread(lambda: signal.sigtimedwait({signal.SIGTERM}, 10**5))""",
    "a server of the program's own": """import http.server
thread(http.server.HTTPServer(('127.0.0.1', 0), http.server.BaseHTTPRequestHandler).serve_forever)""",
}


@pytest.mark.parametrize("code", SIMILAR.values(), ids=SIMILAR.keys())
def test_what_looks_like_that_may_give_it(job: Job, code: str) -> None:
    job.start(f"{HEAD}{code}\nready(); stuck()", "0")
    for _ in range(3):
        assert see(job, job.pid, step=7).open_reason


def test_a_main_thread_that_waits_for_sigterm_does_so_on_purpose(job: Job) -> None:
    code = "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}); ready(); signal.sigwait({signal.SIGTERM})"
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
