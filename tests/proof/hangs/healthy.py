"""Healthy programs that stand still for a while: the rows of the matrix, in which ftrun may never find a hang.

A program takes some steps, then executes the text of its row, and takes some more.  The text has `seconds`, for which
it is to wait; `waits()`, which tells the actor outside that it does now; and `ask(path)`, a request to the server.
`waits/` has many more, as text.
"""

from __future__ import annotations

import os
import shutil

from proof.hangs import actors
from proof.hangs.actors import touches
from proof.hangs.healthy_torch import WITH_TORCH
from proof.hangs.healthy_work import CHILDREN, COMPUTE, OTHERS
from proof.hangs.rows import Row
from proof.hangs.waits import WAITS

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
        moments=("before", "silent"),  # it ends a rank that has stepped, so such a wait is closed there
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
        moments=("before", "silent"),  # it ends a rank that has stepped, so such a wait is closed there
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
ROWS = {
    row.name: row
    for row in (*TIME, *SIGNALS, *NETWORK, *DATA, *OUTSIDE, *CHILDREN, *COMPUTE, *OTHERS, *WITH_TORCH, *WAITS)
}
