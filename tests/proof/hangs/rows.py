"""What a healthy program of the matrix is: its text, what acts from outside, how much it computes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from proof.hangs.actors import Actor, nobody
from support.runs import HOUSE

# What the program and a process outside have: constants, a semaphore of POSIX in memory, files that appear whole.
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
HEAD = f"""{BOTH}
import http.client
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
sys.path.insert(0, {str(HOUSE / "hooks")!r})
import ftrun_hooks as ft
port, database, seconds, folder, moment = (kind(word) for kind, word in zip((int, int, float, str, str), sys.argv[1:]))
first, pause = {{'before': (0, 0), 'early': (5, 0.2), 'learned': (120, 0.02), 'silent': (0, 0)}}[moment]
def steps(begin, count):
    for step in range(begin, begin + count):
        if moment != 'silent':
            ft.beat(step)
        time.sleep(pause)
def waits():
    publish('waits', os.getpid())
def until_done():
    waits()
    while not os.path.exists(path('done')):
        time.sleep(0.2)
def until_due():
    waits()
    while not os.path.exists(path('due')): time.sleep(0.5)
def ask(path, body=None):
    connection = http.client.HTTPConnection('127.0.0.1', port)
    connection.request('PUT', path, body)
    reply = connection.getresponse()
    reply.read()
    return reply.status
def upload(rate):
    return ask('/%d' % rate, bytes(int(rate * seconds)))
def asked(path):
    '''The words of a program that makes this request.'''
    code = 'import http.client; c = http.client.HTTPConnection("127.0.0.1", %d); '
    code += 'c.request("PUT", "%s"); r = c.getresponse(); r.read(); print(r.status)'
    return [sys.executable, '-c', code % (port, path)]
def long_enough(compute, small):
    '''Compute for about as long as is asked: `compute(n)` takes a time in proportion to n.'''
    begun = time.monotonic()
    compute(small)
    compute(int(small * 1.3 * seconds / (time.monotonic() - begun)))
def after(act):
    '''Another thread sleeps, and then acts.'''
    threading.Thread(target=lambda: (time.sleep(seconds), act()), daemon=True).start()
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
MAIN = """
def main():
    steps(0, first)
"""
TAIL = """
    steps(first, 20)
    if moment != 'silent':
        ft.done()
if __name__ == '__main__':
    main()
"""
MOMENTS = ("learned", "before", "early", "silent")  # `silent`: it never gives a heartbeat


class Row(NamedTuple):
    """`cores`: how much it computes; `words`: another command than the program of `text`; `lacks`: why it cannot run
    here, or nothing."""

    group: str
    name: str
    text: str = ""
    actor: Actor = nobody
    seconds: float | None = None
    cores: float = 0.05
    words: Callable[[Path, list[str]], list[str]] | None = None
    moments: tuple[str, ...] = MOMENTS
    lacks: Callable[[], str] = str

    def command(self, folder: Path, arguments: list[str]) -> list[str]:
        if self.words is not None:
            return self.words(folder, arguments)
        text = "".join(f"    {line}\n" for line in self.text.strip().splitlines())
        (folder / "train.py").write_text(f"{HEAD}{MAIN}{text}{TAIL}")
        return [sys.executable, str(folder / "train.py"), *arguments]
