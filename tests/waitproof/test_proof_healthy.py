"""Healthy waits that end in a way which is easily overlooked: by the kernel, by a watchdog, by who stopped
the job, or by who is about to receive a descriptor.  None of them is ever proved to last for ever."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.helpers.evidence.look import look
from ftrun.messages.evidence import LookRequest, RankState
from support.evidence_job import Job, needs_spy
from support.evidence_job import job as job
from support.proving import SMALL, closed, permitted, see
from support.runs import state_of, wait_for
from support.short import quick
from waitproof import families
from waitproof.connections import Connections
from waitproof.waits import empty
from waitproof.world import Descriptor, Socket, WaitingProcess

needs_registers = pytest.mark.skipif(platform.machine() != "x86_64", reason="the registers of this machine are unknown")


# The code, and what its reason has to contain.
# A thread of the name that torch gives to that of its store, which has one ring; and two rings.
RINGS = """libc = ctypes.CDLL(None)
def name():
    libc.prctl(15, b'pt_tcpstore_uv'); stuck()
threading.Thread(target=name, daemon=True).start()
rings = [libc.syscall(425, 4, ctypes.create_string_buffer(120)) for _ in 'ab']; ready(); stuck()"""
WAITS = {
    "a lock, and input by a ring that is not libuv's": (RINGS, "may be woken by io_uring"),
    "an event that SIGCONT sets": (
        "e = threading.Event(); signal.signal(signal.SIGCONT, lambda *_: e.set()); ready(); e.wait()",
        "may be woken by signal 18",
    ),
    "an event that SIGTSTP sets": (
        "e = threading.Event(); signal.signal(signal.SIGTSTP, lambda *_: e.set()); ready(); e.wait()",
        "may be woken by signal 20",
    ),
    "an event of asyncio that SIGCONT sets": (
        "async def main():\n    e = asyncio.Event()\n"
        "    asyncio.get_running_loop().add_signal_handler(signal.SIGCONT, e.set); ready(); await e.wait()\n"
        "asyncio.run(main())",
        "may be woken by signal 18",
    ),
    "an event of processes that SIGTERM sets": (
        "e = multiprocessing.Event(); signal.signal(signal.SIGTERM, lambda *_: e.set()); ready(); e.wait()",
        "may be woken by signal 15",
    ),
    "an item that a handler of SIGTERM puts into a queue": (
        "q = queue.SimpleQueue(); signal.signal(signal.SIGTERM, lambda *_: q.put(1)); ready(); q.get()",
        "may be woken by signal 15",
    ),
    "a lock that a handler of SIGHUP releases": (
        "l = threading.Lock(); l.acquire(); signal.signal(signal.SIGHUP, lambda *_: l.release()); ready(); l.acquire()",
        "may be woken by signal 1,",
    ),
    "a thread that ends after a SIGTERM": (
        "e = threading.Event(); t = threading.Thread(target=e.wait); t.start()\n"
        "signal.signal(signal.SIGTERM, lambda *_: e.set()); ready(); t.join()",
        "may be woken by signal 15",
    ),
    "a process that ends after a SIGTERM to its parent": (
        "fork = multiprocessing.get_context('fork'); e = fork.Event(); p = fork.Process(target=e.wait); p.start()\n"
        "signal.signal(signal.SIGTERM, lambda *_: e.set()); ready(); p.join()",
        "may be woken by signal 15",
    ),
    "a connection of processes to which a handler of SIGTERM writes": (
        "a, b = multiprocessing.Pipe(); signal.signal(signal.SIGTERM, lambda *_: b.send(1)); ready(); a.recv()",
        "may be woken by signal 15",
    ),
    "a connection with a timeout for what it sends, which is full": (
        "s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); a = s.accept()\n"
        "c.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 600000); ready(); c.sendall(bytes(1 << 26))",
        "whose connection has a timeout",
    ),
    "a reply on such a connection": (
        "s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); a = s.accept()\n"
        "c.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 600000); c.setblocking(False)\n"
        "try:\n    while True: c.send(bytes(1 << 20))\nexcept BlockingIOError: pass\n"
        "c.setblocking(True); ready(); c.recv(1)",
        "whose connection has a timeout",
    ),
    "an epoll with a timer whose number another object has now": (
        "libc, times = ctypes.CDLL(None), (ctypes.c_long * 4)(0, 0, 500, 0); t = libc.timerfd_create(1, 0)\n"
        "libc.timerfd_settime(t, 0, times, None); e = select.epoll(); e.register(t, 1); os.dup(t); os.close(t)\n"
        "assert os.eventfd(0) == t; ready(); e.poll()",
        "an epoll descriptor whose contents are not known",
    ),
    "an epoll to which another process adds a timer": (
        "libc = ctypes.CDLL(None); e = select.epoll(); a, b = socket.socketpair(); e.register(a, 1)\n"
        "def later():\n    a.close(); b.close(); time.sleep(500); e.register(libc.timerfd_create(1, 0), 1)\n"
        "child(later); ready(); e.poll()",
        "waits for a timer",
    ),
    "a connection whose other end a process outside is about to fetch": (
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); a, b = multiprocessing.Pipe()\n"
        "multiprocessing.current_process()._config['tempdir'] = '.'\n"
        "from multiprocessing import reduction; kept = reduction.ForkingPickler.dumps(b); b.close()\n"
        "s.send(kept); ready(); a.recv()",
        "may be about to receive descriptors",
    ),
    "a word of a file, in memory that is only read": (
        "import mmap; f = open('x', 'w+b'); f.truncate(4096); libc = ctypes.CDLL(None)\n"
        "libc.mmap.restype = ctypes.c_void_p; number = 202 if os.uname().machine == 'x86_64' else 98\n"
        "at = libc.mmap(None, ctypes.c_size_t(4096), 1, mmap.MAP_PRIVATE, f.fileno(), ctypes.c_size_t(0)); ready()\n"
        "libc.syscall(number, ctypes.c_void_p(at), 0, 0, None, None, 0)",
        "memory that processes outside the job can open",
    ),
    "a lock that a handler of SIGSTKFLT releases": (
        "l = threading.Lock(); l.acquire(); signal.signal(signal.SIGSTKFLT, lambda *_: l.release()); ready()\n"
        "l.acquire()",
        "may be woken by signal 16",
    ),
    "a child that is killed by another one": (
        "x = child(stuck); child(lambda: (time.sleep(500), os.kill(x, 9))); ready(); os.waitpid(x, 0)",
        "waits for a timer",
    ),
    "a child that is continued by another one": (
        "x = child(lambda: os.kill(os.getpid(), 19)); child(lambda: (time.sleep(500), os.kill(x, 18)))\n"
        "os.waitid(os.P_PID, x, os.WSTOPPED | os.WNOWAIT); ready(); os.waitpid(x, 0)",
        "waits for a timer",
    ),
    "a pipe of a process that is killed by its parent": (
        "a, b = os.pipe()\ndef watch():\n    x = child(stuck); os.close(b); time.sleep(500); os.kill(x, 9)\n"
        "child(watch); os.close(b); ready(); os.read(a, 1)",
        "waits for a timer",
    ),
    "an eventfd that is passed to a process outside": (
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); e = os.eventfd(0)\n"
        "socket.send_fds(s, [b'x'], [e]); ready(); os.read(e, 8)",
        "may be about to receive descriptors",
    ),
}
# A page is missing, which a handler of page faults supplies: in a `read` of data that is there (userfaultfd(2)).
MISSING = """import fcntl, mmap, struct
fault = libc.syscall(323, os.O_CLOEXEC)
fcntl.ioctl(fault, 0xc018aa3f, struct.pack('=QQQ', 0xaa, 0, 0))
libc.mmap.restype = ctypes.c_void_p
page = libc.mmap(None, ctypes.c_size_t(4096), 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, ctypes.c_size_t(0))
fcntl.ioctl(fault, 0xc020aa00, struct.pack('=QQQQ', page, 4096, 1, 0))
a, b = os.pipe(); os.write(b, b'x'); ready(); libc.read(a, ctypes.c_void_p(page), 1)
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[str]:
    """A process outside the job that is asked for connections and accepts none: the name of its socket."""
    path = str(tmp_path / "daemon")
    code = (
        f"import socket, time; s = socket.socket(1); s.bind({path!r}); s.listen(); print(flush=True); time.sleep(900)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield path
        process.kill()


# Signals, connections, epoll, descriptors on their way, children: the gate tries one or two of each.
QUICK = (
    "a lock, and input by a ring that is not libuv's",
    "an event that SIGTSTP sets",
    "an event of processes that SIGTERM sets",
    "a lock that a handler of SIGHUP releases",
    "a process that ends after a SIGTERM to its parent",
    "a connection with a timeout for what it sends, which is full",
    "an epoll with a timer whose number another object has now",
    "an epoll to which another process adds a timer",
    "a word of a file, in memory that is only read",
    "a connection whose other end a process outside is about to fetch",
    "a child that is killed by another one",
    "a child that is continued by another one",
)


@needs_spy
@pytest.mark.parametrize("name", quick(WAITS, QUICK))
def test_a_wait_that_something_unusual_ends_is_never_proved(job: Job, daemon: str, name: str) -> None:
    code, why = WAITS[name]
    if code == RINGS and not permitted(425, 4, ctypes.create_string_buffer(120)):
        pytest.skip("there is no io_uring here")
    job.start(SMALL + code, daemon)
    wait_for(lambda: state_of(job.pid) == "S", "the wait")
    wait_for(lambda: why in (see(job, job.pid).open_reason or ""), "the reason", 20)


@needs_spy
@needs_registers
def test_a_thread_whose_memory_somebody_supplies_is_held(job: Job) -> None:
    if os.getuid() or not permitted(323, os.O_CLOEXEC):
        pytest.skip("such a handler is not permitted here")
    job.start(SMALL + "libc = ctypes.CDLL(None)\n" + MISSING)
    wait_for(lambda: state_of(job.pid) == "S", "the wait")
    assert see(job, job.pid).open_reason == "rank 0 is frozen, or held by another process"


# A lock in the memory of two processes that are no threads of each other, which one of them releases (clone(2)).
SHARED = """
#define _GNU_SOURCE
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
static int lock, waits;
static int child(void *unused) {
  while (waits) syscall(SYS_futex, &lock, FUTEX_WAIT_PRIVATE, 0, 0, 0, 0);
  sleep(500);
  lock = 1;
  syscall(SYS_futex, &lock, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
  _exit(0);
}
int main(int count, char **words) {
  waits = count > 1;
  clone(child, (char *)malloc(65536) + 65536, CLONE_VM | SIGCHLD, 0);
  if (write(1, "ready\\n", 6) < 0) return 1;
  while (!lock) syscall(SYS_futex, &lock, FUTEX_WAIT_PRIVATE, 0, 0, 0, 0);
}
"""


@needs_spy
@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("proved", [False, True])
def test_a_lock_in_memory_that_two_processes_share_is_released_by_either(
    job: Job, tmp_path: Path, proved: bool
) -> None:
    (tmp_path / "shared.c").write_text(SHARED)
    program = str(tmp_path / "shared")
    subprocess.run(["gcc", "-o", program, f"{program}.c"], check=True)
    words = [program, "waits"] if proved else [program]
    job.start(f"import os; os.execv({program!r}, {words})")
    if proved:
        assert "waits for a lock" in closed(job, job.pid).mechanism
    else:
        wait_for(lambda: "waits for a timer" in (see(job, job.pid).open_reason or ""), "the reason", 20)


@needs_spy
def test_a_process_of_the_same_rank_that_cannot_run_leaves_a_wait_closed(job: Job) -> None:
    job.start(SMALL + "x = child(stuck); child(stuck); ready(); os.waitpid(x, 0)")
    assert "waits for a lock" in closed(job, job.pid).mechanism


# A program that waits for a trial for `{}` seconds, and what else may be above the trial, or in it.
ALONE = 0  # the number of a process that is the only one that moves, also without RANK
INHERITED = 1
PARENT = "import multiprocessing, threading\ndef stuck():\n lock = threading.Lock(); lock.acquire(); lock.acquire()\n"
PARENT += (
    "p = multiprocessing.get_context('fork').Process(target=stuck); p.start(); print(p.pid, flush=True); p.join({})"
)
SHELL = (
    "import subprocess, sys; subprocess.run(['sh', '-c', '\"$@\"; exit', 'sh', sys.executable, '-c', {!r}], timeout={})"
)
STUCK = "import os, threading; print(os.getpid(), flush=True); lock = threading.Lock(); lock.acquire(); lock.acquire()"
LAUNCHER = (
    "import os, subprocess, sys, time; variables = dict.fromkeys(['WORLD_SIZE', 'LOCAL_WORLD_SIZE'], '1')\n"
    f"p = subprocess.Popen([sys.executable, '-c', {STUCK!r}], env=os.environ | variables | {{'RANK': '0'}})\n"
    "while p.poll() is None: time.sleep(1)"
)
TIMER = f"import faulthandler; faulthandler.dump_traceback_later(7200, exit=True); {STUCK}"
LINE = "import os, sys; os.execvp('sh', ['sh', '-c', '{} \"$@\"; exit', 'sh', sys.executable, '-c', {!r}])"
TRIALS = {
    "its parent has a timeout": (PARENT.format(500), -1, "waits for a timer"),
    "its parent has none": (PARENT.format(""), -1, None),
    "it has inherited RANK, and its parent has a timeout": (PARENT.format(500), INHERITED, "waits for a timer"),
    "it has inherited RANK, and its parent has none": (PARENT.format(""), INHERITED, None),
    "a process above the shell that has started it has a timeout": (SHELL.format(STUCK, 500), -1, "waits for a timer"),
    "a process above its launcher has a timeout": (SHELL.format(LAUNCHER, 500), 0, "waits for a timer"),
    "a process above its launcher has none": (SHELL.format(LAUNCHER, None), 0, None),
    "it has a timer of faulthandler": (SHELL.format(TIMER, None), -1, "waits for a timer"),
    "it is the only process that moves, and its parent has a timeout": (PARENT.format(500), ALONE, "waits for a timer"),
    "it is the only process that moves, and a process above its shell has a timeout": (
        SHELL.format(STUCK, 500), ALONE, "waits for a timer",
    ),
    "it is the only process that moves, and its parent has none": (PARENT.format(""), ALONE, None),
    "it is the only process that moves, and its parent passes SIGTERM on": (
        f"import signal; signal.signal(15, lambda *_: p.terminate()); {PARENT.format('')}", ALONE, None,
    ),
    "it is the only process that moves, below `timeout`": (
        f"import os, sys; os.execvp('timeout', ['timeout', '500', sys.executable, '-c', {STUCK!r}])", ALONE, None,
    ),
    "it is the only process that moves, below `timeout` in a line of a shell": (
        LINE.format("timeout 500", STUCK), ALONE, "may be woken by a timer",
    ),
    "it is the only process that moves, below `timeout` for a day in a line of a shell": (
        LINE.format("timeout -k 9 24h", STUCK), ALONE, None,
    ),
}  # fmt: skip


@needs_spy
@pytest.mark.parametrize("name", TRIALS)
def test_a_trial_that_its_parent_ends_after_a_timeout_is_not_proved(job: Job, name: str) -> None:
    code, number, expected = TRIALS[name]
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"} if number == INHERITED else {}
    job.start(code, **ranks)
    pid, now = int(job.first_line), time.monotonic()
    states = (RankState(-pid - 1 if number < 0 else 0, pid, moved_at=now - 60, step=7),)

    def found() -> bool:
        seen = look(LookRequest(job.pid, now, (), states, between=0.3))
        return (seen.open_reason is None) if expected is None else expected in (seen.open_reason or "")

    wait_for(found, "that result")


@pytest.mark.parametrize(
    ("program", "name", "parent", "limit", "found"),
    [
        ("/usr/bin/python3.11", "python", 1, None, [7]),
        ("/usr/bin/perl", "parallel", 1, None, [7]),
        ("/usr/bin/tini", "tini", 5, None, []),
        ("/usr/bin/timeout", "timeout", 5, None, [7]),
        ("/usr/bin/timeout", "timeout", 5, 600.0, [7]),
        ("/usr/bin/timeout", "timeout", 5, 1200.0, []),
        ("/usr/bin/timeout", "timeout", 1, 600.0, []),
    ],
)
def test_something_may_follow_the_only_process_that_moves(
    program: str, name: str, parent: int, limit: float | None, found: list[int]
) -> None:
    world = empty(frozenset())
    above = WaitingProcess({}, parent=parent, program=program, name=name, limit=limit)
    world.processes.update({5: WaitingProcess({}, program="/bin/dash"), 7: above, 8: WaitingProcess({}, parent=7)})
    assert families.trials(world, {8: 0}) == {8: found}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("timeout 75 python x.py 3600", 75.0),
        ("timeout --preserve-status -k 30 -s INT 1.5h python", 5400.0),
        ("timeout --kill-after=5 --signal=INT 2d python", 172800.0),
        ("timeout 20m python", 1200.0),
        ("timeout 0 python", math.inf),
        ("timeout -t 75 python", 75.0),
        ("timeout soon python", None),
        ("timeout", None),
        ("timeout -k", None),
    ],
)
def test_the_limit_of_timeout_is_that_of_its_command_line(line: str, expected: float | None) -> None:
    assert families.limit(line.split()) == expected


def test_processes_of_one_rank_lead_to_each_other_and_to_it() -> None:
    """Rank 20 has started 21 and 22, and that 23; rank 30 has 31; the command 10 and its helper 11 are above."""
    parents = {10: 1, 11: 10, 20: 10, 21: 20, 22: 20, 23: 22, 30: 10, 31: 30}
    orphans = {40: 1, 41: 40}
    world = empty(frozenset())
    world.processes.update({pid: WaitingProcess({}, parent=parent) for pid, parent in parents.items()})
    found = families.enders(world, 10, {20, 30})
    assert found == {10: {11}, 11: {10}, 21: {20, 22}, 22: {20, 23}, 23: {20, 21}, 31: {30}}
    world.processes.update({pid: WaitingProcess({}, parent=parent) for pid, parent in orphans.items()})
    beside = {pid: {*others, 40} for pid, others in found.items()}
    assert families.enders(world, 10, {20, 30}) == beside | {40: {41}, 41: {40}}
    tracker = WaitingProcess({}, parent=20, program="/venv/lib/python3.11/site-packages/wandb/bin/wandb-core")
    world.processes[24] = tracker  # it ends nobody
    found = families.enders(world, 10, {20, 30})
    assert found == beside | {40: {41}, 41: {40}, 24: {20, 21, 40}}


@pytest.mark.parametrize(
    ("listening", "found"),
    [
        pytest.param(["10.0.0.5:80"], 0, id="that address"),
        pytest.param(["127.0.0.1:80", "10.0.0.5:80"], 1, id="not another address"),
        pytest.param(["0.0.0.0:80", "10.0.0.5:80"], 1, id="that address before all of them"),
        pytest.param(["127.0.0.1:80", "[::]:80"], 1, id="all addresses"),
        pytest.param(["10.0.0.5:80", "10.0.0.5:80"], None, id="one of two"),
        pytest.param(["127.0.0.1:80"], None, id="none"),
    ],
)
def test_a_connection_that_is_not_accepted_leads_to_who_listens_at_its_address(
    listening: list[str], found: int | None
) -> None:
    world = empty(frozenset())
    own = Socket("tcp", "10.0.0.5:4000", "10.0.0.5:80", "ESTABLISHED")
    world.sockets.update({f"socket:[{n}]": Socket("tcp", at, state="LISTEN") for n, at in enumerate(listening)})
    world.sockets["not accepted:9"] = Socket("tcp", own.remote, own.local, "ESTABLISHED")
    assert Connections(world).other_end(own) == (None if found is None else f"socket:[{found}]")


@needs_spy
@pytest.mark.parametrize(
    "wait",
    [
        "a, b = os.pipe(); socket.send_fds(s, [b'x'], [b]); s.recv(1); ready(); os.read(a, 1)",
        "a, b = socket.socketpair(); socket.send_fds(s, [b'x'], [b.fileno()]); s.recv(1); ready(); a.recv(1)",
        "e, (a, b) = select.epoll(), os.pipe(); e.register(a, 1); socket.send_fds(s, [b'x'], [b]); s.recv(1)\n"
        "ready(); e.poll()",
    ],
    ids=["pipe", "connection", "epoll"],
)
def test_what_may_have_been_handed_to_a_process_that_is_not_visible_is_open(
    job: Job, tmp_path: Path, wait: str
) -> None:
    """This process is not visible: no look counts the one that it is made in."""
    path = str(tmp_path / "taker")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        server.settimeout(60)
        job.begin(f"{SMALL}s = socket.socket(1); s.connect(sys.argv[1])\n{wait}", path)
        with server.accept()[0] as connection:
            _, taken, _, _ = socket.recv_fds(connection, 1, 1)
            connection.send(b"y")
            try:
                wait_for(lambda: "is not visible" in (see(job, job.pid).open_reason or ""), "the reason", 20)
            finally:
                os.close(taken[0])


NAME_SERVICE = "/var/lib/sss/pipes/nss"


@pytest.mark.parametrize(
    ("name", "found"), [("/run/dbus/bus", True), ("", True), (NAME_SERVICE, False), ("/tmp/run/ranks.sock", False)]
)
def test_ftrun_and_services_of_the_machine_are_handed_nothing(name: str, found: bool) -> None:
    world = empty(frozenset())
    world.processes[7] = WaitingProcess({3: Descriptor("socket", "socket:[1]"), 4: Descriptor("socket", "socket:[3]")})
    world.holders.update({"socket:[1]": {7: "rw"}, "socket:[3]": {7: "rw"}})
    world.sockets["socket:[1]"] = Socket("unix", "", state="ESTABLISHED", peer="socket:[2]")
    world.sockets["socket:[2]"] = Socket("unix", name, state="ESTABLISHED", peer="socket:[1]")
    world.sockets["socket:[3]"] = Socket("unix", "", state="ESTABLISHED", peer="socket:[0]")  # it was closed
    assert Connections(world).strangers() == ({"socket:[2]": ("socket:[1]", 7)} if found else {})


@needs_spy
def test_an_epoll_that_a_process_outside_has_open_may_get_a_member_there(job: Job, tmp_path: Path) -> None:
    path = str(tmp_path / "taker")
    code = (
        f"import socket, time; s = socket.socket(1); s.bind({path!r}); s.listen(); print(flush=True)\n"
        "c = s.accept()[0]; socket.recv_fds(c, 1, 1); c.send(b'y'); c.close(); time.sleep(900)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as taker:
        assert taker.stdout is not None
        taker.stdout.readline()
        try:
            job.start(
                f"{SMALL}e = select.epoll(); s = socket.socket(1); s.connect(sys.argv[1])\n"
                "socket.send_fds(s, [b'x'], [e.fileno()]); s.recv(1); s.close(); ready(); e.poll()",
                path,
            )
            wait_for(lambda: state_of(job.pid) == "S", "the wait")
            wait_for(lambda: "outside the job has open" in (see(job, job.pid).open_reason or ""), "the reason", 20)
        finally:
            taker.kill()
