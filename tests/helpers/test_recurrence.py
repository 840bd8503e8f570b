"""Loops that are proved to be endless on real processes, and computations that are healthy, which never are."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from functools import partial
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import pytest

from ftrun.helpers.evidence import recurrence, touched_memory, tracing
from ftrun.helpers.evidence.compared_memory import Memory
from ftrun.helpers.evidence.look import look
from ftrun.helpers.evidence.other_threads import OtherThreads
from ftrun.helpers.evidence.touched_memory import Area
from ftrun.messages.evidence import Look, Looked, RankState
from ftrun.messages.probe import Device
from support.evidence_job import Job, ask, needs_spy
from support.evidence_job import job as job
from support.runs import state_of, wait_for

needs_registers = pytest.mark.skipif(platform.machine() != "x86_64", reason="the registers of this machine are unknown")
pytestmark = [needs_spy, needs_registers]

HEAD = """import ctypes, hashlib, mmap, multiprocessing, os, random, signal, sys, threading, time
from multiprocessing import shared_memory
def ready():
    os.write(1, b'ready\\n')
"""
TGKILL = 234  # the system call, on x86_64
SECONDS = 6.0  # for one comparison, on a busy machine
SLOW = pytest.mark.slow


def some(names: Collection[str], *quick: str) -> list[Any]:
    """All of them; those that are not `quick` in the slow form, since each takes a processor for seconds."""
    return [pytest.param(name, marks=() if name in quick else SLOW) for name in names]


# The code, and a text that the sentence must contain.
ENDLESS = {
    "pass": ("ready()\nwhile True: pass", "repeats the same computation at <string>:"),
    "a flag that nobody sets": ("flag = {'set': False}; ready()\nwhile not flag['set']: pass", "endless loop: "),
    "functions": (
        "def arrived(x): return x < 0\ndef again(x): return x + 0\n"
        "def main(x):\n    while not arrived(x): x = again(x)\nready(); main(0)",
        "endless loop: ",
    ),
    "the elements of a list": ("found = [1, 2, 3]; ready()\nwhile sum(found) == 6: pass", "endless loop: "),
    "beside a thread that waits for a lock": (
        "lock = threading.Lock(); lock.acquire(); threading.Thread(target=lock.acquire, daemon=True).start(); ready()\n"
        "while lock.locked(): pass",
        "endless loop: ",
    ),
    "in a child that is awaited": (
        "def spin():\n    ready()\n    while True: pass\n"
        "p = multiprocessing.get_context('fork').Process(target=spin); p.start(); p.join()",
        "repeats the same computation at <string>:",
    ),
}
# All of these compute for ever as far as anybody can see, and some of them end one day.
HEALTHY = {
    "a counter": "n = 0; ready()\nwhile True: n += 1",
    "a counter in a list": "n = [0]; ready()\nwhile True: n[0] += 1",
    "nested loops": (
        "ready()\nfor a in range(400):\n    for b in range(400):\n        for c in range(400):\n"
        "            for d in range(400): pass"
    ),
    "a computation with few variables": "x = 3; ready()\nwhile True: x = x * x % 1000000007",
    "random numbers": "ready()\nwhile random.random() < 2: pass",
    "a sieve": (
        "sieve = bytearray(1 << 24); ready()\nfor n in range(2, 1 << 24):\n"
        "    for m in range(n, 1 << 24, n): sieve[m] ^= 1"
    ),
    "until a time": "end = time.time() + 10**6; ready()\nwhile time.time() < end: pass",
    "until a time, with other work in between": (
        "def work():\n    x = 0.0\n    for n in range(300): x = x * 0.5 + 1.0\n    return x\n"
        "end = time.monotonic() + 10**6; ready()\nwhile time.monotonic() < end: work()"
    ),
    "until a file exists": "ready()\nwhile not os.path.exists('file'): pass",
    "until another process sets a flag in shared memory": (
        "memory = shared_memory.SharedMemory(sys.argv[1]); flag = memory.buf; ready()\nwhile not flag[0]: pass"
    ),
    "until another process sets a value": (
        "value = multiprocessing.Value('i', 0, lock=False); ready()\nwhile not value.value: pass"
    ),
    "until another process changes a mapped file": (
        "open('data', 'wb').write(bytes(4096)); file = open('data', 'rb')\n"
        "flag = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ); ready()\n"
        "while not flag[0]: pass"
    ),
    "until a thread that sleeps sets a flag": (
        "flag = []\ndef later():\n    time.sleep(500); flag.append(1)\n"
        "threading.Thread(target=later, daemon=True).start(); ready()\nwhile not flag: pass"
    ),
    "until a thread has computed": (
        "flag = []\ndef work():\n    hashlib.pbkdf2_hmac('sha256', b'a', b'b', 10**9); flag.append(1)\n"
        "threading.Thread(target=work, daemon=True).start(); ready()\nwhile not flag: pass"
    ),
    "until an alarm": (
        "flag = []; signal.signal(signal.SIGALRM, lambda *_: flag.append(1)); signal.alarm(500); ready()\n"
        "while not flag: pass"
    ),
    "until a SIGTERM": (
        "flag = []; signal.signal(signal.SIGTERM, lambda *_: flag.append(1)); ready()\nwhile not flag: pass"
    ),
    "until a SIGUSR1": (
        "flag = []; signal.signal(signal.SIGUSR1, lambda *_: flag.append(1)); ready()\nwhile not flag: pass"
    ),
    "until a child has ended, by a handler": (
        "flag = []; signal.signal(signal.SIGCHLD, lambda *_: flag.append(1))\nif os.fork() == 0: time.sleep(500)\n"
        "ready()\nwhile not flag: pass"
    ),
    "a loop of a C extension": "ready(); hashlib.pbkdf2_hmac('sha256', b'a', b'b', 10**9)",
    "a loop in C that nobody knows": "libc = ctypes.PyDLL(None); ready()\nwhile True: libc.abs(-1)",
    "waits for other processes by sched_yield": "ready()\nwhile True: os.sched_yield()",
}
HEAVY = {
    "numpy, in the same frame": (
        "import numpy as np\na = np.random.rand(300, 300); ready()\nwhile True: a = np.tanh(a @ a)"
    ),
    "numpy, a flag in an array": "import numpy as np\na = np.zeros(3); ready()\nwhile a[0] == 0: a[1] += 1",
    "torch, in the same frame": (
        "import torch; torch.set_num_threads(1)\na = torch.rand(300, 300); ready()\nwhile True: a = torch.tanh(a @ a)"
    ),
}


def see(job: Job, *ranks: int, devices: tuple[Device, ...] = (), compare: float = SECONDS) -> Looked:
    now = time.monotonic()
    states = tuple(RankState(number, pid, moved_at=now - 60) for number, pid in enumerate(ranks))
    return look(Look(job.pid, now, (), states, devices, between=0.3, timeout=20.0, compare=compare))


def closed(job: Job, *ranks: int) -> Looked:
    """The first two looks in a row that are closed and the same; a busy machine may need more of them."""
    looks = [see(job, *ranks)]

    def twice() -> bool:
        looks.append(see(job, *ranks))
        first, second = looks[-2:]
        return second.open_reason is None and (first.open_reason, first.fingerprint) == (None, second.fingerprint)

    try:
        wait_for(twice, "a proof", 240)
    except AssertionError as error:
        raise AssertionError(f"{error}; {[look.open_reason for look in looks]}") from None
    return looks[-1]


@pytest.mark.parametrize("name", some(ENDLESS, "a flag that nobody sets", "in a child that is awaited"))
def test_an_endless_loop_is_proved(job: Job, name: str) -> None:
    code, text = ENDLESS[name]
    job.start(HEAD + code)
    found = closed(job, job.pid)
    assert text in found.mechanism
    assert found.kind == "loop"
    assert found.rank == (None if "child" in name else 0)
    assert found.compared > 0


@pytest.mark.parametrize(
    "name",
    some(
        HEALTHY,
        *("a counter", "random numbers", "until a time", "until a file exists", "until a SIGTERM"),
        *("until a thread that sleeps sets a flag", "until another process sets a flag in shared memory"),
        "a loop of a C extension",
    ),
)
def test_a_computation_is_never_taken_for_an_endless_loop(job: Job, name: str) -> None:
    memory = shared_memory.SharedMemory(create=True, size=64)
    try:
        job.start(HEAD + HEALTHY[name], memory.name)
        found = see(job, job.pid, compare=0.6)
        assert found.open_reason, found
    finally:
        memory.close()
        memory.unlink()


@pytest.mark.parametrize("every", [0.05, pytest.param(0.2, marks=SLOW), pytest.param(0.01, marks=SLOW)])
def test_a_wait_for_another_process_is_none_while_something_else_clears_the_accessed_bits(
    job: Job, every: float
) -> None:
    """As the kernel does where memory is short (multi-generational LRU), and a profiler of memory."""
    memory = shared_memory.SharedMemory(create=True, size=64)
    try:
        job.start(HEAD + HEALTHY["until another process sets a flag in shared memory"], memory.name)
        path = f"/proc/{job.pid}/clear_refs"
        code = f"import time\nwhile True:\n    time.sleep({every}); open({path!r}, 'w').write('1')"
        with subprocess.Popen([sys.executable, "-c", code]) as other:
            try:
                assert all(recurrence.compare(job.pid, job.pid, 3.0).reason is not None for _ in range(2))
            finally:
                other.kill()
    finally:
        memory.close()
        memory.unlink()


@pytest.mark.parametrize("name", some(HEAVY, "numpy, a flag in an array"))
def test_a_library_that_computes_in_one_frame_is_never_taken_for_an_endless_loop(job: Job, name: str) -> None:
    pytest.importorskip(name.partition(",")[0])
    job.start(HEAD + HEAVY[name])
    found = see(job, job.pid, compare=0.6)
    assert found.open_reason, found


def test_each_access_is_seen_in_exact_windows_although_the_processor_remembers_pages(job: Job) -> None:
    """Without that, a loop which waits for another process is taken for an endless one on a quiet machine."""
    memory = shared_memory.SharedMemory(create=True, size=64)
    try:
        job.start(HEAD + HEALTHY["until another process sets a flag in shared memory"], memory.name)
        with tracing.Tracee(job.pid) as tracee:
            for _ in range(100):
                touched_memory.clear(job.pid, exact=True)
                for _ in range(20):
                    tracee.run(0.0003)
                (flag,) = (area for area in touched_memory.read(job.pid) if area.path.endswith(memory.name))
                assert flag.touched
    finally:
        memory.close()
        memory.unlink()


# A rank of torch, which is slow to start: the thread of gloo runs a hundred times a second, as it does whenever ranks
# are connected.
RANK = (
    "import torch, torch.distributed as dist\n"
    "dist.init_process_group('gloo', rank=0, world_size=1, store=dist.HashStore())\n"
)


@pytest.mark.slow
def test_an_endless_loop_beside_the_thread_of_gloo_is_proved(job: Job) -> None:
    pytest.importorskip("torch")
    job.start(HEAD + RANK + "ready()\nwhile True: pass")
    wait_for(lambda: "gloo_tcp_loop" in threads(job.pid).values(), "its name")
    wait_for(lambda: recurrence.compare(job.pid, job.pid, SECONDS).reason is None, "the proof", 300)


@pytest.mark.slow
def test_a_wait_for_another_process_beside_the_thread_of_gloo_is_no_endless_loop(job: Job) -> None:
    pytest.importorskip("torch")
    memory = shared_memory.SharedMemory(create=True, size=64)
    try:
        name = "until another process sets a flag in shared memory"
        job.start(HEAD + RANK + HEALTHY[name], memory.name)
        assert all(recurrence.compare(job.pid, job.pid, 2.0).reason is not None for _ in range(2))
    finally:
        memory.close()
        memory.unlink()


@pytest.mark.slow
def test_a_thread_that_is_stopped_for_moments_misses_no_signal(job: Job) -> None:
    """Signals from SIGRTMIN on are counted by the kernel."""
    pytest.importorskip("torch")
    code = (
        "signal.signal(signal.SIGRTMIN, lambda *_: None)\nready(); os.set_blocking(1, False)\n"
        "signal.set_wakeup_fd(1)\nwhile True: pass"
    )
    job.start(HEAD + RANK + code)
    out = job.processes[0].stdout
    assert out is not None
    wait_for(lambda: "gloo_tcp_loop" in threads(job.pid).values(), "its name")
    thread = next(int(tid) for tid, name in threads(job.pid).items() if name == "gloo_tcp_loop")
    sent, ended = 0, threading.Event()

    def send() -> None:
        nonlocal sent
        while not ended.wait(0.05):
            sent += ctypes.CDLL(None).syscall(TGKILL, job.pid, thread, int(signal.SIGRTMIN)) == 0

    def stopped() -> bool:
        return recurrence.compare(job.pid, job.pid, 2.0).reason == "has received a signal"

    sender = threading.Thread(target=send)
    sender.start()
    try:
        for _ in range(5):
            wait_for(stopped, "a signal that stops the thread of gloo")
    finally:
        ended.set()
        sender.join()
    os.set_blocking(out.fileno(), False)
    received = bytearray()

    def all_received() -> bool:
        received.extend(out.read() or b"")
        return len(received) >= sent

    wait_for(all_received, f"{sent} signals")
    assert received == bytes([signal.SIGRTMIN]) * sent


def test_states_are_compared_only_if_that_is_asked_for(job: Job) -> None:
    job.start(HEAD + "ready()\nwhile True: pass")
    found = see(job, job.pid, compare=0.0)
    assert found.open_reason == "rank 0 is running"
    assert found.compared == 0


@pytest.mark.parametrize(
    ("devices", "proved"),
    [
        ((), False),
        ((Device("nvidia", "GPU-1", 0, "x", util=100.0),), False),
        ((Device("nvidia", "GPU-1", 0, "x", util=0.0),), True),
    ],
    ids=["unknown", "busy", "still"],
)
def test_a_device_that_is_open_has_to_stand_still(
    job: Job, tmp_path: Path, devices: tuple[Device, ...], proved: bool
) -> None:
    """Whether a process has one open is seen by the path; an accelerator may write to memory that nobody maps."""
    device = Path(f"/dev/nvidia-ftrun-test-{os.getpid()}")
    if os.getuid():
        pytest.skip("only root can make a device file")
    os.mknod(device, 0o600 | 0o020000, os.makedev(1, 3))
    try:
        job.start(HEAD + "f = open(sys.argv[1]); ready()\nwhile True: pass", str(device))
        if proved:
            wait_for(lambda: see(job, job.pid, devices=devices).open_reason is None, "a proof", 120)
        else:
            assert "open, which may change its memory" in (see(job, job.pid, devices=devices).open_reason or "")
    finally:
        device.unlink()


def test_a_comparison_leaves_nothing_behind(job: Job) -> None:
    """Also if the helper is killed in the middle: the thread goes on, and no signal comes."""
    job.start(HEAD + "n = 0; ready()\nwhile n < 10**12: n += 1")
    code = f"import sys; sys.path[:0] = {sys.path!r}\nfrom ftrun.helpers.evidence import recurrence\n"
    code += f"print('begun', flush=True)\nrecurrence.compare({job.pid}, {job.pid}, 60.0)"
    for _ in range(5):
        helper = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        try:
            assert helper.stdout is not None
            helper.stdout.readline()
            wait_for(partial(traced, job.pid, helper.pid), "the trace")
        finally:
            helper.kill()
            helper.communicate()
        wait_for(lambda: traced(job.pid, 0) and state_of(job.pid) == "R", "the thread to go on")
        wait_for(partial(computes, job.pid, used(job.pid)), "more computation")


def test_a_signal_during_a_comparison_arrives(job: Job) -> None:
    job.start(
        HEAD + "signal.signal(signal.SIGUSR1, lambda *_: (ready(), sys.exit(7))); n = 0; ready()\nwhile True: n += 1"
    )
    sender = subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -USR1 {job.pid}"])
    found = recurrence.compare(job.pid, job.pid, 60.0)
    sender.wait()
    assert found.reason in ("has received a signal", "calls the system", "has ended"), found
    assert job.processes[0].wait(60) == 7


def test_a_stop_during_a_comparison_lasts(job: Job) -> None:
    job.start(HEAD + "n = 0; ready()\nwhile True: n += 1")
    sender = subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -STOP {job.pid}"])
    found = recurrence.compare(job.pid, job.pid, 60.0)
    sender.wait()
    assert found.reason == "has received a signal", found
    wait_for(lambda: state_of(job.pid) == "T", "the stop")
    os.kill(job.pid, signal.SIGCONT)
    wait_for(lambda: state_of(job.pid) == "R", "the thread to go on")


def test_a_thread_that_has_ended_or_may_not_be_traced_is_not_compared(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start(HEAD + "ready(); sys.stdin.read(); os.read(os.pipe()[0], 1)")
    job.processes[0].kill()
    job.processes[0].wait()
    assert "its state cannot be read" in (recurrence.compare(job.pid, job.pid, 1.0).reason or "")
    monkeypatch.setattr(tracing, "SUPPORTED", False)
    assert "x86_64 only" in (recurrence.compare(os.getpid(), os.getpid(), 1.0).reason or "")


@pytest.mark.timeout(600)
def test_the_evidence_proves_the_loop_once_more_or_clears_it(job: Job) -> None:
    job.start(HEAD + "ready()\nwhile True: pass")
    finding = {"rule": "loop", "limit": 15.0, "mechanism": "endless loop: it repeats"}
    cleared = list[str | None]()

    def answer() -> str | None:
        state = [{"rank": 0, "pid": job.pid, "step": 7, "moved_at": time.monotonic() - 60}]
        cleared.append(ask(job, finding=finding, ranks=state).result["cleared"])
        return cleared[-1]

    try:  # beside processes with the same libraries that end, either may take more than one comparison
        wait_for(lambda: answer() is None, "a proof", 240)
        job.end()
        job.processes.clear()
        cleared.clear()
        job.start(HEAD + "n = 0; ready()\nwhile True: n += 1")
        wait_for(lambda: "computes, and its state was not found to recur" in (answer() or ""), "that it counts", 240)
    finally:
        print(*cleared, sep="\n")
    assert None not in cleared, "a loop that counts was proved to be endless"


def test_what_is_compared_only_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    other, heap = Area(16, 24, "rw-p", "", touched=1), Area(32, 40, "rw-p", "[heap]", touched=1)
    found, why = repeated(monkeypatch, heap, [[other]])
    assert why == "touches other memory now and then"
    assert found == [heap, other]


def test_the_data_of_a_library_is_compared_once_it_is_touched_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks touched whenever another process that has loaded the library ends."""
    one, another = (Area(at, at + 8, "rw-p", f"/usr/lib/{at}.so", touched=1, common=True) for at in (16, 24))
    heap = Area(32, 40, "rw-p", "[heap]", touched=1)
    found, why = repeated(monkeypatch, heap, [[one], [one, another], [another], [], []])
    assert why is None, "each of them is untouched in most of the windows"
    assert found == [heap]
    found, why = repeated(monkeypatch, heap, [[one]] * 3)
    assert why == "touches other memory now and then"
    assert found == [heap, one]


def test_a_state_with_other_memory_than_before_is_not_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """All memory is read again before a proof counts."""
    heap = Area(32, 40, "rw-p", "[heap]", touched=1)
    readings = iter([True, False])
    monkeypatch.setattr(Memory, "learn", lambda _: next(readings))
    found, why = repeated(monkeypatch, heap, [[]] * 6)
    assert (found, why) == ([heap], None)
    assert next(readings, None) is None, "it was read twice: after three windows, and after three more"


def test_a_thread_that_runs_beside_is_noticed(job: Job) -> None:
    job.start(HEAD + "threading.Thread(target=lambda: [time.sleep(0.01) for _ in range(10**6)]).start()\nready()")
    others = OtherThreads(job.pid, job.pid)
    with others, others.held():
        wait_for(lambda: others.have_run, "the other thread to run")


def test_threads_at_rest_do_not_run(job: Job) -> None:
    job.start(HEAD + "threading.Thread(target=time.sleep, args=[500], daemon=True).start()\nready(); time.sleep(500)")
    job.wait_asleep()
    with OtherThreads(job.pid, job.pid) as others, others.held():
        time.sleep(0.1)
        assert not others.have_run


def repeated(
    monkeypatch: pytest.MonkeyPatch, compared: Area, windows: list[list[Area]]
) -> tuple[list[Area], str | None]:
    """What is compared after these windows, in each of which one and the same state recurs, and why there is no proof;
    `windows`: which areas look touched."""
    comparer = recurrence._Comparer(0, 0, None, None, -1, time.monotonic() + 60)  # type: ignore[arg-type]
    comparer._exact, seen = True, iter(windows)
    monkeypatch.setattr(touched_memory, "clear", lambda pid, exact: None)
    usual, turn = recurrence._Touched([compared], [], {}), recurrence._Turn(1, 0.001, 1.0)
    monkeypatch.setattr(comparer, "_sample", lambda _: turn)
    monkeypatch.setattr(comparer, "_touched", lambda: usual)
    monkeypatch.setattr(comparer, "_window", lambda *_: usual._replace(written=[compared, *next(seen)]))
    monkeypatch.setattr(comparer, "_return", lambda *_: turn)
    found, why = comparer._repeat(usual)
    return found.written, why


@pytest.mark.slow
def test_states_recur_although_other_processes_with_the_same_libraries_end_all_the_time(job: Job) -> None:
    """Each of them makes the data of these libraries look touched."""
    modules = "sqlite3, ssl, lzma, bz2, curses, readline, decimal, pyexpat, ctypes"
    job.start(HEAD + f"import {modules}\nready()\nwhile True: pass")
    others = subprocess.Popen(["sh", "-c", f"while :; do '{sys.executable}' -c 'import {modules}'; done"])
    try:
        wait_for(lambda: recurrence.compare(job.pid, job.pid, SECONDS).reason is None, "the proof")
    finally:
        others.kill()
        others.wait()


@pytest.mark.parametrize("forked", [False, True])
def test_memory_that_other_processes_may_map_is_known(job: Job, forked: bool) -> None:
    job.start(
        HEAD + "memory = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); memory.write(b'1')\n"
        "open('address', 'w').write(str(ctypes.addressof(ctypes.c_char.from_buffer(memory))))\n"
        + ("os.fork() or time.sleep(500)\n" if forked else "")
        + "ready(); time.sleep(500)"
    )
    at = int((job.folder / "address").read_text())
    areas = touched_memory.read(job.pid)
    assert next(area for area in areas if area.start <= at < area.end).common is forked
    assert all(area.common for area in areas if area.is_code and area.path.startswith("/"))


# --- which memory is touched --------------------------------------------------------------------------------------

PYTHON = Area(0, 8, "r-xp", "/usr/bin/python3.11", touched=4096)


@pytest.mark.parametrize(
    ("area", "text"),
    [
        (Area(16, 24, "rw-p", "", touched=4096), None),
        (Area(16, 24, "rw-p", "[heap]", touched=4096), None),
        (Area(16, 24, "r--p", "/usr/bin/python3.11", touched=4096), None),
        (Area(16, 24, "r-xp", "/usr/lib/python3.11/lib-dynload/math.cpython-311-x86_64-linux-gnu.so", touched=1), None),
        (Area(16, 24, "r-xp", "/usr/lib/x86_64-linux-gnu/libc.so.6", touched=1), None),
        (Area(16, 24, "r-xp", "/usr/lib/x86_64-linux-gnu/libz.so.1.2.13", touched=1), None),
        (Area(16, 24, "r-xp", "/usr/lib/x86_64-linux-gnu/libffi.so.8.1.2", touched=1), None),
        (Area(16, 24, "r-xp", "/usr/lib/libzstd.so.1", touched=1), "runs code of libzstd.so.1"),
        (Area(16, 24, "rw-s", "/dev/shm/x", touched=0), None),
        (Area(16, 24, "rw-s", "/tmp/beats", touched=1), None),
        (Area(16, 24, "r--p", "[vvar]", unseen=True), None),
        (Area(16, 24, "rw-s", "/dev/nvidia0", unseen=True), None),
        (Area(16, 24, "rw-s", "/dev/infiniband/uverbs0", unseen=True), "has memory that cannot be observed"),
        (Area(16, 24, "rw-s", "/dev/shm/x", touched=1), "uses memory that others may change, /dev/shm/x"),
        (Area(16, 24, "r-xp", "[vdso]", touched=1), "asks for the time"),
        (Area(16, 24, "r-xp", "", touched=1), "runs code of no file"),
        (Area(16, 24, "r-xp", "/usr/lib/libcrypto.so.3", touched=1), "runs code of libcrypto.so.3"),
        (Area(16, 24, "r-xp", "/usr/lib/libcublas.so.12", touched=1), "runs code of libcublas.so.12"),
        (Area(16, 24, "r-xp", "/usr/lib/python3.11/lib-dynload/_ctypes.so", touched=1), "runs code of _ctypes.so"),
        (Area(16, 24, "r--p", "/data/train.bin", touched=1), "reads the mapped file /data/train.bin"),
    ],
    ids=str,
)  # fmt: skip
def test_what_may_change_without_the_doing_of_a_thread(area: Area, text: str | None) -> None:
    found = list(touched_memory.influences([PYTHON, area], "/tmp/beats").values())
    assert found == [] if text is None else found[0].startswith(text)
    assert touched_memory.influences([area._replace(touched=0, unseen=False)]), "no code at all was seen"


LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib")
READING = {"rdtsc", "rdtscp", "rdpmc", "rdpru", "rdpid", "rdrand", "rdseed", "cpuid", "xgetbv", "lsl", "str", "sldt"}
READING |= {
    "sgdt",
    "sidt",
    "smsw",
    "umwait",
    "tpause",
    "umonitor",
    "rdfsbase",
    "rdgsbase",
    "syscall",
    "sysenter",
    "int",
}


@pytest.mark.skipif(shutil.which("objdump") is None, reason="there is no objdump")
@pytest.mark.parametrize("name", ["libz.so.1", "libffi.so.8"])
def test_libraries_that_count_as_the_interpreter_read_nothing_but_memory(name: str) -> None:
    """No instruction that reads a clock, a random number, or which processor it is."""
    path = next(filter(os.path.exists, (f"{folder}/{name}" for folder in LIBRARIES)), None)
    if path is None:
        pytest.skip(f"there is no {name}")
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True)
    used = {line.split("\t")[1].split()[0] for line in text.stdout.splitlines() if line.count("\t") >= 1}
    assert "mov" in used
    assert not used & READING


def threads(pid: int) -> dict[str, str]:
    """By thread its name."""
    return {path.name: (path / "comm").read_text().strip() for path in Path(f"/proc/{pid}/task").iterdir()}


def traced(pid: int, tracer: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return f"TracerPid:\t{tracer}" in lines


def computes(pid: int, before: int) -> bool:
    return used(pid) > before


def used(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
