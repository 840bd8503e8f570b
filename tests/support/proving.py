"""Looks at a job of real processes, and what the programs of such jobs have in common."""

import ctypes
import os
import socketserver
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from ftrun.helpers.evidence.look import look
from ftrun.messages.evidence import Looked, LookRequest, RankState
from support.evidence_job import Job
from support.runs import wait_for

HEAD = """import asyncio, ctypes, fcntl, multiprocessing, os, queue
import select, signal, socket, subprocess, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
port = int(sys.argv[1])
fork = multiprocessing.get_context('fork')
def ready():
    os.write(1, b'ready\\n')
def connect():
    return socket.create_connection(('127.0.0.1', port))
def thread(target, *arguments, name=None):
    threading.Thread(target=target, args=arguments, daemon=True, name=name).start()
def stuck():
    lock = threading.Lock()
    with lock, lock:
        pass
"""
SMALL = """import asyncio, ctypes, multiprocessing, os, queue, resource, select, signal
import socket, subprocess, sys, threading, time
def ready():
    os.write(1, b'ready\\n')
def stuck():
    lock = threading.Lock(); lock.acquire(); lock.acquire()
def child(target):
    pid = os.fork()
    if pid == 0: target(); os._exit(0)
    return pid
"""
# `all_reduce` of a module where torch has its own.
COLLECTIVE = """import os, sys
os.makedirs('torch/distributed', exist_ok=True)
with open('torch/distributed/distributed_c10d.py', 'w') as file:
    file.write('def all_reduce(lock):\\n    lock.acquire(); lock.acquire()\\n')
sys.path.insert(0, 'torch/distributed')
from distributed_c10d import all_reduce
"""


def permitted(number: int, *arguments: Any) -> bool:
    """Whether this system call, which returns a descriptor, is permitted."""
    fd = ctypes.CDLL(None).syscall(number, *arguments)
    if fd >= 0:
        os.close(fd)
    return bool(fd >= 0)


@cache
def shared_library(source: str) -> bytes:
    """The library that is made of this file in C, which is beside this one."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "made.so")
        words = ["gcc", "-shared", "-fPIC", "-pthread", "-o", str(made), str(Path(__file__).with_name(source))]
        subprocess.run(words, check=True)
        return made.read_bytes()


@contextmanager
def silent_server() -> Iterator[int]:
    """A server outside the job that accepts connections and sends nothing: its port."""
    end = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            end.wait()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            yield server.server_address[1]
        finally:
            end.set()
            server.shutdown()


def see(job: Job, *ranks: int, between: float = 0.3, excluded: tuple[int, ...] = (), step: int | None = None) -> Looked:
    """A look at the job, whose ranks have these pids, have ended this step, and have not moved for a minute."""
    now = time.monotonic()
    states = tuple(RankState(number, pid, moved_at=now - 60, step=step) for number, pid in enumerate(ranks))
    return look(LookRequest(job.pid, now, excluded, states, between=between))


def closed(job: Job, *ranks: int, step: int | None = None) -> Looked:
    """The first two looks that are closed and the same; they are soon, but a busy machine may delay them."""

    def twice() -> Looked | None:
        first, second = see(job, *ranks, step=step), see(job, *ranks, step=step)
        last.append(second)
        return second if second.open_reason is None and first.fingerprint == second.fingerprint else None

    last: list[Looked] = []
    try:
        found: Looked = wait_for(twice, "a proof")
        return found
    except AssertionError as error:
        raise AssertionError(f"{error}; {last[-1]}") from None
