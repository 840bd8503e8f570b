"""What a look at a job costs that stands still, by its number of threads: `python tests/proof/bench/bench_waits.py`.

Each row is a job of several processes whose threads all wait for locks that nobody can release.  CPU time is that of
the helper and of py-spy, without the start of the interpreter.  As root it runs in a PID namespace of its own, as in a
container, so that the other processes of the machine are not searched for what they have open.
"""

from __future__ import annotations

import gc
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(HOUSE / "supervisor"), str(HOUSE / "hooks")]

from ftrun.helpers.evidence import job_processes  # noqa: E402
from ftrun.helpers.evidence import look as module  # noqa: E402
from ftrun.messages.evidence import LookRequest  # noqa: E402
from waitproof import proof, waits  # noqa: E402

ROWS: Sequence[tuple[int, int]] = ((10, 1), (1_000, 4), (10_000, 8))  # threads of the whole job, and its processes
ROUNDS = 5
JOB = """import os, sys, threading
threading.stack_size(65536)
lock = threading.Lock()
lock.acquire()
for _ in range(int(sys.argv[1]) - 1):
    threading.Thread(target=lock.acquire, daemon=True).start()
for number in range(int(sys.argv[2]) - 1):
    if os.fork() == 0:
        for _ in range(int(sys.argv[1]) - 1):
            threading.Thread(target=lock.acquire, daemon=True).start()
        break
os.write(1, b'1')
lock.acquire()
"""


def main() -> None:
    if os.getuid() == 0 and os.getppid() != 1:  # below a shell, since orphans of PID 1 are taken for the job's
        below = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, *sys.argv]
        os.execvp("unshare", ["unshare", "--pid", "--net", "--fork", "--mount-proc", *below])
    gc.disable()  # as the helper does
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    for threads, number in ROWS:
        with waiting(threads, number) as pid:
            observed = [spent(observe, pid) for _ in range(rounds)]
            looks = [spent(asked, pid) for _ in range(rounds)]
        for what, found in (("one observation", observed), ("a whole closed look", looks)):
            whole = sorted(own + children for own, children in found)
            own, children = (statistics.median(part) * 1e3 for part in zip(*found, strict=True))
            print(
                f"{threads:6} threads in {number} processes, {what:19}: {statistics.median(whole) * 1e3:8.1f} ms of CPU"
                f" ({whole[0] * 1e3:.1f} to {whole[-1] * 1e3:.1f}; {own:.1f} of its own, {children:.1f} of py-spy),"
                f" load {os.getloadavg()[0]:.1f}",
                flush=True,
            )


@contextmanager
def waiting(threads: int, number: int) -> Iterator[int]:
    """The pid of such a job, of so many processes; all of them are ended afterwards."""
    job = subprocess.Popen([sys.executable, "-c", JOB, str(threads // number), str(number)], stdout=subprocess.PIPE)
    assert job.stdout is not None
    try:
        ready = b""
        while len(ready) < number:
            ready += job.stdout.read(1)
        time.sleep(3.0)  # the threads that were started last need a moment until they wait, which nothing tells
        yield job.pid
    finally:
        for pid in job_processes.members(job.pid, frozenset()):
            os.kill(pid, 9)
        job.wait()
        job.stdout.close()


def spent(work: Callable[[int], None], pid: int) -> tuple[float, float]:
    """CPU seconds of this process, and of its children that have ended."""
    before = cpu_time()
    work(pid)
    after = cpu_time()
    gc.collect()
    return after[0] - before[0], after[1] - before[1]


def cpu_time() -> tuple[float, float]:
    """Finer than `os.times`."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return used[0].ru_utime + used[0].ru_stime, used[1].ru_utime + used[1].ru_stime


def observe(pid: int) -> None:
    world = waits.empty(frozenset())
    waits.observe_job(world, job_processes.members(pid, frozenset()))
    proof.prove(world, world, {}, proof.Facts(pid), presumes_closed=True)


def asked(pid: int) -> None:
    found = module.look(LookRequest(pid, time.monotonic(), between=0.0))
    assert found.open_reason is None, found.open_reason


if __name__ == "__main__":
    main()
