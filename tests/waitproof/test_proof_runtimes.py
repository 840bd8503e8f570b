"""Deadlocks and healthy waits of programs in other versions of Python, and beside libraries that wait in other ways."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ftrun.helpers.evidence import look
from support.evidence_job import Job, needs_spy
from support.evidence_job import job as job
from support.proving import HEAD, closed, see
from support.pythons import NEW, version
from support.runs import state_of, wait_for
from waitproof import recognized, stacks
from waitproof.libraries import Libraries
from waitproof.proof import Proof
from waitproof.stacks import Frame

LIBRARY = "/usr/lib/python3.11/multiprocessing"

pytestmark = needs_spy
OTHERS = [python for python in NEW[1:] if not version(python).startswith("3.11")]  # which all other tests use

# Before 3.11 a thread of Python does not know its number in the kernel.
OPEN = {
    "an event that SIGTERM sets": (
        "e = threading.Event(); signal.signal(signal.SIGTERM, lambda *_: e.set()); ready(); e.wait()"
    ),
    "an event of processes that SIGHUP sets": (
        "e = multiprocessing.Event(); signal.signal(signal.SIGHUP, lambda *_: e.set()); ready(); e.wait()"
    ),
    "a side thread with a timer": "thread(time.sleep, 500); ready(); stuck()",
}
CLOSED = {
    "a lock": ("ready(); stuck()", "waits for a lock at <string>:"),
    "a thread that is joined": ("t = threading.Thread(target=stuck, daemon=True); t.start(); ready(); t.join()", ""),
    "an event loop": (
        "async def main():\n    ready()\n    await asyncio.get_running_loop().create_future()\nasyncio.run(main())",
        "waits for",
    ),
    "a semaphore of processes": (
        "s = fork.Semaphore(0); fork.Process(target=s.acquire).start(); ready(); s.acquire()",
        "a lock in shared memory",
    ),
}
# Interpreters in one process, since 3.12 each with a lock of its own: (the name of the module, how one is made).
INTERPRETERS = {"3.12": ("_xxsubinterpreters", "create()"), "3.13": ("_interpreters", "create('isolated')")}


def _sleeps(pid: int) -> bool:
    return state_of(pid) == "S"


def _pythons() -> list[Any]:
    """The newest one, and the newest that does not know these numbers; all others in the slow form."""
    if not OTHERS:
        return [pytest.param(Path(), marks=pytest.mark.skip("no other version of Python is installed with pyenv"))]
    older = [python for python in OTHERS if version(python).startswith(("3.8.", "3.9.", "3.10."))]
    quick = {OTHERS[-1], *older[-1:]}
    slow = pytest.mark.slow
    return [pytest.param(python, id=version(python), marks=() if python in quick else slow) for python in OTHERS]


@pytest.mark.parametrize("python", _pythons())
def test_another_version_of_python_is_never_convicted_for_a_wait_that_may_end(job: Job, python: Path) -> None:
    for number, (name, code) in enumerate(OPEN.items()):
        one = job if number == 0 else Job(job.folder)
        try:
            one.start(HEAD + code, "0", python=python)
            wait_for(partial(_sleeps, one.pid), "the wait")
            assert see(one, one.pid).open_reason, name
        finally:
            one.end()


@pytest.mark.parametrize("python", _pythons())
@pytest.mark.parametrize("name", CLOSED)
def test_a_deadlock_in_another_version_of_python_is_proved(job: Job, python: Path, name: str) -> None:
    code, text = CLOSED[name]
    job.start(HEAD + code, "0", python=python)
    assert text in closed(job, job.pid).mechanism


def _interpreter(number: str) -> tuple[Path, str, str]:
    python = next((python for python in OTHERS if version(python).startswith(number)), None)
    if python is None:
        pytest.skip(f"Python {number} is not installed with pyenv")
    return python, *INTERPRETERS[number]


@pytest.mark.parametrize("number", INTERPRETERS)
@pytest.mark.parametrize("proved", [False, True])
def test_an_interpreter_beside_the_main_one_ends_its_wait_or_is_a_part_of_the_deadlock(
    job: Job, number: str, proved: bool
) -> None:
    python, module, create = _interpreter(number)
    code = (
        "import _thread; l = _thread.allocate_lock(); l.acquire(); l.acquire()"
        if proved
        else "import time; time.sleep(500)"
    )
    job.start(
        f"import {module} as other\n{HEAD}one = other.{create}\n"
        f"t = threading.Thread(target=other.run_string, args=(one, {code!r}), daemon=True)\n"
        "t.start(); ready(); t.join()",
        "0",
        python=python,
    )
    if proved:
        assert closed(job, job.pid).open_reason is None
    else:
        wait_for(lambda: "waits for a timer" in (see(job, job.pid).open_reason or ""), "the reason", 20)


# What the main thread waits for beside an interpreter that does nothing, in a rank that has stepped.
BESIDE = {
    "an event that SIGTERM sets": "e = threading.Event(); signal.signal(15, lambda *_: e.set()); ready(); e.wait()",
    "a thread without signals": """gate, held = threading.Lock(), threading.Lock(); gate.acquire(); held.acquire()
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
thread(lambda: (gate.acquire(True, 7200), held.release())); ready(); held.acquire()""",
}


@pytest.mark.parametrize("number", INTERPRETERS)
@pytest.mark.parametrize("name", BESIDE)
def test_of_a_main_thread_beside_another_interpreter_nothing_is_presumed(job: Job, number: str, name: str) -> None:
    """py-spy reads the newest interpreter alone, and before 3.13 it takes the thread of that for the main one."""
    python, module, create = _interpreter(number)
    beside = "a, b = os.pipe(); thread(other.run_string, one, f'import os; os.read({a}, 1)')\n"
    job.start(f"import {module} as other\n{HEAD}one = other.{create}; {beside}{BESIDE[name]}", "0", python=python)
    wait_for(partial(_sleeps, job.pid), "the wait")
    for _ in range(3):
        assert see(job, job.pid, step=7).open_reason


def test_a_collective_with_the_default_timeout_is_presumed_to_wait_for_its_ranks_and_one_with_a_short_one_is_not() -> (
    None
):
    reduce = (Frame("all_reduce", "/x/torch/distributed/distributed_c10d.py", 9),)
    for frames, name in ((reduce, "python"), ((), "pt_gloo_runloop")):
        assert recognized.presumed(frames, name, 1770.0, sleeps=False) is not None
        assert recognized.presumed(frames, name, None, sleeps=False) is not None
        assert recognized.presumed(frames, name, 70.0, sleeps=False) is None
    assert recognized.presumed((), "gloo_tcp_loop", 0.01, sleeps=False) is not None


@pytest.mark.parametrize("package", ["torch/utils/data/", "torchdata/stateful_dataloader/"])
def test_a_copy_of_the_data_loader_is_known_like_it(package: str) -> None:
    loader = "dataloader.py" if package.startswith("torch/") else "stateful_dataloader.py"
    worker = "_utils/worker.py" if package.startswith("torch/") else "worker.py"
    waits: tuple[Frame, ...] = (Frame("select", "/usr/lib/python3.11/selectors.py", 1),)
    waits += tuple(Frame(name, f"{LIBRARY}/connection.py", 1) for name in ("wait", "_poll", "poll"))
    waits += (Frame("get", f"{LIBRARY}/queues.py", 1),)
    main = (*waits, Frame("_try_get_data", f"/v/site-packages/{package}{loader}", 1), Frame("<module>", "/train.py", 1))
    served = (*waits, Frame("_worker_loop", f"/v/site-packages/{package}{worker}", 1))
    assert recognized.awaits_batch(main)
    assert recognized.works_for_loader(served)
    assert recognized.awaits_task(served)
    for frames, name in ((main, "python"), (served, "pt_data_worker")):
        assert recognized.presumed(frames, name, 4.99, sleeps=False) is not None
        for given in (60.0, 2.0):
            assert recognized.presumed(frames, name, given, sleeps=False) is None, "the program gave that timeout"
    pins = (Frame("wait", "/usr/lib/python3.11/threading.py", 1), Frame("get", "/usr/lib/python3.11/queue.py", 1))
    assert recognized.presumed((*pins, *main[len(waits) :]), "python", 2.0, sleeps=False) is not None, (
        "what is left of it"
    )


def test_all_workers_of_a_rank_are_read() -> None:
    found = Proof("", followed=tuple((pid, pid) for pid in range(1, 130)))
    assert len(look._to_spy(found, {1})) == 128


def test_the_main_thread_has_the_number_of_its_process_where_python_does_not_know_it() -> None:
    content = (
        b'[{"thread_name": "worker", "os_thread_id": null, "active": true, "owns_gil": false, "frames": []},'
        b' {"thread_name": "MainThread", "os_thread_id": null, "active": true, "owns_gil": false, "frames": []},'
        b' {"thread_name": "other", "os_thread_id": null, "active": true, "owns_gil": false, "frames": []}]'
    )
    found = stacks.parse(7, content)
    assert [thread.tid for thread in found.threads] == [None, 7, None]
    assert found.main is found.threads[1]


# A library that handles SIGTERM while it trains: that ends no wait in a step, and may end one between two of them.
TRAINS = """
class Loop:
    def advance(self, wait):
        wait()

    def run(self, wait):
        wait()
"""


@pytest.mark.parametrize("file", ["lightning/pytorch/loops/fit_loop.py", "pytorch_lightning/loops/fit_loop.py"])
@pytest.mark.parametrize("waits", ["stuck", "threading.Event().wait"])
def test_a_deadlock_in_a_step_is_proved_although_the_library_handles_sigterm(job: Job, file: str, waits: str) -> None:
    path = job.folder / file
    path.parent.mkdir(parents=True)
    path.write_text(TRAINS)
    load = (
        f"import runpy; made = runpy.run_path({str(path)!r})['Loop'](); signal.signal(signal.SIGTERM, lambda *_: None)"
    )
    job.start(f"{HEAD}{load}; ready(); made.advance({waits})", "0")
    between = Job(job.folder)
    try:
        between.start(f"{HEAD}{load}; ready(); made.run({waits})", "0")
        closed(job, job.pid)
        wait_for(partial(_sleeps, between.pid), "the wait")
        assert "signal 15, which its process handles" in (see(between, between.pid).open_reason or "")
    finally:
        between.end()


def test_the_compiler_of_mindspore_gives_nothing_to_other_waits() -> None:
    """Its schedule looks every three seconds whether an analysis may go on; only what waits in the compiler gets it."""
    common, own = {"/lib/libc.so.6", "/lib/libstdc++.so.6"}, {"/mindspore/lib/libmindspore_frontend.so"}
    schedule, other = Libraries(frozenset(own), frozenset(own | common)), frozenset({"/mindspore/lib/libcore.so"})
    assert recognized.given((), False, schedule, ()) == {recognized.Gives.COMPILER}
    assert recognized.given((), False, Libraries(other, frozenset(own | other)), ()) == frozenset(recognized.Gives)
    assert recognized.given((), False, None, ()) == frozenset(recognized.Gives)
    assert recognized.needed((), schedule, False) == recognized.Gives.COMPILER
    assert recognized.needed((), Libraries(other, other), False) == recognized.Gives.ANYTHING


def test_a_process_that_compiles_for_torch_only_looks_for_the_end_of_its_parent(job: Job) -> None:
    path = job.folder / "torch/_inductor/compile_worker/utils.py"
    path.parent.mkdir(parents=True)
    path.write_text("import time\ndef run():\n    while True:\n        time.sleep(60)\n")
    load = f"import runpy; thread(runpy.run_path({str(path)!r})['run'])"
    job.start(f"{HEAD}if not os.fork():\n    {load}; stuck()\nready(); stuck()", "0")
    assert "waits for a lock" in closed(job).mechanism


@pytest.mark.slow
@pytest.mark.torch
def test_a_deadlock_beside_the_processes_that_compile_for_torch_is_proved(job: Job) -> None:
    load = "from torch._inductor.compile_worker.subproc_pool import SubprocPool\npool = SubprocPool(2)"
    job.start(f"{HEAD}{load}; pool.submit(abs, 1).result(); ready(); stuck()", "0")
    assert "waits for a lock" in closed(job, job.pid, step=7).mechanism
