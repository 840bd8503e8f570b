"""Small programs that stand still for a reason that can still end, each a few lines in a file of this folder.

    @@ what it waits for | what it needs: modules, programs, `root`, `ipv6` or `private-mounts`
    the lines that the program executes
    -- what ends the wait
    the lines that a process outside the job executes; `due()` returns when the wait has lasted for its time

A name with `{A B}` is one program for each word, which takes the place of `%s` in the lines.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

from proof.hangs.actors import Actor, Stage, Steps, nobody
from proof.hangs.rows import Row
from support.runs import permitted

# What both sides have: constants, a semaphore of POSIX in memory, files that appear whole.
BOTH = """
import ctypes, fcntl, mmap, multiprocessing, os, queue, select, signal, socket, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
futex = 202 if os.uname().machine == 'x86_64' else 98
def path(name):
    return os.path.join(folder, name)
def until(name):
    while not os.path.exists(path(name)): time.sleep(0.01)
def publish(name, value):
    with open(path(name + '.new'), 'w') as file: file.write(str(value))
    os.rename(path(name + '.new'), path(name))
def number(name):
    until(name)
    with open(path(name)) as file: return int(file.read())
class Semaphore:
    def __init__(self, descriptor=-1, new=True):
        self.memory = mmap.mmap(descriptor, 4096)
        self.at = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        if new: libc.sem_init(ctypes.c_void_p(self.at), 1, 0)
    def post(self): libc.sem_post(ctypes.c_void_p(self.at))
    def wait(self): libc.sem_wait(ctypes.c_void_p(self.at))
"""
INSIDE = (
    BOTH
    + """
def after(act):
    '''Another thread sleeps, and then acts.'''
    threading.Thread(target=lambda: (time.sleep(seconds), act()), daemon=True).start()
def until_due():
    waits()
    while not os.path.exists(path('due')): time.sleep(0.5)
def give(descriptor):
    '''Hand a descriptor to the process outside, over a connection that is closed then.'''
    connection = socket.socket(socket.AF_UNIX)
    until('sock')
    os.chdir(folder)
    connection.connect('sock')
    socket.send_fds(connection, [b'x'], [descriptor])
    connection.recv(1)
    connection.close()
def forked(act):
    child = multiprocessing.get_context('fork').Process(target=act)
    child.start()
    return child
def ranks(rank):
    os.environ['GLOO_SOCKET_IFNAME'] = 'lo'
    children = [forked(lambda n=n: rank(n)) for n in range(2)]
    for child in children:
        child.join()
        assert child.exitcode == 0
"""
)
OUTSIDE = (
    BOTH
    + """
folder = os.getcwd()
def due(): until('due')
def waiting(): return number('waits')
def accepted():
    server = socket.socket(socket.AF_UNIX)
    server.bind('made')
    server.listen()
    os.rename('made', 'sock')
    return server.accept()[0]
def taken():
    connection = accepted()
    descriptor = socket.recv_fds(connection, 1, 1)[1][0]
    connection.send(b'y')
    connection.close()
    return descriptor
def accepted_tcp():
    server = socket.create_server(('127.0.0.1', 0))
    publish('port', server.getsockname()[1])
    return server.accept()[0]
"""
)
START = "import os, sys; os.chdir(sys.argv[1]); exec(open('outside.py').read())"
TITLE = re.compile(r"^@@ ([^|\n]+?)(?: \| (\S+))?\n", re.M)
WORDS = re.compile(r"\{([^}]*)\}")


def outside(text: str) -> Actor:
    """A process that has these lines, and is told when the wait has lasted long enough."""

    def act(stage: Stage) -> Steps:
        (stage.folder / "outside.py").write_text(f"{OUTSIDE}\n{text}")
        stage.process(sys.executable, "-c", START, str(stage.folder))
        yield
        yield
        (stage.folder / "due").touch()
        yield

    return act


@cache
def _is_there(need: str) -> bool:
    if need == "root":
        return os.geteuid() == 0
    if need == "private-mounts":
        return permitted("unshare", "--mount", "--net", "--pid", "--fork")
    if need == "ipv6":
        return (
            socket.has_ipv6 and Path("/proc/net/if_inet6").exists() and "lo" in Path("/proc/net/if_inet6").read_text()
        )
    try:
        return importlib.util.find_spec(need) is not None or shutil.which(need) is not None
    except ModuleNotFoundError:
        return False


def _lacks(needs: tuple[str, ...]) -> str:
    return next((need for need in needs if not _is_there(need)), "")


def _rows(group: str, text: str, more: tuple[str, ...]) -> Iterator[Row]:
    parts = TITLE.split(text)
    cores = 0.15 if "torch" in more else 0.05
    for name, need, lines in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        inside, _, ending = lines.partition("\n-- ")
        _, _, ending = ending.partition("\n")
        needs = (*more, *filter(None, [need]))
        words = WORDS.search(name)
        for word in words[1].split() if words else [""]:
            own, other = (part.replace("%s", word) if word else part for part in (inside, ending))
            yield Row(
                group,
                WORDS.sub(word, name),
                own,
                outside(other) if other else nobody,
                cores=cores,
                lacks=partial(_lacks, needs),
                head=INSIDE,
            )


GROUPS = (
    *("memory", "descriptors", "signals", "network", "processes"),
    *("multiprocessing", "libraries", "asyncio", "threads", "torch"),
)
WAITS = tuple(
    row
    for group in GROUPS
    for row in _rows(
        f"waits: {group}",
        Path(__file__).with_name(f"{group}.txt").read_text(),
        ("torch",) if group == "torch" else (),
    )
)
