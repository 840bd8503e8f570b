"""Deadlocks that are proved on real processes, and healthy waits that are not."""

import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from ftrun.helpers.evidence.look import look
from ftrun.messages.evidence import LookRequest, RankState
from support.evidence_job import Job, needs_spy
from support.evidence_job import job as job
from support.proving import HEAD, closed, see, silent_server
from support.runs import state_of, wait_for

pytestmark = needs_spy


# Nothing can end these; a text that the sentence must contain.
CLOSED = {
    "a lock": ("ready(); stuck()", " waits for a lock at <string>:"),
    "a lock that waits with a side thread": (
        "lock = threading.Lock(); lock.acquire(); thread(lock.acquire, name='loader'); ready(); lock.acquire()",
        "thread 'loader' waits for a lock",
    ),
    "two locks in a cycle": (
        "a, b = threading.Lock(), threading.Lock(); both = threading.Barrier(2)\n"
        "def other():\n    with b:\n        both.wait()\n        with a: pass\n"
        "thread(other)\nwith a:\n    both.wait(); ready()\n    with b: pass",
        "waits for a lock",
    ),
    "a condition": ("ready(); threading.Event().wait()", "waits for a condition"),
    "a future": ("ready(); ThreadPoolExecutor().submit(stuck).result()", "waits for the result of a future"),
    "the interpreter's lock": (
        "def nap():\n    while True:\n        time.sleep(0.01)\nthread(nap); ready(); ctypes.PyDLL(None).pause()",
        "keeps the lock of the interpreter",
    ),
    "a pipe of its own": ("a, b = os.pipe(); ready(); os.read(a, 1)", "data from a pipe"),
    "a server of its own": (
        "s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); ready(); c.recv(1)",
        "waits for a reply from 127.0.0.1:",
    ),
    "a connection that is full": (
        "s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname())\n"
        "a = s.accept(); ready(); c.sendall(bytes(1 << 26))",
        "waits for room in the connection to 127.0.0.1:",
    ),
    "select": ("a, b = socket.socketpair(); ready(); select.select([a], [], [])", "Unix socket"),
    "an event loop without timers": (
        "async def main():\n    ready()\n    await asyncio.get_running_loop().create_future()\nasyncio.run(main())",
        "waits for",
    ),
    "an epoll in an epoll": (
        "a, b = os.pipe(); e, f = select.epoll(), select.epoll(); e.register(a, 1); f.register(e.fileno(), 1)\n"
        "ready(); f.poll()",
        "data from a pipe",
    ),
    "a child that waits for a lock": (
        "code = 'import os, threading; os.write(1, b\"x\"); l = threading.Lock(); l.acquire(); l.acquire()'\n"
        "child = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE); child.stdout.read(1)\n"
        "ready(); child.wait()",
        "main thread, waits for a lock at <string>:1, which only its own threads can end; ",
    ),
    "a child whose output a sibling reads, like a shell's with tee": (
        "code = 'import os, threading; os.write(2, b\"x\"); l = threading.Lock(); l.acquire(); l.acquire()'\n"
        "tee = subprocess.Popen(['cat'], stdin=subprocess.PIPE); r, w = os.pipe()\n"
        "subprocess.Popen([sys.executable, '-c', code], stdout=tee.stdin, stderr=w); os.read(r, 1)\n"
        "ready(); os.waitpid(-1, 0)",
        "main thread, waits for a lock at <string>:1, which only its own threads can end; ",
    ),
    "a child of a forkserver": (
        "code = 'import threading; l = threading.Lock(); l.acquire(); l.acquire()'\n"
        "p = multiprocessing.get_context('forkserver').Process(target=exec, args=(code,)); p.start(); ready()\n"
        "p.join()",
        "main thread, waits for a lock at <string>:1, which only its own threads can end; ",
    ),
    "a child whose pipe is full": (
        "child = subprocess.Popen(['cat', '/dev/zero'], stdout=subprocess.PIPE); ready(); child.wait()",
        "each of which needs the next",
    ),
    "a filter whose output nobody reads": (
        "p = subprocess.Popen(['gzip', '-c'], stdin=subprocess.PIPE, stdout=subprocess.PIPE); ready()\n"
        "p.stdin.write(os.urandom(1 << 22))",
        "waits for room in a pipe",
    ),
    "two that read from each other": (
        "ours, theirs = multiprocessing.Pipe(); fork.Process(target=theirs.recv).start(); ready(); ours.recv()",
        "each of which needs the next",
    ),
    "a semaphore for spawned processes": (
        "import operator; spawn = multiprocessing.get_context('spawn'); s = spawn.Semaphore(0)\n"
        "spawn.Process(target=operator.methodcaller('acquire'), args=(s,)).start(); ready(); s.acquire()",
        "a lock in shared memory",
    ),
    "a semaphore of processes": (
        "s = fork.Semaphore(0); fork.Process(target=s.acquire).start(); ready(); s.acquire()",
        "a lock in shared memory",
    ),
    "two locks of processes in a cycle": (
        "a, b, both = fork.Lock(), fork.Lock(), fork.Barrier(2)\n"
        "def work(first, second):\n    with first:\n        both.wait()\n        with second: pass\n"
        "p = fork.Process(target=work, args=(b, a)); p.start()\nready(); work(a, b)",
        "a lock in shared memory",
    ),
    "a queue of processes that nobody fills": (
        "q = fork.Queue(); fork.Process(target=q.get).start(); ready(); q.get()",
        "waits for an item in a queue of processes",
    ),
    "a file lock of two processes": (
        "f = open('x', 'w'); fcntl.lockf(f, 2)\n"
        "def work():\n    f = open('x', 'w'); ready(); fcntl.lockf(f, 2)\n"
        "p = fork.Process(target=work); p.start(); p.join()",  # the kernel refuses two such locks in a cycle
        "waits for a file lock",
    ),
    "a child that shares its memory": (
        "libc = ctypes.PyDLL(None)\n"
        "if os.uname().machine == 'x86_64':\n    ready()\n"
        "    if libc.syscall(56, 0x4000 | 17, 0, 0, 0, 0) == 0:\n"
        "        while True: libc.pause()\n"
        "else:\n    ready(); stuck()",
        "waits for",
    ),
    "a child that is stopped before it accepts a connection": (
        "s = socket.socket(socket.AF_UNIX); s.bind('sock'); s.listen()\n"
        "p = fork.Process(target=lambda: os.kill(os.getpid(), 19)); p.start(); s.close()\n"
        "c = socket.socket(socket.AF_UNIX); c.connect('sock'); ready(); c.recv(1)",
        "is stopped by SIGSTOP, and ",
    ),
    "a child process that is stopped": (
        "p = fork.Process(target=lambda: os.kill(os.getpid(), 19)); p.start(); ready(); p.join()",
        "is stopped by SIGSTOP, and ",
    ),
}

# Something may end these; tests/proof/hangs has hundreds more.
OPEN = {
    "a sleep": "ready(); time.sleep(500)",
    "a loop of short waits": "e = threading.Event(); ready()\nwhile not e.wait(0.05): pass",
    "a loop": "ready()\nwhile True: pass",
    "a server outside": "c = connect(); ready(); c.recv(1)",
    "a server outside, asked by a child": (
        "p = fork.Process(target=lambda: connect().recv(1)); p.start(); ready(); p.join()"
    ),
    "a connection that is expected": "s = socket.create_server(('127.0.0.1', 0)); ready(); s.accept()",
    "a Unix message that anybody may send": (
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.bind('sock'); ready(); s.recv(1)"
    ),
    "a read with a timeout of the socket": (
        "a, b = socket.socketpair(); a.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bytes([100] + [0] * 15))\n"
        "ready(); a.recv(1)"
    ),
    "a terminal": "a, b = os.openpty(); ready(); os.read(b, 1)",
    "a FIFO": "os.mkfifo('fifo'); fd = os.open('fifo', os.O_RDWR); ready(); os.read(fd, 1)",
    "a file that a side thread looks for": (
        "e = threading.Event()\n"
        "def watch():\n    while not os.path.exists('file'):\n        time.sleep(0.2)\n    e.set()\n"
        "thread(watch); ready(); e.wait()"
    ),
    "a lock of an open file, which anybody may have been given": (
        "open('x', 'w').close(); fds = [os.open('x', os.O_RDONLY) for _ in 'ab']; fcntl.flock(fds[0], 2)\n"
        "ready(); fcntl.flock(fds[1], 2)"
    ),
    "an eventfd, which anybody may have been given": "e = os.eventfd(0); ready(); os.read(e, 8)",
    "a memfd, which anybody may have been given": (
        "import mmap; fd = os.memfd_create('x'); os.ftruncate(fd, 4096); m = mmap.mmap(fd, 4096)\n"
        "libc, s = ctypes.CDLL(None), ctypes.c_char.from_buffer(m); libc.sem_init(ctypes.byref(s), 1, 0); ready()\n"
        "libc.sem_wait(ctypes.byref(s))"
    ),
    "a timer thread": (
        "lock = threading.Lock(); lock.acquire(); t = threading.Timer(500, lock.release); t.daemon = True; t.start()\n"
        "ready(); lock.acquire()"
    ),
    "an alarm": ("signal.signal(signal.SIGALRM, lambda *_: os._exit(0)); signal.alarm(500); ready(); stuck()"),
    "a POSIX timer": (
        "signal.signal(signal.SIGTERM, lambda *_: None); libc = ctypes.CDLL(None); t = ctypes.c_long()\n"
        "event = (ctypes.c_int * 16)(0, 0, 15, 0); assert libc.timer_create(1, event, ctypes.byref(t)) == 0\n"
        "times = (ctypes.c_long * 4)(0, 0, 500, 0); assert libc.timer_settime(t, 0, times, None) == 0\n"
        "ready(); stuck()"
    ),
    "a user's signal": "signal.signal(signal.SIGUSR1, lambda *_: None); ready(); stuck()",
    "pause, which is used on purpose": "ready(); ctypes.CDLL(None).pause()",
    "a process that only keeps the container": "child = subprocess.Popen(['sleep', 'infinity']); ready(); child.wait()",
    "an event that a handler sets": (
        "e = threading.Event(); signal.signal(signal.SIGTERM, lambda *_: e.set()); ready(); e.wait()"
    ),
    "a timerfd": (
        "libc = ctypes.CDLL(None); fd = libc.timerfd_create(1, 0); times = (ctypes.c_long * 4)(0, 0, 500, 0)\n"
        "libc.timerfd_settime(fd, 0, times, None); ready(); os.read(fd, 8)"
    ),
    "a child that sleeps": "child = subprocess.Popen(['sleep', '500']); ready(); child.wait()",
    "the output of a child that computes": (
        "child = subprocess.Popen([sys.executable, '-c', 'while True: pass'], stdout=subprocess.PIPE); ready()\n"
        "child.stdout.read()"
    ),
    "a child that has ended": (
        "child = subprocess.Popen(['true']); os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)\n"
        "other = subprocess.Popen(['cat'], stdin=subprocess.PIPE); ready()\n"
        "select.select([os.pidfd_open(child.pid), os.pipe()[0]], [], []); stuck_no_more = 1; time.sleep(500)"
    ),
    "processes that come and go": (
        "def work():\n    while True:\n        subprocess.run(['true'])\nthread(work); ready(); stuck()"
    ),
    "a semaphore that a spawned process may open": (
        "s = multiprocessing.get_context('spawn').Semaphore(0)\n"
        "subprocess.Popen(['sleep', '600']); ready(); s.acquire()"
    ),
    "a named semaphore": (
        "libc = ctypes.CDLL(None); libc.sem_open.restype = ctypes.c_void_p\n"
        "name = b'/ftrun-test-%d' % os.getpid(); s = libc.sem_open(name, os.O_CREAT, 0o600, 0); ready()\n"
        "libc.sem_wait(ctypes.c_void_p(s))"
    ),
}


# What waits for the same objects in another way.
SLOW = {
    "a connection that is full",
    "an epoll in an epoll",
    "a child whose pipe is full",
    "two locks of processes in a cycle",
    "a file lock of two processes",
    "a child that shares its memory",
    "a child that has ended",
    "a child that sleeps",
    "a connection that is expected",
    "a terminal",
    "a memfd, which anybody may have been given",
    "a timerfd",
    "a POSIX timer",
    "an alarm",
    "an event that a handler sets",
    "a process that only keeps the container",
}


def some(names: Collection[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in names]


@pytest.mark.parametrize("name", some(CLOSED))
def test_a_deadlock_is_proved(job: Job, name: str) -> None:
    code, text = CLOSED[name]
    job.start(HEAD + code, "0")
    found = closed(job, job.pid)
    assert text in found.mechanism
    assert found.pid in job.members()
    assert found.rank == (0 if found.pid == job.pid else None)


def test_a_deadlock_of_a_process_that_is_no_rank_is_proved(job: Job) -> None:
    job.start(HEAD + CLOSED["a child that waits for a lock"][0], "0")
    found = closed(job)
    assert found.pid in job.members()
    assert found.rank is None


def test_a_process_without_a_rank_is_named_once(job: Job) -> None:
    job.start(f"{HEAD}ready(); stuck()", "0")

    def seen() -> str:
        now = time.monotonic()
        state = RankState(-1 - job.pid, job.pid, moved_at=now - 60, step=3)
        return look(LookRequest(job.pid, now, (), (state,), between=0.3)).mechanism

    text = f"deadlock: process {job.pid} (no RANK), main thread, waits for a lock"
    wait_for(lambda: seen().startswith(text), "this sentence")


@pytest.mark.parametrize("name", some(OPEN))
def test_a_wait_that_may_end_is_never_proved(job: Job, name: str) -> None:
    with silent_server() as port:
        job.start(HEAD + OPEN[name], str(port))
        if "loop" not in name and "come and go" not in name:
            wait_for(lambda: state_of(job.pid) == "S", "the wait")
        for ranks in ((), (job.pid,)):
            found = see(job, *ranks)
            assert found.open_reason, found
        Path(f"/dev/shm/sem.ftrun-test-{job.pid}").unlink(missing_ok=True)
