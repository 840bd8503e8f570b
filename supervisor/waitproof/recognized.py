"""Threads whose behaviour is known from the sources of what they run.  The only place where behaviour is presumed.

A thread with a timer may do anything when the timer ends: look for a file, ask a server, and then wake another thread.
So it counts as able to run, unless it is listed here.  Each entry gives the reason; the files are those of CPython
3.11 to 3.14, torch 2.4 to 2.13, tqdm 4 and rich 10 to 15.  A listed thread must also behave as described while it is
observed: it is in the same call in both observations, reads and writes nothing, and hardly uses a processor (proof.py).
"""

import enum
import functools
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from waitproof.libraries import Libraries
from waitproof.stacks import Frame

_COLLECTIVES: Final = frozenset(
    {"all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_reduce", "all_reduce_coalesced"}
    | {"all_to_all", "all_to_all_single", "barrier", "broadcast", "gather", "irecv", "isend", "monitored_barrier"}
    | {"recv", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "send"}
)
_UNEVEN: Final = frozenset({"all_gather_into_tensor_uneven", "reduce_scatter_tensor_uneven"})
# File and functions of collectives: one ends when all ranks have entered it, and its timeout only raises an error.  Not
# listed: `synchronize` and `item` of an accelerator (the device may be working for them), and functions that also
# compute, like `all_gather_object`, which pickles.
COLLECTIVES: Final = (
    ("torch/distributed/distributed_c10d.py", _COLLECTIVES),
    ("torch/distributed/_functional_collectives.py", frozenset({"wait_tensor"})),  # in compiled code
    # Up to torch 1.11 a whole copy of the file above, later what torch does not have.
    ("torch_npu/distributed/distributed_c10d.py", _COLLECTIVES | _UNEVEN),
    ("horovod/torch/mpi_ops.py", frozenset({"synchronize"})),
)
_WRAPPED: Final = 2  # frames of torch's dispatcher that such a call may contain
_CONTROL: Final = ("ftrun_hooks/_control.py", frozenset({"_listen"}))
_JOINING: Final = (
    "torch/distributed/distributed_c10d.py",
    frozenset({"init_process_group", "new_group", "_new_process_group_helper"}),
)
_LAUNCHER: Final = ("torch/distributed/elastic/agent/server/api.py", frozenset({"_invoke_run"}))
# The functions of the workers of a DataLoader, and of torchdata's StatefulDataLoader, which is a copy of it.
_WORKERS: Final = tuple(
    (file, frozenset({"_worker_loop"}))
    for file in ("torch/utils/data/_utils/worker.py", "torchdata/stateful_dataloader/worker.py")
)
# One step of a training, or some, in libraries that handle SIGTERM while they train: their handlers note that training
# has to end after the step (lightning/pytorch/trainer/connectors/signal_connector.py, transformers/
# trainer_jit_checkpoint.py).  Handlers of the program itself are run, too, but no step waits to be ended.
_STEPS: Final = (
    ("lightning/pytorch/loops/fit_loop.py", frozenset({"advance"})),
    ("pytorch_lightning/loops/fit_loop.py", frozenset({"advance"})),
    ("transformers/trainer.py", frozenset({"training_step"})),
)
# What a Manager has started runs this; a program that calls `serve_forever` itself does so for others.
_MANAGER: Final = ("multiprocessing/managers.py", frozenset({"_run_server"}))
_CHOSEN: Final = re.compile(r"(/pymp-[^/]+/|^@)listener-[^/]+$")  # `arbitrary_address` of multiprocessing/connection.py
# A backward pass, in which DistributedDataParallel averages the gradients of all ranks.
BACKWARD: Final = ("torch/autograd/graph.py", frozenset({"_engine_run_backward"}))


class Presumed(NamedTuple):
    """What a listed thread waits for in truth.  `children`: also the end of a child of its process; `listens`: a
    listening socket only serves the ranks of its own job; `stores`: if it is that of the store with which the job
    begins, while another one may be for who is no rank; `serves_job`: only processes that have inherited a key;
    `manages`: the same, if it is in a process that a Manager has started, and at an address that multiprocessing chose;
    `serves_ftrun`: it obeys ftrun, which orders nothing while no rank moves or ends.  `inherits`: its handlers of
    signals may be those of the program that has forked it."""

    children: bool = False
    listens: bool = False
    stores: bool = False
    serves_job: bool = False
    manages: bool = False
    serves_ftrun: bool = False
    inherits: bool = False


class _Loop(NamedTuple):
    """A function in which a thread waits with a timeout, again and again.  `longest`: seconds; a longer timeout was
    given by the user, whose program may go on after it, and so was one of less than `shortest`."""

    file: str
    name: str
    presumed: Presumed
    longest: float = 1e9
    shortest: float = 0.0


# Functions that only wait, and that the loops below call.
_WAITING: Final = (
    ("threading.py", frozenset({"wait"})),
    ("queue.py", frozenset({"get"})),
    ("selectors.py", frozenset({"select"})),
    ("multiprocessing/queues.py", frozenset({"get"})),
    ("multiprocessing/connection.py", frozenset({"wait", "poll", "_poll", "accept"})),
    ("socket.py", frozenset({"accept"})),
)
_EVENTS: Final = (("threading.py", frozenset({"wait"})), ("multiprocessing/synchronize.py", frozenset({"wait"})))
# The functions of the workers of a pool, and the files of the queues from which they take their tasks.
_POOL_WORKERS: Final = (
    ("multiprocessing/pool.py", frozenset({"worker"})),
    ("concurrent/futures/process.py", frozenset({"_process_worker"})),
)
_QUEUES: Final = re.compile(r"/multiprocessing/(queues|connection|synchronize)\.py$")
_EVENT_LOOP: Final = ("asyncio/base_events.py", frozenset({"_run_once"}))
_SELECT: Final = ("selectors.py", frozenset({"select"}))
_UNTIL: Final = tuple((file, names | {"wait_for"}) for file, names in _EVENTS)
_CHECK: Final = 5.5, 4.5  # s: torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL, half a second more and less
_LOOPS: Final = (
    # `get` with a timeout of 5 s; then it only checks that the workers live, and waits again.
    _Loop("torch/utils/data/dataloader.py", "_try_get_data", Presumed(children=True), *_CHECK),
    _Loop("torchdata/stateful_dataloader/stateful_dataloader.py", "_try_get_data", Presumed(children=True), *_CHECK),
    # The worker: the same; then it checks that its parent lives, of which the pipe is one end.
    *(_Loop(file, "_worker_loop", Presumed(), *_CHECK) for file, _ in _WORKERS),
    # The thread that pins memory: the same; then it checks an event that the main thread sets.
    _Loop("torch/utils/data/_utils/pin_memory.py", "do_one_step", Presumed(), *_CHECK),
    _Loop("torch/utils/data/_utils/pin_memory.py", "_pin_memory_loop", Presumed(), *_CHECK),
    # torchrun: it sleeps, then checks whether a worker has ended or another node has come.  As in _LAUNCHER.
    _Loop("torch/distributed/elastic/agent/server/api.py", "_invoke_run", Presumed(children=True)),
    # torchrun: it copies what the workers have written to their log files.
    _Loop("torch/distributed/elastic/multiprocessing/tail_log.py", "tail_logfile", Presumed()),
    # torchrun: it tells the other nodes, over the store that one of them serves, that this one lives.
    _Loop("torch/distributed/elastic/rendezvous/utils.py", "_run", Presumed()),
    # A process that compiles for torch.compile: it looks whether its parent has ended, and ends then, too.
    _Loop("torch/_inductor/compile_worker/utils.py", "run", Presumed()),
    # A pool of threads: it looks for threads that have ended, in order to replace them.
    _Loop("multiprocessing/pool.py", "_wait_for_updates", Presumed()),
    # It forks the processes that those ask for which have inherited its socket, and notices their ends.
    _Loop("multiprocessing/forkserver.py", "main", Presumed(children=True, serves_job=True)),
    # It passes descriptors, such as those of tensors, to processes that have inherited its key.
    _Loop("multiprocessing/resource_sharer.py", "_serve", Presumed(serves_job=True)),
    # The process of a Manager: it looks every second whether it was told to end.
    _Loop("multiprocessing/managers.py", "serve_forever", Presumed(inherits=True)),
    # Its thread for new connections, each of which a thread of its own serves and waits for.
    _Loop("multiprocessing/managers.py", "accepter", Presumed(manages=True)),
    # The control connection of a rank that can recover (hooks/ftrun_hooks/_control.py).
    _Loop("ftrun_hooks/_control.py", "_listen", Presumed(serves_ftrun=True)),  # as in _CONTROL
    # Progress bars that have not been drawn for long are drawn.
    _Loop("tqdm/_monitor.py", "run", Presumed()),
)
# Threads of torch without Python, by their names, which have 15 characters at most.  Nobody waits for what their timers
# do: they look for timeouts, which only raise errors, and for the end of the process.  Their connections are followed.
_NATIVE: Final = {
    # Serves the connections between the ranks, to which only ranks connect; its epoll_wait has a timeout of 10 ms.
    "gloo_tcp_loop": Presumed(listens=True),
    "pt_gloo_runloop": Presumed(),  # runs a collective, whose timeout is an error
    "pt_tcpstore": Presumed(listens=True, stores=True),  # the store of the rendezvous, to which only ranks connect
    "pt_tcpstore_uv": Presumed(listens=True, stores=True),
    "pt_nccl_watchdg": Presumed(),  # aborts a collective after its timeout
    "pt_nccl_heartbt": Presumed(),  # ends the process if the watchdog stands still
    "hcclComm_watchd": Presumed(),  # of torch_npu: ends the process after the timeout of a collective
}
# Not listed: `pt_workerserver`, the server for debuggers, since a program may give it functions of Python to run.
# Of these the threads that only serve connections.  They have no function of Python to call, and other threads of torch
# wait for them at a socket, or with a timeout (LibUVStoreDaemon and TCPStoreMasterDaemon in the sources of c10d,
# tcp::Loop and UnboundBuffer in those of gloo).
_SERVING: Final = frozenset({"gloo_tcp_loop", "pt_tcpstore", "pt_tcpstore_uv"})
# Of these the thread that runs collectives, so that its timeout is that of a collective.
_COLLECTIVE_THREADS: Final = frozenset({"pt_gloo_runloop"})
# s.  By default gloo gives a collective 30 min (torch.distributed.constants.default_pg_timeout), after which no program
# is expected to go on.  One that ends sooner than this has a timeout that a person gave, and may catch it, as
# fault-tolerant training does (torchft).
GIVEN: Final = 1200.0
# Threads that draw a progress bar again and again (rich, Lightning, whose default bar is that of rich, alive_progress).
# Between two drawings they hold no lock, and nobody waits for one: who ends the bar tells them to end, and they do.
_DISPLAYS: Final = (
    ("rich/live.py", frozenset({"run"})),
    ("rich/progress.py", frozenset({"run"})),  # counts what `track` has given
    ("lightning/pytorch/callbacks/progress/rich_progress.py", frozenset({"run"})),
    ("pytorch_lightning/callbacks/progress/rich_progress.py", frozenset({"run"})),
    ("alive_progress/core/progress.py", frozenset({"run"})),
)
# Names of the threads above, and of torchrun's process, whose main thread is in a listed loop.
POLLING: Final = frozenset({*_NATIVE, "pt_elastic"})
# Libraries whose own threads never run code of the interpreter, by the names of their files: whatever timers these
# threads have, they give nothing that Python waits for.  They carry out collectives and computations for others (nccl
# issue 901, pytorch issue 4679; the sources of NCCL, UCX and of OpenMP's runtimes).
_NATIVE_LIBRARIES: Final = re.compile(
    r"/(libcuda|libcudart|libcudadebugger|libnvidia-[\w-]+|libnccl(-[\w-]+)?|libuc[mpst]\w*|libfabric|libibverbs|librdmacm"
    r"|libmlx\d+|libgomp|libiomp5|libomp|lib(scipy_)?openblas[\w-]*|libascendcl|libascend_\w+|libhccl\w*|libruntime|libtsdclient)"
    r"(-[0-9a-f]+)?\.so[.\d]*$"
)
# MindSpore's compiler has a thread that asks every few seconds which part of an analysis may go on (AnalysisSchedule in
# its sources).  Outside of a compilation, in whose code a thread would wait, there is no such part.
_COMPILER: Final = re.compile(r"/libmindspore_frontend\.so$")
_COMPUTING: Final = re.compile(
    r"/(libcuda|libcudart|libcudadebugger|libgomp|libiomp5|libomp|lib(scipy_)?openblas\w*)(-[0-9a-f]+)?\.so[.\d]*$"
)
# What such a thread may be in beside them: the C and C++ libraries and the loader.
_COMMON: Final = re.compile(
    r"/(libc|libc-[\d.]+|libpthread[-.\d]*|ld-linux[\w.-]*|libstdc\+\+|libgcc_s|libm)([-.]\S*)?$|^\[vdso\]$"
)
# Libraries with which Python can be called back by such a thread, once the device has come so far.
_CALLING_BACK: Final = re.compile(r"/(cupy\w*|numba|pycuda)/")
# Interpreters in which a search for parameters may be written, as GNU parallel is in Perl.  A shell has no timers.
_SCRIPTS: Final = re.compile(r"/(python|pypy|perl|ruby|node|expect|tclsh)[\d.]*[a-z]?$")
# The interpreter, the modules of its library that are written in C, and what ctypes calls the C library with.
_INTERPRETER: Final = re.compile(r"/(lib)?python\d[^/]*$|/lib-dynload/[^/]+$|/libffi[-.\w]*\.so[.\d]*$")
# Before Python 3.13, the module of interpreters beside the main one: py-spy reads one of these, as if it were that.
INTERPRETERS: Final = "/_xxsubinterpreters."
_TORCH: Final = re.compile(r"/torch/lib/libtorch_(cpu|cuda|python)\.so")
_WITHOUT_DEVICE: Final = re.compile(r"/torch/lib/lib(torch_cpu|torch_python|c10)\.so")
_SERVER_CODE: Final = re.compile(r"/torch/lib/libtorch_cpu\.so")
# The copy of ZeroMQ that only pyzmq uses.  Its threads, too, only serve connections: what pyzmq has them call when they
# have sent a message wakes a thread of Python by another message (`free_python_msg` in its sources).
_MESSAGES: Final = re.compile(r"/pyzmq\.libs/lib(zmq|sodium)(-[0-9a-f]+)?\.so[.\d]*$")
# Libraries that report what training does, by the folder of their package.  A thread of theirs gives nothing that
# training waits for: it reads, sends and writes what was put into its own queues.  It gives what a thread waits for
# within such a library, as the end of an upload (`wandb.Run.finish`).
_TELEMETRY: Final = re.compile(
    r"/(site|dist)-packages/(tensorboard|tensorboardX|wandb|wandb_gql|mlflow|comet_ml|aim|clearml|neptune|swanlab|tqdm"
    r"|sentry_sdk|opentelemetry|prometheus_client|psutil|pynvml|gpustat|codecarbon)(\.py|/)"
)
_MONITORS: Final = re.compile(r"/(nvidia-smi|npu-smi|rocm-smi|dcgmi|vmstat|iostat|mpstat|pidstat|sar|sadc|dstat)$")
# They start one program, wait for its end, and send it the signals that they get (the sources of each): no timer of
# theirs ends or continues it, and their own end is that of the program.
_PASSING: Final = re.compile(r"/(tini(-static)?|docker-init|dumb-init|catatonit|uv|just)$")
# Their code that calls what a program has given to a thread, or the standard library, and waits for nothing itself.
_WRAPPING: Final = re.compile(r"/(sentry_sdk/integrations|opentelemetry/instrumentation)/")
_ITERATES: Final = ("tqdm/std.py", frozenset({"__iter__"}))  # it waits for what it was given to iterate
# The outermost function of such a thread, without its class: it works until it is told to end.
_LOOP_NAME: Final = re.compile(
    r"(^|\.)_?(run|worker|target|thread_body|main|monitor|loop|ticker|consume\w*|poll\w*|publish\w*|\w*_loop\w*)$"
)
# The loop of a server of the standard library, by the classes of servers that only report (stacks.py finds them):
# `prometheus_client.start_http_server` makes one of its own, which renders metrics for who asks.
_SERVER: Final = ("socketserver.py", frozenset({"serve_forever"}))
_SERVERS: Final = frozenset({"TmpServer"})
_EXECUTOR: Final = re.compile(r"/concurrent/futures/")
_PACKAGES: Final = re.compile(r"/(site|dist)-packages/")
# They call what a program or another library has given to them, as the next batch.
_CALLING: Final = re.compile(r"/(site|dist)-packages/(torch|tqdm)/")
# Locks that threads of the program and of libraries take alike: of a log, and of a module that is being imported.
_SHARED_LOCKS: Final = re.compile(r"/logging/__init__\.py$|^<frozen importlib")
_EXIT: Final = ("threading.py", frozenset({"_shutdown"}))
_JOIN: Final = ("threading.py", frozenset({"join", "_wait_for_tstate_lock"}))
_TENSORBOARD: Final = re.compile(r"/torch/utils/tensorboard/")
_BOOTSTRAP: Final = ("threading.py", frozenset({"_bootstrap"}))
# The functions that read and write a connection of multiprocessing: only Python has its descriptors.
_CONNECTION: Final = ("multiprocessing/connection.py", frozenset({"_recv", "_send"}))
_LOADING: Final = re.compile(r"/torch/utils/data/|/multiprocessing/[^/]+\.py$")
_FEEDER: Final = ("multiprocessing/queues.py", frozenset({"_feed"}))
_SHARER: Final = ("multiprocessing/resource_sharer.py", frozenset({"_serve"}))  # as in _LOOPS
# It waits for the workers; what else it calls, a data set of the main process, a sampler, may wait for any thread.
_LOADERS: Final = tuple(
    (file, frozenset({"_try_get_data"}))
    for file in ("torch/utils/data/dataloader.py", "torchdata/stateful_dataloader/stateful_dataloader.py")
)
_TENSORS: Final = re.compile(r"/torch/multiprocessing/[^/]+\.py$")  # the batch itself is received there
RINGS: Final = frozenset({"pt_tcpstore_uv"})  # libuv uses its one io_uring only to change its epoll descriptor


def presumed(frames: Sequence[Frame], name: str, left: float | None, sleeps: bool) -> Presumed | None:
    """What is known about a thread of a Python process that waits with a timeout; None: nothing.

    `frames`: its Python frames; `name`: the kernel's name for it; `left`: seconds until its call times out, if known;
    `sleeps`: it waits for nothing but the time.
    """
    given = left is not None and left < GIVEN
    if not frames:
        return None if sleeps or (given and name in _COLLECTIVE_THREADS) else _NATIVE.get(name)
    if collective(frames) is not None and not sleeps:  # one that sleeps asks the device now and then
        return None if given else Presumed()
    # poll(2) has the timeout with which it was called, a lock the time when it ends.
    whole = is_in(frames[0], *_SELECT)
    loops = _loops(tuple(frames))
    return next(
        (o.presumed for o in loops if left is None or (o.shortest if whole else 0.0) <= left <= o.longest), None
    )


@functools.lru_cache(maxsize=1024)  # of thousands of threads most have the same frames
def _loops(frames: tuple[Frame, ...]) -> tuple[_Loop, ...]:
    """The loops that these frames wait in, the innermost first."""
    found = list[_Loop]()
    for number, frame in enumerate(frames):
        found += [loop for loop in _LOOPS if is_in(frame, loop.file, frozenset({loop.name}))]
        if not any(is_in(frame, file, names) for file, names in _WAITING) or number > len(_WAITING):
            break
    return tuple(found)


def collective(frames: Sequence[Frame]) -> Frame | None:
    """The collective in which a thread waits, or None."""
    return _collective(tuple(frames[: 1 + _WRAPPED]))


@functools.lru_cache(maxsize=1024)
def _collective(inner: tuple[Frame, ...]) -> Frame | None:
    return next((f for f in inner if any(is_in(f, file, names) for file, names in COLLECTIVES)), None)


def _own(paths: Iterable[str]) -> set[str]:
    return {path for path in paths if not _COMMON.search(path)}


def _is_all_in(libraries: Libraries | None, pattern: re.Pattern[str]) -> bool:
    """Whether a thread, whose whole stack is known, is in files like this and in no other ones."""
    own = _own(libraries.whole or ()) if libraries is not None else set()
    return bool(own) and all(pattern.search(path) for path in own)


def carries(libraries: Libraries | None, mapped: Iterable[str]) -> bool:
    """Whether a thread without Python is one of a library whose threads never run Python.  `mapped`: the files that its
    process has mapped."""
    return _is_all_in(libraries, _NATIVE_LIBRARIES) and not any(_CALLING_BACK.search(path) for path in mapped)


def computes(libraries: Libraries | None) -> bool:
    """Whether a thread is one of a library that computes and sends nothing: it reads and writes its own descriptors."""
    return _is_all_in(libraries, _COMPUTING)


def is_in_torch(libraries: Libraries | None) -> bool:
    """Whether a thread waits in code of torch and of no other library: for gloo, whose collectives threads of torch
    carry out.  In a wait for a device, or for NCCL, one of their libraries is on the stack."""
    own = _own(libraries.near) if libraries is not None else set()
    torch = {path for path in own if _WITHOUT_DEVICE.search(path)}
    return bool(torch) and all(_INTERPRETER.search(path) for path in own - torch)


def is_in_compiler(libraries: Libraries | None) -> bool:
    """Whether a thread without Python is in nothing but the compiler of MindSpore."""
    return _is_all_in(libraries, _COMPILER)


def asks_store(libraries: Libraries | None, left: float | None) -> bool:
    """Whether a thread waits within torch's own code for an answer of the store, which only ranks serve and ask, and
    whose timeout only raises an error.  `left`: seconds until then; a short one was given by a person."""
    native = () if libraries is None else libraries.near
    return left is not None and left >= GIVEN and any(_TORCH.search(path) for path in native)


def _own_code(frames: Iterable[Frame]) -> list[Frame]:
    """The frames without those of the standard library, and of what only calls something that it was given."""
    called = (frame for frame in frames if not _WRAPPING.search(frame.file) and not is_in(frame, *_ITERATES))
    return [frame for frame in called if not frame.is_standard]


def reports(frames: Sequence[Frame]) -> bool:
    """Whether all of this thread's code is of the standard library and of one that reports what training does, which
    has started it for its own work.  One that the program started for a call of such a library is waited for."""
    own = _own_code(frames)
    if not own and any(is_in(frame, *_SERVER) and frame.name.split(".")[0] in _SERVERS for frame in frames):
        return True
    if not own or not all(_TELEMETRY.search(frame.file) or _TENSORBOARD.search(frame.file) for frame in own):
        return False
    return bool(_LOOP_NAME.search(own[-1].name)) and not any(_EXECUTOR.search(frame.file) for frame in frames)


def runs_scripts(program: str) -> bool:
    return bool(_SCRIPTS.search(program))


def reports_alone(program: str) -> bool:
    """Whether this is a program, no interpreter, that such a library brings, as `wandb-core`, or one that shows what a
    machine does: it sends signals to no process of the training."""
    return bool(_TELEMETRY.search(program) or _MONITORS.search(program))


def passes_signals(program: str) -> bool:
    """Whether this is an init or a launcher that only waits for the program that it has started."""
    return bool(_PASSING.search(program))


def awaits_report(frames: Sequence[Frame]) -> bool:
    """Whether a thread waits for what a thread of such a library may give: within the code of one, or of what that has
    called; for a lock that it takes, too; or, at the end of the program, for all threads."""
    own = _own_code(frames)
    if not own and any(is_in(frame, *_EXIT) for frame in frames):
        return True
    if frames and _SHARED_LOCKS.search(frames[0].file):
        return True
    for frame in own:
        calls = frame is not own[0] and _CALLING.search(frame.file)
        if not calls and (_TELEMETRY.search(frame.file) or _TENSORBOARD.search(frame.file)):
            return True
        if not _PACKAGES.search(frame.file) or _CALLING.search(frame.file):
            return False
    return False


def displays(frames: Sequence[Frame]) -> bool:
    """Whether this is a thread that draws a progress bar, and waits until it draws it again."""
    drawing = next((frame for frame in frames if not is_in(frame, *_WAITING[0])), None)
    return drawing is not None and any(is_in(drawing, *row) for row in _DISPLAYS)


def dumps_traces(frames: Sequence[Frame], libraries: Libraries | None) -> bool:
    """Whether this thread, which blocks all signals and waits with a timeout, is that of
    `faulthandler.dump_traceback_later` (faulthandler_thread in Modules/faulthandler.c): it runs no Python, and there is
    nothing but the interpreter and the C library on its stack.  It writes the stacks of all threads, and ends the
    process if it was told to, as a signal does that ends a job."""
    return not frames and _is_all_in(libraries, _INTERPRETER)


def awaits_interpreter(libraries: Libraries | None) -> bool:
    """Whether a thread with Python is in a wait of the interpreter or of its library, such as one for a lock: only code
    that the interpreter runs can end it.  An extension that it were in would be on its stack, and so would a library
    that was called by ctypes; a function of the C library waits for what Python has handed to it."""
    own = _own(libraries.near) if libraries is not None else set()
    return bool(own) and all(_INTERPRETER.search(path) for path in own)


class Gives(enum.Enum):
    """A wait, by what can end it within its own process."""

    __hash__ = object.__hash__  # that of Enum is written in Python, and slow

    ANYTHING = enum.auto()  # any thread
    CODE = enum.auto()  # threads that may run Python, or give work to the threads of torch
    CONNECTION = enum.auto()  # what another process reads or writes: the same, and threads that serve connections
    GROUP = enum.auto()  # a collective or a backward pass: those of the library, and what torch.distributed runs
    DATA = enum.auto()  # what Python code waits for, of which other processes may give: a pipe, a connection
    TORCH = enum.auto()  # the same, where torch itself waits: not the threads of native libraries
    COMPILER = enum.auto()  # a part of an analysis of MindSpore's compiler
    REPORT = enum.auto()  # what a library waits for that reports what training does: any thread, also of that library
    LOADER = enum.auto()  # a batch of a DataLoader: the main thread, and what torch runs for it


@functools.lru_cache(maxsize=1024)
def needed(frames: tuple[Frame, ...], libraries: Libraries | None, reads: bool) -> Gives:
    """What the wait of this thread is for.  `reads`: it waits for a descriptor."""
    if collective(frames) is not None:
        return Gives.TORCH if is_in_torch(libraries) else Gives.GROUP
    if frames and is_in(frames[0], *BACKWARD):
        return Gives.GROUP
    if awaits_report(frames):
        return Gives.REPORT
    if awaits_batch(frames):
        return Gives.LOADER
    if libraries is not None and any(_COMPILER.search(path) for path in libraries.near):
        return Gives.COMPILER
    if not frames or not awaits_interpreter(libraries):
        return Gives.ANYTHING
    return Gives.DATA if reads and not is_in(frames[0], *_CONNECTION) else Gives.CODE


@functools.lru_cache(maxsize=1024)
def given(
    frames: tuple[Frame, ...], is_main: bool, libraries: Libraries | None, mapped: frozenset[str]
) -> frozenset[Gives]:
    """Which waits a thread of this process can end."""
    if not frames and is_in_compiler(libraries):
        return frozenset({Gives.COMPILER})
    if not frames:
        if not carries(libraries, mapped):
            return frozenset(Gives)
        return frozenset({Gives.ANYTHING, Gives.GROUP, Gives.REPORT} | (set() if computes(libraries) else {Gives.DATA}))
    if is_main or not is_in(frames[-1], *_BOOTSTRAP):
        return frozenset(Gives)
    if reports(frames) or displays(frames):
        return frozenset({Gives.REPORT})
    found = {
        Gives.ANYTHING,
        Gives.CODE,
        Gives.COMPILER,
        Gives.DATA,
        Gives.GROUP,
        Gives.CONNECTION,
        Gives.REPORT,
        Gives.TORCH,
    }  # it may enter a collective later
    fed = len(frames) > 1 and is_in(frames[0], *_WAITING[0]) and is_in(frames[1], *_FEEDER)  # by the main thread
    if any(_LOADING.search(frame.file) for frame in frames) and not fed:
        found.add(Gives.LOADER)
    return frozenset(found)


def awaits_batch(frames: Sequence[Frame]) -> bool:
    """Whether this thread waits for the workers of a DataLoader itself, and not within what that has called."""
    own = (frame for frame in frames if not frame.is_standard and not _TENSORS.search(frame.file))
    first = next(own, None)
    return first is not None and any(is_in(first, *row) for row in _LOADERS)


def awaits_work_of_torch(frames: Sequence[Frame], libraries: Libraries | None) -> bool:
    """Whether a thread without Python, which waits without a timeout for another thread of its process, is one of torch
    that waits for work: a part of a backward pass, a parallel task or a collective.  Only code that calls torch gives
    it some.  For an answer of other ranks torch waits with a timeout."""
    return not frames and is_in_torch(libraries)


def only_serves(frames: Sequence[Frame], name: str, libraries: Libraries | None) -> bool:
    """Whether this is a thread of torch or of ZeroMQ that only serves connections, by all code on its stack."""
    of_torch = name in _SERVING and _is_all_in(libraries, _SERVER_CODE)
    return not frames and (of_torch or _is_all_in(libraries, _MESSAGES))


# What such a thread can end: no lock of Python, and no batch.
SERVED: Final = frozenset({Gives.ANYTHING, Gives.DATA, Gives.GROUP, Gives.CONNECTION, Gives.TORCH})


def serves_ranks(frames: Sequence[Frame], name: str) -> bool:
    """Whether this is a thread of torch that carries out collectives: what it waits for comes from the main threads of
    the other ranks, and from threads like itself."""
    return not frames and name in _NATIVE


def launches(frames: Sequence[Frame]) -> bool:
    """Whether this is the main thread of torchrun while its ranks run."""
    return any(is_in(frame, *_LAUNCHER) for frame in frames)


def common_call(frames: Sequence[Frame]) -> str:
    """What all ranks have to enter before it ends, and in which this thread waits: the name of a collective, or a
    backward pass, which waits for the gradients of all ranks in code that is not Python; empty if it is in neither.
    A hook that waits in a backward pass does so for a reason of its own."""
    if (found := collective(frames)) is not None:
        return found.name.rpartition(".")[2]
    return "a backward pass" if frames and is_in(frames[0], *BACKWARD) else ""


def is_managers_own(address: str, main: Sequence[Frame]) -> bool:
    """Whether this is an address that a Manager told to nobody but the processes that have inherited its key.  `main`:
    the frames of the main thread."""
    return bool(_CHOSEN.search(address)) and manages(main)


def manages(frames: Sequence[Frame]) -> bool:
    """Whether this is the main thread of a process that a Manager has started."""
    return any(is_in(frame, *_MANAGER) for frame in frames)


def obeys_ftrun(frames: Sequence[Frame]) -> bool:
    """Whether this is the side thread of the hooks that waits for the orders of ftrun."""
    return bool(frames) and is_in(frames[0], *_CONTROL)


def joins(frames: Sequence[Frame]) -> bool:
    """Whether the thread is about to enter a process group, of which some ranks may not be connected yet."""
    return any(is_in(frame, *_JOINING) for frame in frames)


def serves_loader(frames: Sequence[Frame]) -> bool:
    """Whether this is the main thread of a DataLoader's worker, and waits for no signal that its program may have given
    a handler of its own."""
    in_event = any(len(frames) > 1 and is_in(frames[0], *row) and is_in(frames[1], *row) for row in _EVENTS)
    return not in_event and works_for_loader(frames) and not any("asyncio" in frame.file for frame in frames)


def works_for_loader(frames: Sequence[Frame]) -> bool:
    """Whether this is the main thread of a DataLoader's worker."""
    return any(is_in(frame, *row) for frame in frames for row in _WORKERS)


def awaits_task(frames: Sequence[Frame]) -> bool:
    """Whether a worker of a DataLoader waits for its next task, or a thread of it only passes its batches on."""
    own = (frame for frame in frames if not frame.is_standard)
    first = next(own, None)
    if first is None:
        return any(is_in(frame, *row) for frame in frames for row in (_FEEDER, _SHARER))
    return any(is_in(first, *row) for row in _WORKERS)


def awaits_event(frames: Sequence[Frame]) -> bool:
    """Whether code that is not of the standard library waits for an event or a condition itself, or has asyncio wait
    for whatever its tasks await, which no stack shows."""
    own = next((place for place, frame in enumerate(frames) if not frame.is_standard), 0)
    if own > 1 and runs_event_loop(frames):
        return True
    return own > 0 and all(any(is_in(frame, *row) for row in _UNTIL) for frame in frames[:own])


def runs_event_loop(frames: Sequence[Frame]) -> bool:
    """Whether this thread is in no task of asyncio, but in its loop, which waits until one can go on."""
    return len(frames) > 1 and is_in(frames[1], *_EVENT_LOOP)


def awaits_thread(frames: Sequence[Frame]) -> bool:
    """Whether code that is not of the standard library waits for the end of a thread itself."""
    own = next((place for place, frame in enumerate(frames) if not frame.is_standard), 0)
    return own > 0 and all(is_in(frame, *_JOIN) for frame in frames[:own])


def trains(frames: Sequence[Frame]) -> bool:
    """Whether the thread is in a step of a training whose library handles SIGTERM."""
    return any(is_in(frame, *step) for frame in frames for step in _STEPS)


def awaits_work(frames: Sequence[Frame]) -> bool:
    """Whether this is a worker of a DataLoader that has nothing to do."""
    return any(loop.name == "_worker_loop" for loop in _loops(tuple(frames)))


def serves_job(frames: Sequence[Frame]) -> bool:
    """Whether this thread serves any process of the job that asks it for something, so that it waits for none."""
    return any(loop.presumed.serves_job for loop in _loops(tuple(frames)))


def awaits_task_of_pool(frames: Sequence[Frame]) -> bool:
    """Whether this is the main thread of a worker of a pool of processes, and has nothing to do."""
    waiting = next((n for n, frame in enumerate(frames) if not _QUEUES.search(frame.file)), 0)
    return waiting > 0 and any(is_in(frames[waiting], *row) for row in _POOL_WORKERS)


def is_in(frame: Frame, file: str, names: frozenset[str]) -> bool:
    """Whether this is one of these functions of that file."""
    return frame.name.rpartition(".")[2] in names and (frame.file.endswith(f"/{file}") or frame.file == file)
