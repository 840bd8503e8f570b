"""The failures: hangs, which never return or only when something from outside ends their wait, crashes, and processes
that a training leaves behind while it continues."""

import ctypes
import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from multiprocessing import get_context
from threading import Barrier, Lock, Thread
from typing import NoReturn

from ftrun.host.spawn import die_with
from ftrun.workload.training import BEGINNING, Plain, RequirementMissing, Setting, newest, say

STORM = 30
STORM_PAUSE = 0.05  # lifetime of a process of the storm, in seconds
STORM_LASTS = 600  # seconds: a storm that is not ended must not exhaust the machine
CHAT_PAUSE = 0.25
NAP = 0.01
CLONE = {"x86_64": 56, "aarch64": 220}
CLONE_VFORK = 0x4000


def sleep(setting: Setting) -> NoReturn:
    """Wait in one system call for ever, as a process does whose peer never answers."""
    while True:
        time.sleep(10**6)  # seconds: longer than any timeout that a user gives


def spin(setting: Setting) -> NoReturn:
    while True:
        pass


def busy(setting: Setting) -> None:
    """A retry loop, whose stack differs between two samples."""

    def arrived(attempt: int) -> bool:
        return attempt < 0

    def back_off(attempt: int) -> int:
        return (attempt * 2 + 1) % 1009

    attempt = 0
    while not arrived(attempt):
        attempt = back_off(attempt)


def spin_on_flag(setting: Setting) -> None:
    """The thread that should set the flag was never started."""
    state = {"done": False}
    while not state["done"]:
        pass


def stop(setting: Setting) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def deadlock(setting: Setting) -> None:
    lock = Lock()
    with lock, lock:
        pass


def lock_cycle(setting: Setting) -> None:
    """Each of two threads holds one lock and waits for the other."""
    first, second, taken = Lock(), Lock(), Barrier(2)

    def take(one: Lock, other: Lock) -> None:
        with one:
            taken.wait()
            with other:
                pass

    Thread(target=take, args=(second, first), daemon=True).start()
    take(first, second)


def queues(setting: Setting) -> None:
    """A child waits for a request from this process, which waits for its reply."""
    fork, parent = get_context("fork"), os.getpid()
    requests, replies = fork.SimpleQueue(), fork.SimpleQueue()
    if os.fork() == 0:
        die_with(parent)
        replies.put(requests.get())
    replies.get()


def full_pipes(setting: Setting) -> None:
    """Write all input to a child before its output is read: both pipes are full, and both processes write."""
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    child.stdin.write(bytes(1 << 20))
    child.communicate()


def chatty(setting: Setting) -> None:
    """A side thread continues to log and to give heartbeats."""

    def keep_alive() -> None:
        for number in count(1):
            say(f"still waiting, {number}")
            setting.beat()
            time.sleep(CHAT_PAUSE)

    Thread(target=keep_alive, daemon=True).start()
    deadlock(setting)


def gil(setting: Setting) -> NoReturn:
    """C code that blocks and keeps the GIL, so that the side thread waits for it for ever."""

    def nap() -> NoReturn:
        while True:
            time.sleep(NAP)

    libc, semaphore = ctypes.PyDLL(None), ctypes.create_string_buffer(64)  # zeros are one that nobody has posted
    Thread(target=nap, daemon=True).start()
    while True:
        libc.sem_wait(semaphore)


def pipe(setting: Setting) -> NoReturn:
    _unread, full = os.pipe()
    while True:
        os.write(full, bytes(65536))


def flock(setting: Setting) -> None:
    """Lock the checkpoint folder, which another open file has locked."""
    for _ in range(2):  # each time another open file, and so another owner of the lock
        fcntl.flock(os.open(setting.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), fcntl.LOCK_EX)


def netread(setting: Setting) -> None:
    """Read from a server that accepts the connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as connection:
        connection.recv(1)


def native(setting: Setting) -> NoReturn:
    """This process, with its pid and its output, becomes a program without Python."""
    try:
        os.execvp("sleep", ["sleep", str(10**9)])
    except OSError as error:
        raise RequirementMissing(f"the program sleep cannot be executed: {error.strerror}") from None


def nfs_like(setting: Setting) -> None:
    """State D, as on a dead NFS server: a vfork child that never executes.  Unlike there, SIGKILL works.

    Not vfork(3), whose child would go on in our memory: the parent would be lost if only the child were killed.
    """
    machine, parent = os.uname().machine, os.getpid()
    if machine not in CLONE:
        raise RequirementMissing(f"the number of clone(2) on {machine} machines is not known")
    libc = ctypes.PyDLL(None)  # keeps the GIL: the child has no other thread to give it back
    child = libc.syscall(CLONE[machine], CLONE_VFORK | signal.SIGCHLD, 0, 0, 0, 0)
    if child < 0:
        raise RequirementMissing("clone(2) is not permitted here")
    if child == 0:
        die_with(parent)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a data worker handles it
        while True:
            libc.pause()
    os.waitpid(child, 0)


def other_collective(setting: Setting) -> None:
    """This rank calls a collective that the others do not call."""
    from ftrun.workload.with_torch import barrier

    barrier()


def train_without_heartbeats(setting: Setting) -> None:
    """Train for ever, in plain Python: an optimizer would give heartbeats automatically."""
    for _ in Plain(newest(setting.folder) or BEGINNING).epoch(range(sys.maxsize)):
        time.sleep(setting.step_time)


def fork_storm(setting: Setting) -> NoReturn:
    over = time.monotonic() + STORM_LASTS
    for _ in range(STORM):
        if os.fork() == 0:
            _fork_until(over)
    sleep(setting)


def _fork_until(over: float) -> NoReturn:
    """A chain of short-lived processes, one at a time."""
    while time.monotonic() < over:
        time.sleep(STORM_PAUSE)
        with suppress(OSError):  # the process limit is reached for the moment
            if os.fork():
                os._exit(0)
    os._exit(0)


def crash(setting: Setting) -> None:
    os._exit(int(setting.value))


def die(setting: Setting) -> None:
    """End by the signal, without a core file."""
    number = signal.Signals(int(setting.value))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)  # Python ignores SIGPIPE and turns SIGINT into an exception
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)


def orphans(setting: Setting) -> None:
    def leave() -> None:
        for _ in range(int(setting.value)):
            if os.fork() == 0:
                sleep(setting)

    _in_child(leave)


def daemon(setting: Setting) -> None:
    def leave() -> None:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            sleep(setting)

    _in_child(leave)


def _in_child(leave: Callable[[], None]) -> None:
    """Call `leave` in a child that ends, so that the processes it started are orphans once this returns."""
    child = os.fork()
    if child == 0:
        try:
            leave()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
