"""Healthy programs that stand still for a while: the rows of the matrix, in which ftrun may never find a hang.

A program takes some steps, then executes the text of its row, and takes some more.  The text has `seconds`, for which
it is to wait; `waits()`, which tells the actor outside that it does now; and `ask(path)`, a request to the server.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from proof.hangs import actors
from proof.hangs.actors import Actor, nobody, touches
from proof.hangs.server import free_port
from support.runs import FTHANG, HOUSE

HEAD = f"""
import http.client, os, signal, socket, subprocess, sys, threading, time
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
    with open(folder + '/waiting', 'w') as file:
        file.write(str(os.getpid()))
    os.rename(folder + '/waiting', folder + '/waits')
def until_done():
    waits()
    while not os.path.exists(folder + '/done'):
        time.sleep(0.2)
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
def number(name):
    while not os.path.exists(folder + '/' + name):
        time.sleep(0.01)
    with open(folder + '/' + name) as file:
        return int(file.read())
def long_enough(compute, small):
    '''Compute for about as long as is asked: `compute(n)` takes a time in proportion to n.'''
    begun = time.monotonic()
    compute(small)
    compute(int(small * 1.3 * seconds / (time.monotonic() - begun)))
def publish(name, value):
    with open(folder + '/' + name + '.new', 'w') as file:
        file.write(str(value))
    os.rename(folder + '/' + name + '.new', folder + '/' + name)
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
        (folder / "train.py").write_text(f"{HEAD}{text}{TAIL}")
        return [sys.executable, str(folder / "train.py"), *arguments]


TIME = (
    Row("time", "a loop of short sleeps", "for _ in range(int(seconds)): time.sleep(1)"),
    Row("time", "one long sleep", "time.sleep(seconds)"),
    Row("time", "a rate limit: HTTP 429, then a sleep", "assert ask('/429') == 429\ntime.sleep(seconds)"),
    Row(
        "time",
        "requests with Retry-After",
        """
import requests
retry = requests.adapters.Retry(3, status_forcelist=[429])
with requests.Session() as session:
    session.mount('http://', requests.adapters.HTTPAdapter(max_retries=retry))
    path = 'http://127.0.0.1:%d/429/%d/%d' % (port, seconds, os.getpid())
    assert session.get(path).status_code == 200
""",
        cores=0.2,
    ),
    Row(
        "time",
        "a rate limit in a side thread, whose result the main thread awaits",
        """
def limited():
    assert ask('/429') == 429
    time.sleep(seconds)
    return ask('/wait/0')
with ThreadPoolExecutor(4) as pool:
    assert pool.submit(limited).result() == 200
""",
    ),
    Row(
        "time",
        "a thread without an executor that sleeps, then sets an Event",
        """
event = threading.Event()
def later():
    time.sleep(seconds)
    event.set()
threading.Thread(target=later, daemon=True).start()
event.wait()
""",
    ),
    Row(
        "time",
        "an Event that a threading.Timer sets",
        "event = threading.Event()\nthreading.Timer(seconds, event.set).start()\nevent.wait()",
    ),
    Row(
        "time",
        "a lock that is tried for five seconds, again and again",
        "lock = threading.Lock()\nlock.acquire()\nthreading.Timer(seconds, lock.release).start()\n"
        "while not lock.acquire(timeout=5): pass",
    ),
    Row("time", "asyncio: a task that sleeps", "import asyncio\nasyncio.run(asyncio.sleep(seconds))"),
    Row(
        "time",
        "asyncio: a function that sleeps in an executor",
        """
import asyncio
async def run():
    await asyncio.get_running_loop().run_in_executor(None, time.sleep, seconds)
asyncio.run(run())
""",
    ),
    Row(
        "time",
        "asyncio: requests to a slow server",
        """
import asyncio
async def one():
    reader, writer = await asyncio.open_connection('127.0.0.1', port)
    writer.write(b'PUT /wait/%f HTTP/1.0\\r\\n\\r\\n' % seconds)
    assert b'200' in await reader.readline()
    writer.close()
async def run():
    await asyncio.gather(*(one() for _ in range(4)))
asyncio.run(run())
""",
    ),
    Row(
        "time",
        "signal.alarm, and a pause until then",
        "signal.signal(signal.SIGALRM, lambda *_: None)\nsignal.alarm(int(seconds))\nsignal.pause()",
    ),
    Row(
        "time",
        "an interval timer, whose handler sets an Event",
        "event = threading.Event()\nsignal.signal(signal.SIGALRM, lambda *_: event.set())\n"
        "signal.setitimer(signal.ITIMER_REAL, seconds)\nevent.wait()",
    ),
    Row(
        "time",
        "a timerfd",
        """
import ctypes
libc = ctypes.CDLL(None)
timer = libc.timerfd_create(time.CLOCK_MONOTONIC, 0)
assert libc.timerfd_settime(timer, 0, (ctypes.c_long * 4)(0, 0, int(seconds), 0), None) == 0
os.read(timer, 8)
""",
    ),
    Row(
        "time",
        "a POSIX timer, whose signal ends a sigwait",
        """
import ctypes
libc = ctypes.CDLL(None)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 5])
event = (ctypes.c_int * 16)(0, 0, signal.SIGRTMIN + 5, 0)
timer = ctypes.c_void_p()
assert libc.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(timer)) == 0
assert libc.timer_settime(timer, 0, (ctypes.c_long * 4)(0, 0, int(seconds), 0), None) == 0
assert signal.sigwait([signal.SIGRTMIN + 5]) == signal.SIGRTMIN + 5
""",
    ),
)
SIGNALS = (
    Row(
        "signals",
        "sigwait for a SIGUSR1 from outside",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\nwaits()\nsignal.sigwait([signal.SIGUSR1])",
        actors.signals(10),
    ),
    Row(
        "signals",
        "a SIGUSR1 from outside, whose handler sets an Event",
        "event = threading.Event()\nsignal.signal(signal.SIGUSR1, lambda *_: event.set())\nwaits()\nevent.wait()",
        actors.signals(10),
    ),
    Row(
        "signals",
        "a SIGUSR2 from outside, for which asyncio waits",
        """
import asyncio
async def run():
    event = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, event.set)
    waits()
    await event.wait()
asyncio.run(run())
""",
        actors.signals(12),
    ),
    Row(
        "signals",
        "a SIGHUP from outside, which ends a pause",
        "signal.signal(signal.SIGHUP, lambda *_: None)\nwaits()\nsignal.pause()",
        actors.signals(1),
    ),
    Row(
        "signals",
        "a SIGTERM from outside, whose handler sets an Event",
        "event = threading.Event()\nsignal.signal(signal.SIGTERM, lambda *_: event.set())\nwaits()\nevent.wait()",
        actors.signals(15),
    ),
    Row(
        "signals",
        "a SIGTERM from outside, for which asyncio waits",
        """
import asyncio
async def run():
    event = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, event.set)
    waits()
    await event.wait()
asyncio.run(run())
""",
        actors.signals(15),
    ),
    Row(
        "signals",
        "a thread that sleeps and then interrupts the main thread",
        """
signal.signal(signal.SIGUSR1, lambda *_: None)
def later():
    time.sleep(seconds)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
threading.Thread(target=later).start()
signal.pause()
""",
    ),
)
NETWORK = (
    Row("network", "a download, of which a byte arrives every ten seconds", "assert ask('/drip/%f' % seconds) == 200"),
    Row("network", "a download that stalls in the middle", "assert ask('/stall/%f' % seconds) == 200"),
    Row("network", "a reply that takes its time", "assert ask('/wait/%f' % seconds) == 200"),
    Row("network", "an upload, 2 MB/s", "assert upload(2_000_000) == 200", cores=0.2),
    Row("network", "an upload, 20 MB/s", "assert upload(20_000_000) == 200", cores=0.5),
    Row(
        "network",
        "an upload by a thread pool",
        "with ThreadPoolExecutor() as pool:\n    assert pool.submit(upload, 500_000).result() == 200",
    ),
    Row(
        "network",
        "a peer that comes after five minutes",
        """
with socket.create_server(('127.0.0.1', 0)) as server:
    publish('port', server.getsockname()[1])
    waits()
    with server.accept()[0] as connection:
        assert connection.recv(3) == b'go\\n'
""",
        actors.connects,
        seconds=300,
    ),
    Row(
        "network",
        "a server that does not listen yet: a try each second",
        """
waits()
while True:
    try:
        socket.create_connection(('127.0.0.1', number('port'))).close()
        break
    except OSError:
        time.sleep(1)
""",
        actors.listens_late,
    ),
    Row(
        "network",
        "a server that has not accepted the connection yet",
        "with socket.create_connection(('127.0.0.1', number('port'))) as connection:\n"
        "    waits()\n    assert connection.recv(3) == b'go\\n'",
        actors.accepts_late,
    ),
    Row(
        "network",
        "a datagram",
        """
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
    receiver.bind(('127.0.0.1', 0))
    publish('port', receiver.getsockname()[1])
    waits()
    assert receiver.recv(10) == b'go'
""",
        actors.sends_datagram,
    ),
    Row(
        "network",
        "a daemon on a Unix socket",
        """
os.chdir(folder)
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect('daemon')
    waits()
    assert connection.recv(3) == b'go\\n'
""",
        actors.serves_unix,
    ),
    Row(
        "network",
        "a reader thread that fills the queue of the main thread",
        """
import queue
received = queue.Queue()
connection = socket.create_connection(('127.0.0.1', database))
threading.Thread(target=lambda: received.put(connection.recv(100)), daemon=True).start()
connection.sendall(b'%f question\\n' % seconds)
assert received.get()
""",
    ),
    Row(
        "network",
        "a lock that a thread holds while it downloads",
        """
lock, held = threading.Lock(), threading.Event()
def download():
    with lock:
        held.set()
        ask('/stall/%f' % seconds)
threading.Thread(target=download).start()
held.wait()
with lock: pass
""",
    ),
    Row(
        "network",
        "service threads beside a slow server: tqdm, a log writer, keep-alives",
        """
import queue
from tqdm import tqdm
records = queue.Queue()
def write():
    while True:
        records.get()
def flush():
    while True:
        time.sleep(2)
        records.put(1)
def keep_alive():
    while True:
        ask('/wait/0')
        time.sleep(10)
for service in (write, flush, keep_alive):
    threading.Thread(target=service, daemon=True).start()
for _ in tqdm(range(2)):
    assert ask('/wait/%f' % (seconds / 2)) == 200
""",
        cores=0.3,
    ),
)
DATA = (
    Row(
        "databases, files and locks",
        "a query to a database server",
        "with socket.create_connection(('127.0.0.1', database)) as connection:\n"
        "    connection.sendall(b'%f select\\n' % seconds)\n    assert connection.recv(100)",
    ),
    Row(
        "databases, files and locks",
        "a pool of database connections, each with a thread of its own",
        """
def query(n):
    with socket.create_connection(('127.0.0.1', database)) as connection:
        connection.sendall(b'%f select\\n' % (seconds if n == 3 else 0.1))
        return connection.recv(100)
with ThreadPoolExecutor(4) as pool:
    assert all(pool.map(query, range(8)))
""",
    ),
    Row(
        "databases, files and locks",
        "a database in SQLite that another process has locked",
        """
import sqlite3
waits()
with sqlite3.connect(folder + '/database', timeout=10 * seconds) as connection:
    connection.execute('insert into steps values (1)')
""",
        actors.holds_database,
    ),
    Row(
        "databases, files and locks",
        "flock of a file that another process has locked",
        "import fcntl\nwith open(folder + '/lock') as file:\n    waits()\n    fcntl.flock(file, fcntl.LOCK_EX)",
        actors.holds_flock,
    ),
    Row(
        "databases, files and locks",
        "lockf of a file that another process has locked",
        "import fcntl\nwith open(folder + '/lock', 'r+') as file:\n    waits()\n    fcntl.lockf(file, fcntl.LOCK_EX)",
        actors.holds_lockf,
    ),
    Row(
        "databases, files and locks",
        "a lock file that another process removes",
        "waits()\nwhile os.path.exists(folder + '/lock'): time.sleep(0.05)",
        actors.removes_lock_file,
    ),
    Row(
        "databases, files and locks",
        "a feeder thread that looks for a new file each second",
        """
import queue
files = queue.Queue()
def watch():
    while not os.path.exists(folder + '/done'):
        time.sleep(1)
    files.put('done')
threading.Thread(target=watch, daemon=True).start()
waits()
files.get()
""",
        touches,
    ),
    Row(
        "databases, files and locks",
        "a feeder thread that looks for a new file every 40 s",
        """
import queue
files = queue.Queue()
def watch():
    while not os.path.exists(folder + '/done'):
        time.sleep(40)
    files.put('done')
threading.Thread(target=watch, daemon=True).start()
waits()
files.get()
""",
        touches,
    ),
    Row(
        "databases, files and locks",
        "a feeder process that looks for a new file each second",
        """
import multiprocessing
files = multiprocessing.Queue()
def watch():
    while not os.path.exists(folder + '/done'):
        time.sleep(1)
    files.put('done')
multiprocessing.get_context('fork').Process(target=watch, daemon=True).start()
waits()
files.get()
""",
        touches,
    ),
    Row(
        "databases, files and locks",
        "inotify: a file that another process creates",
        """
import ctypes
watch = ctypes.CDLL(None).inotify_init()
ctypes.CDLL(None).inotify_add_watch(watch, folder.encode(), 0x100)
while not os.path.exists(folder + '/done'):
    waits() if not os.path.exists(folder + '/waits') else None
    os.read(watch, 4096)
""",
        touches,
    ),
    Row(
        "databases, files and locks",
        "a big save, a piece with fsync every second",
        """
with open(folder + '/checkpoint', 'wb') as file:
    for _ in range(int(seconds)):
        file.write(bytes(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        time.sleep(1)
os.unlink(folder + '/checkpoint')
""",
    ),
    Row(
        "databases, files and locks",
        "a save to a slow share",
        "with open(folder + '/share/checkpoint', 'wb', buffering=0) as file:\n"
        f"    for _ in range(int(seconds)): file.write(bytes({actors.SHARE}))",
        actors.slow_share,
        lacks=lambda: "" if shutil.which("bindfs") and os.access("/dev/fuse", os.W_OK) else "bindfs or FUSE",
    ),
)
OUTSIDE = (
    Row(
        "queues and input from outside",
        "a FIFO that nobody has opened yet",
        "waits()\nwith open(folder + '/fifo') as fifo: assert fifo.readline() == 'go\\n'",
        actors.opens_fifo_late,
    ),
    Row(
        "queues and input from outside",
        "a FIFO that another process holds",
        "waits()\nwith open(folder + '/fifo') as fifo: assert fifo.readline() == 'go\\n'",
        actors.writes_fifo,
    ),
    Row(
        "queues and input from outside",
        "input through a pipe, as a notebook's kernel gets it",
        "waits()\nassert input() == 'go'",
        actors.types,
    ),
    Row(
        "queues and input from outside",
        "a debugger's prompt on a terminal",
        "waits()\nassert sys.stdin.readline() == 'go\\n'",
        actors.types_on_terminal,
    ),
    Row(
        "queues and input from outside",
        "a queue that another process serves",
        """
from multiprocessing.managers import BaseManager
class Queues(BaseManager): pass
Queues.register('queue')
manager = Queues(('127.0.0.1', number('port')), authkey=b'matrix')
manager.connect()
waits()
manager.queue().get()
""",
        actors.serves_queue,
    ),
    Row(
        "queues and input from outside",
        "a semaphore of System V that another process posts",
        """
import ctypes
libc = ctypes.CDLL(None)
semaphore = libc.semget(0, 1, 0o1600)
publish('semaphore', semaphore)
waits()
libc.semop(semaphore, (ctypes.c_short * 3)(0, -1, 0), 1)
libc.semctl(semaphore, 0, 0)
""",
        actors.posts_semaphore,
    ),
    Row(
        "queues and input from outside",
        "a named semaphore that another process posts",
        """
from _multiprocessing import SemLock
with open(folder + '/semaphore') as file:
    name = file.read()
semaphore = SemLock._rebuild(0, 1, 1, name)
waits()
semaphore.acquire()
""",
        actors.posts_named_semaphore,
    ),
    Row(
        "queues and input from outside",
        "a flag in shared memory that another process sets",
        """
import mmap
with open(folder + '/flag', 'wb') as file:
    file.write(bytes(4096))
waits()
with open(folder + '/flag', 'r+b') as file, mmap.mmap(file.fileno(), 4096) as memory:
    while not memory[0]:
        time.sleep(0.01)
""",
        actors.sets_flag,
    ),
)
CHILDREN = (
    Row(
        "children and pools",
        "a child that sleeps",
        "subprocess.run(['sleep', str(int(seconds))], check=True)",
    ),
    Row(
        "children and pools",
        "a pipeline of a shell, whose output is read",
        "words = 'sleep %d | cat; echo done' % seconds\n"
        "assert subprocess.run(words, shell=True, capture_output=True).stdout == b'done\\n'",
    ),
    Row(
        "children and pools",
        "a child that downloads",
        "assert b'200' in subprocess.run(asked('/stall/%f' % seconds), check=True, capture_output=True).stdout",
    ),
    Row(
        "children and pools",
        "a simulator: a child that answers over pipes and asks a server",
        """
code = 'import sys, http.client; sys.stdin.readline(); c = http.client.HTTPConnection("127.0.0.1", %d); '
code += 'c.request("PUT", "/wait/%f"); print(c.getresponse().status, flush=True); sys.stdin.readline()'
words = [sys.executable, '-c', code % (port, seconds)]
simulator = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
print('step', file=simulator.stdin, flush=True)
assert simulator.stdout.readline() == '200\\n'
simulator.communicate()
""",
    ),
    Row(
        "children and pools",
        "an executor of threads with one slow task",
        """
with ThreadPoolExecutor(4) as pool:
    list(pool.map(time.sleep, [0.1, 0.1, seconds, 0.1]))
""",
    ),
    Row(
        "children and pools",
        "an executor of processes, of which one downloads",
        """
with ProcessPoolExecutor(3) as pool:
    assert list(pool.map(ask, ['/wait/0', '/stall/%f' % seconds, '/wait/0'])) == [200] * 3
""",
    ),
    Row(
        "children and pools",
        "a multiprocessing.Pool, of which one sleeps",
        "import multiprocessing\nwith multiprocessing.Pool(3) as pool:\n    pool.map(time.sleep, [0, seconds, 0])",
    ),
    Row(
        "children and pools",
        "a multiprocessing.Process that is joined while it downloads",
        "import multiprocessing\nchild = multiprocessing.Process(target=ask, args=('/wait/%f' % seconds,))\n"
        "child.start()\nchild.join()",
    ),
    Row(
        "children and pools",
        "a multiprocessing.Queue, fed by a child that sleeps",
        """
import multiprocessing
def feed(queue):
    time.sleep(seconds)
    queue.put(1)
context = multiprocessing.get_context('fork')
queue = context.Queue()
context.Process(target=feed, args=(queue,)).start()
queue.get()
""",
    ),
    Row(
        "children and pools",
        "a barrier of processes, of which one downloads",
        """
import multiprocessing
def take_part(barrier, path):
    ask(path)
    barrier.wait()
context = multiprocessing.get_context('fork')
barrier = context.Barrier(3)
others = [context.Process(target=take_part, args=(barrier, path)) for path in ('/wait/0', '/stall/%f' % seconds)]
for other in others: other.start()
barrier.wait()
for other in others: other.join()
""",
    ),
)
COMPUTE = (
    Row(
        "work",
        "a child that computes",
        "code = 'import time\\nend = time.monotonic() + %f\\nwhile time.monotonic() < end: sum(range(1000))'\n"
        "code %= seconds\nsubprocess.run([sys.executable, '-c', code], check=True)",
        cores=1,
    ),
    Row(
        "work",
        "a compiler",
        """
end = time.monotonic() + seconds
functions = ('int f%d(int x) { return x * %d + rand(); }\\n' % (n, n) for n in range(3000))
source = '#include <stdlib.h>\\n' + ''.join(functions)
while time.monotonic() < end:
    subprocess.run(['gcc', '-O2', '-x', 'c', '-c', '-', '-o', '/dev/null'], input=source.encode(), check=True)
""",
        cores=1,
        lacks=lambda: "" if shutil.which("gcc") else "gcc",
    ),
    Row(
        "work",
        "an executor of processes, of which one computes",
        "end = time.monotonic() + seconds\n"
        "with ProcessPoolExecutor(2) as pool:\n"
        "    while time.monotonic() < end: pool.submit(sum, range(20_000_000)).result()",
        cores=1,
    ),
    Row(
        "work",
        "a busy wait for the clock",
        "end = time.monotonic() + seconds\nwhile time.monotonic() < end:\n    pass",
        cores=1,
    ),
    Row(
        "work",
        "a busy wait for the clock, with other work in between",
        """
def work():
    x = 0.0
    for _ in range(300):
        x = x * 0.5 + 1.0
    return x
def until(end):
    while time.monotonic() < end:
        work()
until(time.monotonic() + seconds)
""",
        cores=1,
    ),
    Row(
        "work",
        "a busy wait for a flag that a thread sets, which sleeps",
        """
flag = []
def later():
    time.sleep(seconds)
    flag.append(1)
threading.Thread(target=later, daemon=True).start()
def until():
    while not flag:
        pass
until()
""",
        cores=1,
    ),
    Row(
        "work",
        "a busy wait for a SIGUSR1 from outside",
        """
flag = []
signal.signal(signal.SIGUSR1, lambda *_: flag.append(1))
waits()
def until():
    while not flag:
        pass
until()
""",
        actors.signals(10),
        cores=1,
    ),
    Row(
        "work",
        "nested loops with few variables",
        """
def loop(n):
    for a in range(n):
        for b in range(100):
            for c in range(100):
                pass
long_enough(loop, 1000)
""",
        cores=1,
    ),
    Row(
        "work",
        "numpy, which computes in the same frame",
        """
import numpy as np
def compute(n):
    x = np.ones((50, 50))
    for _ in range(n):
        x = np.tanh(x @ x)
long_enough(compute, 1000)
""",
        cores=1,
        lacks=lambda: "" if importlib.util.find_spec("numpy") else "numpy",
    ),
    Row(
        "work",
        "a busy wait for a file",
        "waits()\nwhile not os.path.exists(folder + '/done'):\n    pass",
        touches,
        cores=1,
    ),
    Row(
        "work",
        "a busy wait for memory that another process writes",
        """
import mmap
with open(folder + '/flag', 'wb') as file:
    file.write(bytes(4096))
waits()
with open(folder + '/flag', 'r+b') as file, mmap.mmap(file.fileno(), 4096) as memory:
    while not memory[0]:
        pass
""",
        actors.sets_flag,
        cores=1,
    ),
    Row(
        "work",
        "a loop whose state is only in an iterator",
        "import itertools\ndef loop(n):\n    for _ in itertools.repeat(None, n):\n        pass\n"
        "long_enough(loop, 10**8)",
        cores=1,
    ),
    Row(
        "work",
        "a loop whose state is only inside of a C object",
        "import hashlib, itertools\ndigest, block = hashlib.sha256(), bytes(1 << 20)\n"
        "def loop(n):\n    for _ in itertools.repeat(None, n):\n        digest.update(block)\nlong_enough(loop, 500)",
        cores=1,
    ),
    Row(
        "work",
        "one call into C that computes",
        "import hashlib\nlong_enough(lambda n: hashlib.pbkdf2_hmac('sha256', b'a', b'b', n), 10**6)",
        cores=1,
    ),
    Row("work", "one call into C that keeps the GIL", "long_enough(lambda n: sum(range(n)), 10**8)", cores=1),
)
OTHERS = (
    Row("others act on the job", "SIGSTOP to all of its processes, later SIGCONT", "until_done()", actors.stops_all),
    Row(
        "others act on the job",
        "the same, while its threads and its child wait for each other",
        """
child = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
threading.Thread(target=until_done).start()
for thread in threading.enumerate():
    if thread is not threading.current_thread(): thread.join()
child.communicate(b'x')
""",
        actors.stops_all,
    ),
    Row("others act on the job", "SIGSTOP to ftrun as well", "until_done()", actors.stops_ftrun_too),
    Row(
        "others act on the job",
        "a frozen cgroup",
        "until_done()",
        actors.freezes,
        lacks=lambda: "" if os.access(actors.FREEZER, os.W_OK) else "a cgroup freezer",
    ),
    Row(
        "others act on the job",
        "a debugger (gdb) that has stopped the process",
        "until_done()",
        actors.attaches_gdb,
        lacks=lambda: "" if shutil.which("gdb") else "gdb",
        cores=0.5,
    ),
    Row(
        "others act on the job",
        "strace, while the main thread waits for another one that waits for a file",
        "thread = threading.Thread(target=until_done)\nthread.start()\nthread.join()",
        actors.attaches_strace,
        lacks=lambda: "" if shutil.which("strace") else "strace",
    ),
    Row(
        "others act on the job",
        "a profiler (py-spy) that stops it each second",
        "until_done()",
        actors.profiles,
        cores=0.6,
    ),
    Row(
        "others act on the job",
        "a machine with a load of 10, on which it gets what is left over",
        "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nuntil_done()",
        actors.crowds,
        cores=1,
    ),
)

# --- with PyTorch -----------------------------------------------------------------------------------------------------

TORCH = """
import http.client, os, sys, threading, time
import torch
torch.set_num_threads(1)
port, seconds, folder, moment = int(sys.argv[1]), float(sys.argv[3]), sys.argv[4], sys.argv[5]
first = {'before': 0, 'early': 5, 'learned': 130}[moment]
def ask(path, body=None):
    connection = http.client.HTTPConnection('127.0.0.1', port)
    connection.request('PUT', path, body)
    reply = connection.getresponse()
    reply.read()
    return reply.status
def waits():
    with open(folder + '/waiting', 'w') as file:
        file.write(str(os.getpid()))
    os.rename(folder + '/waiting', folder + '/waits')
def train(model, count, batches=None):
    optimizer = torch.optim.Adam(model.parameters())
    for _, batch in zip(range(count), batches or iter(lambda: torch.ones(8, 4), None)):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(0.01)
"""
# As CleanRL's ppo_continuous_action.py: a burst of quick steps, then a rollout in a remote simulator.
BURSTS = f"""{TORCH}
model = torch.nn.Linear(4, 1)
train(model, first)
for _ in range(2):
    assert ask('/wait/%f' % (seconds / 2)) == 200
    train(model, first)
assert ask('/wait/%f' % seconds) == 200
train(model, 20)
"""
# The batch after the first steps comes from storage that answers late.
LOADER = f"""{TORCH}
class Remote(torch.utils.data.Dataset):
    def __len__(self): return first + 20
    def __getitem__(self, n):
        if n == first:
            HOW
        return torch.ones(8, 4)
if __name__ == '__main__':
    loader = torch.utils.data.DataLoader(Remote(), batch_size=None, num_workers=2, persistent_workers=PERSISTENT)
    train(torch.nn.Linear(4, 1), first + 20, loader)
"""
# The workers wait while the main process, which has their last batch, asks a slow server between two epochs.
EPOCHS = f"""{TORCH}
if __name__ == '__main__':
    batches = [torch.ones(8, 4)] * (first + 20)
    loader = torch.utils.data.DataLoader(batches, batch_size=None, num_workers=2, persistent_workers=True)
    model = torch.nn.Linear(4, 1)
    train(model, first + 20, loader)
    assert ask('/stall/%f' % seconds) == 200
    train(model, first + 20, loader)
"""
# An accelerator that is none, so that DataLoader starts its thread that pins memory.
PINNING = """
from torch import accelerator
accelerator.is_available = lambda: True
accelerator.current_device_index = lambda: 0
accelerator.set_device_index = lambda index: None
torch.Tensor.pin_memory = lambda tensor, *device: tensor
"""
DDP = f"""{TORCH}
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
os.environ['GLOO_SOCKET_IFNAME'] = 'lo'
def main(rank=int(os.environ.get('RANK', 0))):
    dist.init_process_group('gloo', rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    train(model, first)
    if rank == WHO:
        WHAT
    COLLECTIVE
    train(model, 20)
    dist.destroy_process_group()
"""
SPAWN = """
if __name__ == '__main__':
    os.environ |= {'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': FREE_PORT}
    torch.multiprocessing.spawn(main, nprocs=2)
"""
LAUNCHED = "\nmain()\n"
ONE_OF_TWO = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
Words = Callable[[Path, list[str]], list[str]]


def program(text: str) -> Words:
    def words(folder: Path, arguments: list[str]) -> list[str]:
        (folder / "train.py").write_text(text.replace("FREE_PORT", repr(str(free_port()))))
        return [sys.executable, str(folder / "train.py"), *arguments]

    return words


def ddp(what: str, collective: str = "", who: int = 1) -> str:
    return DDP.replace("WHAT", what).replace("COLLECTIVE", collective).replace("WHO", str(who))


def loader(how: str, persistent: bool) -> Words:
    return program(LOADER.replace("HOW", how).replace("PERSISTENT", str(persistent)))


def pinning(how: str) -> Words:
    text = LOADER.replace("HOW", how).replace("PERSISTENT", "True, pin_memory=True")
    return program(text.replace(TORCH, TORCH + PINNING))


def torchrun(text: str) -> Words:
    def words(folder: Path, arguments: list[str]) -> list[str]:
        (folder / "train.py").write_text(text + LAUNCHED)
        return [*TORCHRUN, "--standalone", "--nproc-per-node", "2", str(folder / "train.py"), *arguments]

    return words


def two_nodes(folder: Path, arguments: list[str]) -> list[str]:
    """The second node has the same command; the rendezvous is at the first one."""
    (folder / "train.py").write_text(ddp("pass") + LAUNCHED)
    rendezvous = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "ft"]
    command = [*TORCHRUN, *rendezvous, "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    command += ["--local-addr", "127.0.0.1", str(folder / "train.py"), *arguments]
    (folder / "command").write_text("\n".join(command))
    (folder / "waits").write_text("0")
    return command


def two_hosts(late: str) -> Words:
    """Rank 0 runs under ftrun; rank 1, on another node as it were, comes late to `late`: the start, or a step."""

    def words(folder: Path, arguments: list[str]) -> list[str]:
        (folder / "train.py").write_text(ddp("time.sleep(seconds)" if late == "step" else "pass") + LAUNCHED)
        port = str(free_port())
        variables = [f"{name}={value}" for name, value in (ONE_OF_TWO | {"MASTER_PORT": port}).items()]
        own = [sys.executable, str(folder / "train.py"), *arguments]
        (folder / "command").write_text("\n".join(["env", *variables, "RANK=1", *own]))
        (folder / "waits").write_text("0")
        return ["env", *variables, "RANK=0", *own]

    return words


def fthang(*kind: str) -> Words:
    def words(folder: Path, arguments: list[str]) -> list[str]:
        after = {"before": "0", "early": "5", "learned": "130"}[arguments[4]]
        steps = ["--after", after, "--steps", "150", "--step-time", "10ms", "--checkpoint-dir", str(folder / "kept")]
        return [*FTHANG, kind[0], f"{float(arguments[2]):g}s", *kind[1:], *steps]

    return words


def _torch() -> str:
    return "" if importlib.util.find_spec("torch") else "PyTorch"


TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
SEEN = ("learned", "before", "early")
STALLED = "assert ask('/stall/%f' % seconds) == 200"
COMPUTES = "end = time.monotonic() + seconds\n        while time.monotonic() < end: torch.ones(200, 200).exp().sum()"


def _row(name: str, words: Words, actor: Actor = nobody, cores: float = 0.15, moments: tuple[str, ...] = SEEN) -> Row:
    return Row("PyTorch", name, "", actor, None, cores, words, moments, _torch)


WITH_TORCH = (
    _row("a DataLoader whose worker downloads", loader(STALLED, False)),
    _row("a DataLoader with persistent workers, of which one sleeps", loader("time.sleep(seconds)", True)),
    _row("a DataLoader with persistent workers, which wait between two epochs", program(EPOCHS)),
    _row("a DataLoader with a thread that pins memory, of which one worker downloads", pinning(STALLED)),
    _row(
        "a DataLoader whose worker waits for a lock that a thread of it holds while that downloads",
        loader(
            "lock = threading.Lock(); lock.acquire(); "
            "threading.Thread(target=lambda: (ask('/stall/%f' % seconds), lock.release())).start(); lock.acquire()",
            False,
        ),
    ),
    _row("bursts of steps between rollouts in a remote simulator", program(BURSTS)),
    _row("torchrun: rank 1 downloads, rank 0 waits in the all-reduce of its gradients", torchrun(ddp(STALLED))),
    _row(
        "torchrun: rank 0 uploads its checkpoint, rank 1 waits in a barrier",
        torchrun(ddp("assert ask('/500000', bytes(int(500000 * seconds))) == 200", "dist.barrier()", 0)),
    ),
    _row(
        "torchrun: rank 0 evaluates, rank 1 waits in a barrier", torchrun(ddp(COMPUTES, "dist.barrier()", 0)), cores=1
    ),
    _row("torchrun: rank 1 sleeps, rank 0 waits", torchrun(ddp("time.sleep(seconds)"))),
    _row("torchrun waits for its second node", two_nodes, actors.second_node, moments=("before",)),
    _row(
        "a rank waits at its start for the rank of another node",
        two_hosts("start"),
        actors.second_node,
        moments=("before",),
    ),
    _row("a rank waits in a collective for the rank of another node", two_hosts("step"), actors.second_node_at_once),
    _row("torch.multiprocessing.spawn: one rank of two downloads", program(ddp(STALLED) + SPAWN)),
    _row("`fthang long-compile --torch`", fthang("long-compile", "--torch"), cores=1),
    _row("`fthang long-eval`", fthang("long-eval"), cores=1),
    _row("`fthang long-eval --torch`", fthang("long-eval", "--torch"), cores=1),
    _row("`fthang long-checkpoint --torch`", fthang("long-checkpoint", "--torch")),
    _row("`fthang slow-step`", fthang("slow-step"), cores=0.5),
    _row("`fthang quiet-sleep`", fthang("quiet-sleep")),
    _row("`fthang quiet-sleep --torch`", fthang("quiet-sleep", "--torch")),
    _row("`fthang first-batch`", fthang("first-batch"), cores=0.3),
    _row("`fthang paused-io`", fthang("paused-io"), cores=1),
)
ROWS = {
    row.name: row for row in (*TIME, *SIGNALS, *NETWORK, *DATA, *OUTSIDE, *CHILDREN, *COMPUTE, *OTHERS, *WITH_TORCH)
}
