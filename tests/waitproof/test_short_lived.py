"""A loop that monitors a job: the processes that it starts come and go, and hide no deadlock that they cannot end.
Where the loop, or one of these processes, may end a wait, no look is closed."""

import shutil
from pathlib import Path

import pytest

from support.evidence_job import Job, needs_spy
from support.evidence_job import job as job
from support.proving import SMALL, closed, see
from support.runs import wait_for
from waitproof.short_lived import turnover
from waitproof.waits import empty
from waitproof.world import GONE, WaitingProcess, World

pytestmark = [needs_spy, pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")]

# The program, beside a loop as people have it for `nvidia-smi`; `$$` is the process that is the rank of the job.
LOOP = "while sleep 0.2; do cat /proc/uptime | head -1 >> monitor.log; {then}; done"
BESIDE = f'({LOOP}) & monitor=$!; "$@"; kill $monitor'
SHOW = "print(os.getpid(), flush=True)\n"
DEADLOCKS = {
    "a lock": ("stuck()", "waits for a lock"),
    "a queue": ("queue.Queue().get()", "waits for an item in a queue"),
    "a pipe that nobody else has": ("a, b = os.pipe(); os.read(a, 1)", "waits for data from a pipe"),
    "a child": ("os.waitpid(child(stuck), 0)", "waits for a lock"),
    "a lock of processes": (
        "l = multiprocessing.get_context('fork').Lock(); l.acquire(); l.acquire()",
        "waits for a lock",
    ),
}
INOTIFY = """libc = ctypes.CDLL(None); fd = libc.inotify_init(); open('watched', 'w').close()
assert libc.inotify_add_watch(fd, b'watched', 4) > 0
"""
# How the program waits, how a process of the loop ends that, and why that is open.
HEALTHY = {
    "a signal": (
        "e = threading.Event(); signal.signal(signal.SIGUSR1, lambda *_: e.set())\n"
        "open('pid', 'w').write(str(os.getpid())); e.wait()",
        "kill -USR1 $(cat pid)",
        "may be woken by signal 10",
    ),
    "a named pipe": ("os.mkfifo('named'); os.read(os.open('named', os.O_RDWR), 1)", "echo x > named", "named"),
    "a change of a file": (f"{INOTIFY}os.read(fd, 1000)", "chmod 600 watched", "waits for inotify"),
    "a connection": (
        "s = socket.create_server(('127.0.0.1', 0)); open('port', 'w').write(str(s.getsockname()[1])); s.accept()",
        "echo x > /dev/tcp/127.0.0.1/$(cat port)",
        "waits for a connection",
    ),
    "a file lock": (
        "import fcntl; f = open('locked', 'w'); g = open('locked', 'w'); fcntl.flock(f, 2)\n"
        "os.mkfifo('named'); child(lambda: os.read(os.open('named', os.O_RDWR), 1)); f.close(); fcntl.flock(g, 2)",
        "echo x > named",
        "may have been handed to a process outside the job",
    ),
}


def start(job: Job, code: str, then: str = ":", prefix: str = BESIDE) -> int:
    """Start the program beside the loop; returns its pid."""
    job.start(SMALL + SHOW + code, prefix=("bash", "-c", prefix.replace("{then}", then), "run.sh"))
    return int(job.first_line)


@pytest.mark.parametrize(("code", "text"), DEADLOCKS.values(), ids=DEADLOCKS)
def test_processes_that_come_and_go_hide_no_deadlock(job: Job, code: str, text: str) -> None:
    assert text in closed(job, start(job, code)).mechanism


def test_nor_one_of_ranks_that_wait_for_each_other(job: Job) -> None:
    code = "a, b = socket.socketpair(); x = child(lambda: (a.close(), b.recv(1))); print(x, flush=True)\n"
    pid = start(job, f"{code}b.close(); a.recv(1)")
    out = job.processes[-1].stdout
    assert out is not None
    assert "waits for a reply" in closed(job, pid, int(out.readline())).mechanism


def watched(job: Job, pid: int, why: str) -> None:
    """Look until this reason is seen a few times; no look may be closed."""
    seen = list[str]()

    def enough() -> bool:
        found = see(job, pid)
        assert found.open_reason is not None, found.mechanism
        seen.append(found.open_reason)
        return sum(why in one for one in seen) > 2

    wait_for(enough, f"the reason: {seen}", 30)


@pytest.mark.parametrize(("code", "then", "why"), HEALTHY.values(), ids=HEALTHY)
def test_a_wait_that_a_process_of_the_loop_ends_is_never_proved(job: Job, code: str, then: str, why: str) -> None:
    pid = start(job, code, f"[ ! -e now ] || {then}")
    watched(job, pid, why)
    Path(job.folder, "now").touch()
    wait_for(lambda: job.processes[0].poll() is not None, "the end of the wait")


def test_a_pipe_into_which_the_loop_writes_is_never_proved(job: Job) -> None:
    """The processes of the loop have it as their output."""
    prefix = f'"$@" < <({LOOP})'
    pid = start(job, "sys.stdin.readline()", "[ ! -e now ] || echo x", f"{prefix}; true")
    watched(job, pid, "it may wait for process")
    Path(job.folder, "now").touch()
    wait_for(lambda: job.processes[0].poll() is not None, "the end of the wait")


def test_a_rank_that_starts_processes_itself_is_at_work(job: Job) -> None:
    code = "def run():\n    while True: subprocess.run(['sleep', '0.1'])\nthreading.Thread(target=run).start(); stuck()"
    pid = start(job, code, prefix='"$@"; true')
    watched(job, pid, "")


# --- the rule ---------------------------------------------------------------------------------------------------------


def world(**parents: tuple[int, int]) -> World:
    """Processes by `p` and pid, each with its parent and its start."""
    found = empty(frozenset())
    for name, (parent, start) in parents.items():
        pid = int(name[1:])
        found.processes[pid] = WaitingProcess({}, parent=parent, start=start)
        found.holders.setdefault("pipe:[1]", {})[pid] = "w"
    return found


ALWAYS = {"p10": (1, 1), "p20": (10, 1), "p30": (10, 1)}


def test_the_living_parent_of_what_comes_and_goes_is_at_work_and_all_that_it_had_counts() -> None:
    found = turnover(world(**ALWAYS, p40=(30, 2)), world(**ALWAYS, p50=(30, 3), p51=(50, 3)), {10, 20})
    assert (*map(set, found[1:4]), found.unknown) == ({50, 51}, {40}, {30}, "")
    assert found.world.processes.keys() == {10, 20, 30, 40, 50, 51}
    assert found.world.holders == {"pipe:[1]": dict.fromkeys((10, 20, 30, 40, 50, 51), "w")}


def test_a_number_that_another_process_has_now_is_a_process_that_has_started() -> None:
    found = turnover(world(**ALWAYS, p40=(30, 2)), world(**ALWAYS, p40=(20, 3)), {10})
    assert [*map(set, found[1:4])] == [{40}, set(), {20, 30}]


def test_what_a_process_had_that_ends_while_it_is_read_is_known_only_from_before() -> None:
    """Nothing is known of 40, which may still have given away what it had; 41 was seen before, and 42 is long gone."""
    before, after = world(**ALWAYS, p41=(30, 2), p42=(30, 2)), world(**ALWAYS, p40=(30, 3), p41=(30, 2))
    before.processes[42] = before.processes[42]._replace(problem=GONE)
    after.processes.update({pid: after.processes[pid]._replace(problem=GONE) for pid in (40, 41)})
    found = turnover(before, after, {10, 20})
    assert (*map(set, found[1:4]), found.unknown) == ({40}, {41, 42}, {30}, "")
    assert {pid for pid, process in found.world.processes.items() if process.problem} == {40}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(world(**ALWAYS), world(**ALWAYS, p40=(1, 2)), id="its parent is outside the job"),
        pytest.param(world(**ALWAYS), world(**ALWAYS, p40=(0, 0)), id="its parent is not known"),
        pytest.param(world(**ALWAYS, p40=(1, 2), p41=(40, 3)), world(**ALWAYS), id="its parent was outside"),
        pytest.param(world(p10=(1, 1), p30=(10, 1)), world(**ALWAYS), id="a rank has started"),
        pytest.param(world(**ALWAYS), world(p10=(1, 1), p30=(10, 1)), id="a rank has ended"),
        pytest.param(world(**ALWAYS), world(**ALWAYS | {"p10": (1, 2)}), id="another command"),
    ],
)
def test_what_nobody_who_lives_has_started_shows_nothing(before: World, after: World) -> None:
    assert turnover(before, after, {10, 20}).unknown


CHURN = """def churn():
    while True:
        t = threading.Thread(target=time.sleep, args=(0.01,)); t.start(); t.join()
"""


def test_threads_that_come_and_go_in_another_process_hide_no_deadlock(job: Job) -> None:
    job.start(f"{SMALL}{CHURN}child(churn); ready(); stuck()")
    assert "waits for a lock" in closed(job, job.pid).mechanism


@pytest.mark.parametrize(
    "code",
    [
        "a, b = os.pipe(); child(churn); os.close(b); ready(); os.read(a, 1)",
        "threading.Thread(target=churn, daemon=True).start(); ready(); stuck()",
        "pid = child(churn); ready(); os.waitpid(pid, 0)",
    ],
    ids=["a pipe of that process", "a lock of that process", "the end of that process"],
)
def test_what_a_process_may_give_whose_threads_come_and_go_is_never_proved(job: Job, code: str) -> None:
    job.start(f"{SMALL}{CHURN}{code}")
    for _ in range(3):
        assert see(job, job.pid).open_reason
