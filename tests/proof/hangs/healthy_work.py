"""Healthy programs that wait for children, that compute, or on which others act."""

from __future__ import annotations

import importlib.util
import os
import shutil

from proof.hangs import actors
from proof.hangs.actors import touches
from proof.hangs.rows import Row

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
