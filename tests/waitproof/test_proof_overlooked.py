"""Healthy programs that something ends which is easily overlooked: an orphan with another environment, Ctrl-C, a ring
of io_uring without a descriptor, a device of another process.  None of them is ever proved to stand still for ever,
and what looks like them but cannot end is proved as before."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.helpers.evidence import job_processes
from ftrun.helpers.evidence.look import look
from ftrun.host import mounts
from ftrun.host.procfs import Stat
from ftrun.messages.evidence import LookRequest, RankState
from support.evidence_job import Job, needs_spy
from support.evidence_job import job as job
from support.proving import SMALL, closed, permitted, see
from support.runs import HOUSE, state_of, wait_for
from waitproof import families
from waitproof.waits import empty
from waitproof.world import Descriptor, WaitingProcess, WaitingThread

needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")

# It stands for ftrun: it adopts the orphans of the command, and asks for a look whenever it reads a line.  At the end
# it kills all that is left.
ADOPTER = """
import ctypes, os, subprocess, sys
code, look = sys.argv[1:]
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
mark = os.environ | {'FTRUN_BEAT_DIR': f'/adopted/{os.getpid()}'}
root = subprocess.Popen([sys.executable, '-c', code], env=mark, stdout=subprocess.PIPE)
root.stdout.readline()
print(flush=True)
for _ in sys.stdin:
    subprocess.run([sys.executable, '-c', look, str(root.pid)])
while found := open(f'/proc/{os.getpid()}/task/{os.getpid()}/children').read().split():
    for pid in found:
        os.kill(int(pid), 9)
    os.wait()
"""
LOOK = f"""
import sys, time
sys.path[:0] = {[f"{HOUSE}/supervisor", f"{HOUSE}/hooks"]!r}
from ftrun.helpers.evidence.look import look
from ftrun.messages.evidence import LookRequest
print(look(LookRequest(int(sys.argv[1]), time.monotonic(), (), (), between=0.3)).open_reason, flush=True)
"""
# An orphan of which nothing shows that the command has started it.
ORPHAN = """
def orphan():
    subprocess.run(['/bin/sh', '-c', 'sleep 900 &'], env={}, start_new_session=True, stdout=subprocess.DEVNULL)
"""
# What an orphan may do after its sleep: kill a process, or continue one.
ENDED_BY_ORPHANS = {
    "a child that it kills": "p = child(stuck); END; ready(); os.waitpid(p, 0)",
    "a child that it continues": (
        "p = child(lambda: os.kill(os.getpid(), 19)); os.waitid(os.P_PID, p, os.WSTOPPED | os.WNOWAIT)\n"
        "END; ready(); os.waitpid(p, 0)"
    ),
}


class Adopter:
    def __init__(self, code: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", ADOPTER, SMALL + ORPHAN + code, LOOK],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._line()

    def look(self) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def adopters() -> Iterator[list[Adopter]]:
    made: list[Adopter] = []
    yield made
    for adopter in made:
        adopter.process.communicate(timeout=60)


@needs_spy
@pytest.mark.parametrize("name", ENDED_BY_ORPHANS)
@pytest.mark.parametrize("ends", [True, False])
def test_an_orphan_with_another_environment_may_end_a_wait(adopters: list[Adopter], name: str, ends: bool) -> None:
    adopter = Adopter(ENDED_BY_ORPHANS[name].replace("END", "orphan()" if ends else "pass"))
    adopters.append(adopter)
    expected = "waits for a timer" if ends else "None"
    wait_for(lambda: expected in adopter.look(), "that result")


@pytest.mark.parametrize(
    ("session", "entries", "state", "found"),
    [
        pytest.param(9, [b"PATH=/bin", b"MARK=1"], "S", True, id="with the mark"),
        pytest.param(9, [b"A=1"], "S", True, id="with an incomplete environment"),
        pytest.param(9, [b"PATH=/bin"], "S", False, id="with a complete environment"),
        pytest.param(1, [b"PATH=/bin"], "S", True, id="in the session of ftrun"),
        pytest.param(7, [b"A=1"], "S", False, id="in the session of a shell from outside"),
        pytest.param(9, [b"PATH=/bin"], "D", True, id="unreadable"),
    ],
)
def test_an_orphan_of_pid_1_may_stem_from_a_shell_from_outside(
    monkeypatch: pytest.MonkeyPatch, session: int, entries: list[bytes], state: str, found: bool
) -> None:
    monkeypatch.setattr(os, "getppid", lambda: 1)
    monkeypatch.setattr(job_processes, "_mark", lambda root: b"MARK=1")
    monkeypatch.setattr(job_processes, "_start", lambda root: 9)
    monkeypatch.setattr("ftrun.host.procfs.environment", lambda pid: entries if pid == 5 else [b"MARK=1"])
    pid_1, root, shell = (
        Stat(*values, 1, 9) for values in ((1, "", "S", 0, 1, 1), (2, "", "S", 1, 2, 1), (7, "", "S", 0, 7, 7))
    )
    orphan = Stat(5, "", state, 1, 5, session, 1, 10)
    everyone = [pid_1, root, shell, orphan]
    assert job_processes.belongs(everyone, 2)(orphan) == found
    assert not job_processes.belongs(everyone, 2)(orphan._replace(start=8)) or b"MARK=1" in entries


def is_open(job: Job, why: str) -> None:
    wait_for(lambda: why in (see(job, job.pid).open_reason or ""), "the reason", 20)


# A program that ends at Ctrl-C, and one that does not handle it.
INTERRUPTED = """
#include <semaphore.h>
#include <signal.h>
#include <unistd.h>
static sem_t stop;
static void end(int number) { sem_post(&stop); }
int main(int count, char **words) {
  sem_init(&stop, 0, 0);
  signal(SIGINT, count > 1 ? SIG_DFL : end);
  if (write(1, "ready\\n", 6) < 0) return 1;
  while (sem_wait(&stop)) {}
}
"""


@needs_spy
@needs_compiler
@pytest.mark.parametrize("handled", [True, False])
def test_a_program_that_waits_for_ctrl_c_is_not_proved(job: Job, tmp_path: Path, handled: bool) -> None:
    program = str(tmp_path / "interrupted")
    Path(f"{program}.c").write_text(INTERRUPTED)
    subprocess.run(["gcc", "-pthread", "-o", program, f"{program}.c"], check=True)
    job.start(f"import os; os.execv({program!r}, {[program] if handled else [program, 'not']})")
    if handled:
        is_open(job, "may be woken by signal 2, which its process handles")
    else:
        assert "waits for a lock" in closed(job, job.pid).mechanism


@needs_spy
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell_that_handles_ctrl_c_by_itself_hides_no_deadlock(job: Job, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip("there is no such shell")
    code = 'import os, threading; os.write(1, b"x\\n"); l = threading.Lock(); l.acquire(); l.acquire()'
    stuck = f"{sys.executable} -c '{code}'"
    job.start(f"import os; os.execvp({shell!r}, [{shell!r}, '-c', {stuck + '; true'!r}])")
    assert "waits for a lock" in closed(job, job.pid).mechanism


@needs_spy
@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_which_handles_signals_to_clean_up_hides_no_deadlock(job: Job) -> None:
    code = 'import os, threading; os.write(1, b"x\\n"); l = threading.Lock(); l.acquire(); l.acquire()'
    (job.folder / "Makefile").write_text(f"all:\n\t@{sys.executable} -c '{code}'\n")
    job.start("import os; os.execvp('make', ['make'])")
    assert "main thread, waits for a lock at <string>:1" in closed(job).mechanism


# An init: it handles signals, looks once a second for children that have ended, and waits for its child.
INIT = """
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static void pass(int number) {}
int main(int count, char **words) {
  struct timespec second = {1, 0};
  sigset_t all;
  int status;
  if (fork() == 0)
    return execv(words[1], words + 1);
  signal(SIGUSR1, pass);
  sigfillset(&all);
  while (waitpid(-1, &status, WNOHANG) == 0)
    sigtimedwait(&all, 0, &second);
}
"""


@needs_spy
@needs_compiler
@pytest.mark.parametrize("name", ["tini", "another"])
def test_an_init_hides_no_deadlock_if_it_is_known(job: Job, tmp_path: Path, name: str) -> None:
    """Also below a shell.  Another program may do something else at a signal, or after its timeout."""
    program = str(tmp_path / name)
    Path(f"{program}.c").write_text(INIT)
    subprocess.run(["gcc", "-o", program, f"{program}.c"], check=True)
    code = 'import os, threading; os.write(1, b"x\\n"); l = threading.Lock(); l.acquire(); l.acquire()'
    line = f"{program} {sys.executable} -c '{code}'; true"
    job.start(f"import os; os.execvp('sh', ['sh', '-c', {line!r}])")
    if name == "tini":
        assert "main thread, waits for a lock at <string>:1" in closed(job).mechanism
    else:
        is_open(job, "may be woken by signal 10, which its process handles")


@needs_spy
def test_xargs_that_handles_signals_for_its_number_of_processes_hides_no_deadlock(job: Job) -> None:
    if shutil.which("xargs") is None:
        pytest.skip("there is no xargs")
    code = 'import os, threading; os.write(1, b"x\\n"); l = threading.Lock(); l.acquire(); l.acquire()'
    words = f"echo a b | xargs -P 2 -n 1 {sys.executable} -c {shlex.quote(code)}"
    job.start(f"import os; os.execvp('sh', ['sh', '-c', {words!r}])")
    assert "waits for a lock" in closed(job).mechanism


# A ring whose descriptor is closed: its mapping keeps it, and it may write to a pipe or signal an event descriptor.
RING = """
libc = ctypes.CDLL(None); libc.mmap.restype = ctypes.c_void_p
ring = libc.syscall(425, 4, ctypes.create_string_buffer(120))
for offset in 0, 0x10000000:
    assert libc.mmap(None, ctypes.c_size_t(4096), 3, 1, ring, ctypes.c_long(offset)) > 0
os.close(ring); a, b = os.pipe(); e = os.eventfd(0)
"""


@needs_spy
@pytest.mark.parametrize("wait", ["os.read(a, 1)", "os.read(e, 8)"])
def test_a_ring_of_io_uring_without_a_descriptor_may_end_a_wait(
    job: Job, monkeypatch: pytest.MonkeyPatch, wait: str
) -> None:
    if not permitted(425, 4, ctypes.create_string_buffer(120)):
        pytest.skip("there is no io_uring here")
    monkeypatch.setattr(mounts, "listed", list)  # no control groups, which may signal any event descriptor
    job.start(f"{SMALL}{RING}ready(); {wait}")
    wait_for(lambda: state_of(job.pid) == "S", "the wait")
    is_open(job, "may be woken by io_uring")


# What may end the wait of a rank, a while after a sleep, and is easily overlooked.
LATER = {
    "a child that shuts down the end which it has inherited": """near, far = socket.socketpair()
def act(): far.close(); ready(); time.sleep(900)
child(act); near.recv(1)""",
    "a thread with a table of open files of its own": """done, connected = threading.Event(), queue.Queue()
near, far = socket.socketpair()
def act():
    ctypes.CDLL(None).unshare(0x400); reader, writer = os.pipe(); connected.put(reader); os.read(reader, 1); done.set()
threading.Thread(target=act, daemon=True).start(); os.dup2(near.fileno(), connected.get()); ready(); done.wait()""",
}


@needs_spy
@pytest.mark.parametrize(("name", "why"), zip(LATER, ("waits for a timer", "open files of its own"), strict=True))
def test_what_acts_later_may_end_a_wait(job: Job, name: str, why: str) -> None:
    job.start(SMALL + LATER[name])
    is_open(job, why)


@needs_spy
def test_a_helper_of_a_rank_may_continue_it(job: Job) -> None:
    """As one that stops it while memory is short; the other rank waits for it."""
    other = "a, b = os.pipe(); x = child(lambda: os.read(a, 1)); os.close(a); y = os.getpid()\n"
    job.start(f"{SMALL}{other}child(lambda: time.sleep(900)); os.write(1, b'%d\\n' % x); os.kill(y, 19)")
    wait_for(lambda: state_of(job.pid) == "T", "the stop")
    now = time.monotonic()
    states = tuple(RankState(n, pid, moved_at=now - 60) for n, pid in enumerate((job.pid, int(job.first_line))))
    request = LookRequest(job.pid, now, (), states, between=0.3)
    wait_for(lambda: "waits for a timer" in (look(request).open_reason or ""), "the reason", 20)


@needs_spy
@pytest.mark.parametrize("child", [False, True])
def test_another_rank_may_continue_it(job: Job, child: bool) -> None:
    """As ranks that take turns, or a child of one; their parent only waits for them."""
    job.start(f"""{SMALL}a, b = os.pipe(); c, d = os.pipe()
def act():
    below = child(lambda: os.read(a, 1)) if {child} else os.getpid()
    os.write(d, b'%d' % below); os.waitpid(below, 0) if {child} else os.read(a, 1)
x = child(act); stopped = int(os.read(c, 9)); y = child(lambda: (os.kill(stopped, 19), time.sleep(900)))
os.write(1, b'%d %d %d\\n' % (x, y, stopped)); os.waitpid(x, 0)""")
    still, other, stopped = map(int, job.first_line.split())
    wait_for(lambda: state_of(stopped) == "T", "the stop")
    now = time.monotonic()
    states = tuple(RankState(n, pid, moved_at=now - moved) for n, pid, moved in ((0, still, 60), (1, other, 1)))
    request = LookRequest(job.pid, now, (), states, between=0.3)
    wait_for(lambda: "waits for a timer" in (look(request).open_reason or ""), "the reason", 20)


def test_a_rank_with_an_accelerator_seems_to_compute_while_it_waits_for_a_stopped_one() -> None:
    world = empty(frozenset())
    device = {3: Descriptor("device", "/dev/nvidia0")}
    stopped = (WaitingThread(4, None, state="T"),)
    world.processes.update({4: WaitingProcess({}, threads=stopped), 5: WaitingProcess({}), 6: WaitingProcess(device)})
    assert families.pausers(world, {4, 5, 6}) == {4: {4, 5}}


@needs_spy
def test_a_job_that_is_being_debugged_says_so_beside_its_wait(job: Job) -> None:
    job.start(
        f"{SMALL}def traced():\n    print(ctypes.CDLL(None).ptrace(0, 0, None, None), flush=True); stuck()\n"
        "child(traced); os.wait()"
    )
    if job.first_line != b"0\n":
        pytest.skip("no process can be traced here")

    def explained() -> bool:
        found = see(job)
        return "waits for" in found.mechanism and "is being debugged" in found.mechanism

    wait_for(explained, "the reason", 60)
